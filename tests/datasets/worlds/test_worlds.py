"""Generated worlds: shapes are closed, what is cast is exact, the same seed gives the same."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import trees
from PIL import Image

pytest.importorskip("open3d")

from vizoo.datasets.draws import Draws
from vizoo.datasets.worlds import furniture, layouts, shapes
from vizoo.datasets.worlds.cameras import Panorama, Pinhole, frame, grid, render
from vizoo.datasets.worlds.layouts import LAYOUTS, build_place
from vizoo.datasets.worlds.materials import Material, draw_material, files_of, texture_bank
from vizoo.datasets.worlds.panorama import WorldPanoramas
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.datasets.worlds.stock import stock
from vizoo.datasets.worlds.views import WorldViews
from vizoo.datasets.worlds.world import Light, Sky, Thing, World, column
from vizoo.vision.io.ply import write_mesh

PINNED = {  # triangles' corners, their mean place, mean colour
    "room": (25488, 0.114775404, 0.697991326, 0.266352255, 0.508173483),
    "home": (35928, 1.54065221, 0.718895927, 0.138371077, 0.50525632),
    "street": (36918, 2.883265586, 3.098266873, 16.783551992, 0.429605198),
    "table": (25638, 0.129899493, 0.199679044, 0.070762918, 0.531918303),
}
PLAIN = Material(0, 100.0, 0.0, (0.0, 0.0), (0.5, 0.5, 0.5), 0.0, 0.0)


def world(*things, lights=()):
    placed = [Thing(shape, PLAIN, number) for number, shape in enumerate(things, start=1)]
    dark = Sky(np.zeros(3), np.zeros(3))
    return World(placed, lights, np.full(3, 0.5), dark, texture_bank())


def look(place, height, width, focal):
    """Straight ahead from the origin along z."""
    camera = Pinhole.centred(np.zeros(3), frame(np.array([0.0, 0, 1])), height, width, focal)
    return render(place, camera)


CLOSED = {
    "box": shapes.box(1, 2, 3),
    "sphere": shapes.sphere(1, 0.7),
    "cylinder": shapes.cylinder(0.5, 1),
    "cone": shapes.cone(0.5, 0, 1),
    "frustum": shapes.cone(0.5, 0.3, 1),
    "torus": shapes.torus(1, 0.2),
    "extrusion": shapes.extrusion(np.array([[1, 0], [0.3, 0.3], [0, 1], [-1, 0], [0, -1]]), 0.5),
}


@pytest.mark.parametrize("name", CLOSED)
def test_shapes_are_closed(name):
    """The divergence theorem: the flux of a constant field through a closed surface is 0."""
    points = CLOSED[name].points
    areas = np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0])
    np.testing.assert_allclose(areas.sum(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize("name", CLOSED)
def test_normals_are_square_to_the_surface(name):
    shape = CLOSED[name]
    flat = np.cross(
        shape.points[:, 1] - shape.points[:, 0], shape.points[:, 2] - shape.points[:, 0]
    )
    size = np.linalg.norm(flat, axis=1)
    real = size > 1e-9
    flat = flat[real] / size[real, None]
    smooth = shape.normals[real].mean(axis=1)
    agree = np.abs((flat * smooth).sum(axis=1)) / np.linalg.norm(smooth, axis=1)
    assert agree.min() > 0.8


def test_without_open3d(monkeypatch):
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(ImportError, match="meshes need Open3D .*pip install open3d"):
        world(shapes.sphere(1.0))


def test_rays_end_where_they_should():
    ball = world(shapes.sphere(1.0, steps=200).moved((0, 0, 5)))
    view = look(ball, 41, 61, 60.0)
    assert view.distance[20, 30] == pytest.approx(4.0, abs=1e-3)
    assert not np.isfinite(view.distance[0, 0]) and view.instance[0, 0] == 0
    np.testing.assert_allclose(view.normal[:, 20, 30], (0, 0, -1), atol=0.02)


def test_up_is_up_and_right_is_right():
    # Who looks along z with y upwards has x on the left.
    things = [shapes.box(1, 1, 1).moved(at) for at in ((0, 2, 6), (-2.5, -0.5, 6))]
    view = look(world(*things), 60, 60, 40.0)
    rows, _ = np.nonzero(view.instance.numpy() == 1)
    _, columns = np.nonzero(view.instance.numpy() == 2)
    assert rows.max() < 30 and columns.min() > 30


def test_shadows_and_edges():
    floor = shapes.box(10, 0.1, 10).moved((0, -1, 5))
    roof = shapes.box(2, 0.1, 2).moved((0, 1, 5))
    sun = Light(np.array([0.0, 1.0, 0.0]), np.ones(3), True)
    lit = world(floor, roof, lights=[sun])
    down = torch.tensor([[0.0, -0.7, 4.0], [3.0, -0.7, 4.0]])
    rays = torch.nn.functional.normalize(down, dim=1).T
    colours = lit.colours(torch.zeros(3, 1), rays, 0.01)
    assert colours[:, 1].min() > 1.5 * colours[:, 0].max()


def test_a_mirror_shows_what_stands_opposite():
    """A perfect mirror ahead, a red wall behind the observer on the left, nothing elsewhere."""
    mirror = replace(PLAIN, mirror=1.0)
    painted = replace(PLAIN, base=(1.0, 0.2, 0.2))
    things = [
        Thing(shapes.box(4, 4, 0.1).moved((0, -2, 4.05)), mirror, 1),
        Thing(shapes.box(4, 8, 0.1).moved((2, -4, -2)), painted, 2),
    ]
    dark = Sky(np.zeros(3), np.zeros(3))
    place = World(things, [], np.full(3, 0.5), dark, texture_bank())
    view = look(place, 40, 40, 80.0)
    red = view.colour[0]
    # Who looks along z has x on the left.
    assert red[:, :19].min() > 0.3 and red[:, 21:].max() == 0
    assert (view.colour[1, :, :19] < 0.5 * red[:, :19]).all()
    assert view.instance.unique().tolist() == [1], "what is measured is the mirror"


def test_panes_reflect_more_at_a_grazing_angle():
    """Of a bright sky, over black glass."""
    glass = replace(PLAIN, base=(0.0, 0.0, 0.0), mirror=0.1)
    sky = Sky(np.ones(3), np.ones(3))
    floor = Thing(shapes.box(100, 0.1, 100).moved((0, -1.1, 0)), glass, 1)
    place = World([floor], [], np.zeros(3), sky, texture_bank())
    angles = torch.tensor([0.0, 1.0, 1.4])  # from straight down
    rays = torch.stack([0 * angles, -angles.cos(), angles.sin()])
    seen = place.colours(torch.zeros(3, 1), rays, 0.01)[0]
    assert seen.tolist() == pytest.approx((0.1 + 0.9 * (1 - angles.cos()) ** 5).tolist(), abs=1e-3)


@pytest.mark.parametrize(
    "kind",
    [*furniture.FURNITURE, *furniture.SMALL, furniture.tree, furniture.car, furniture.pole],
)
def test_things_stand_on_the_floor(kind):
    for seed in range(3):
        parts = kind(Draws("thing", seed))
        points = np.concatenate([shape.points.reshape(-1, 3) for shape, _ in parts])
        assert np.isfinite(points).all()
        assert -0.35 < points[:, 1].min() < 0.06 and points[:, 1].max() > 0.005
        for shape, _ in parts:
            assert np.isfinite(shape.normals).all() and np.isfinite(shape.places).all()


@pytest.fixture(scope="module")
def pairs():
    return WorldStereo(4, 96, 192, seed=1, photometric=False)


@pytest.mark.parametrize("index", range(4))
def test_disparity_is_exact(pairs, index):
    """The right picture, sampled where the disparity says, is the left one where it is seen."""
    sample = pairs[index]
    left, right, disparity = sample["left"], sample["right"], sample["disparity"][0]
    height, width = disparity.shape
    x = torch.arange(width) - disparity
    grid = torch.stack(
        [2 * x / (width - 1) - 1, torch.linspace(-1, 1, height)[:, None] + 0 * x], -1
    )
    seen = torch.nn.functional.grid_sample(
        right[None], grid[None], align_corners=True, padding_mode="border"
    )[0]
    error = (seen - left).abs().mean(0)
    visible = ~sample["occluded"][0] & sample["valid"][0]
    assert error[visible].median() < 0.01 and error[visible].quantile(0.9) < 0.08
    assert 0 < disparity.max() <= 256
    if (~visible).sum() > 200:
        assert error[~visible].median() > error[visible].median()


def test_the_same_seed_gives_the_same():
    first, again, other = (
        WorldStereo(4, 48, 96, seed=seed, photometric=False)[2] for seed in (1, 1, 2)
    )
    assert all(torch.equal(again[name], first[name]) for name in ("left", "right", "disparity"))
    assert not torch.equal(other["left"], again["left"])


def test_no_pixel_is_beyond_the_limit():
    for sample in WorldStereo(4, 48, 96, seed=3, max_disparity=20, floating=12):
        assert sample["disparity"].max() <= 20.001
        assert sample["left"].shape == (3, 48, 96) and sample["left"].max() <= 1


def test_photographs_are_taken(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (80, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "grain.jpg")
    deep = np.random.default_rng(0).integers(256, 1 << 16, (80, 60), np.uint16)
    Image.fromarray(deep).save(tmp_path / "height.png")
    bank = texture_bank(str(tmp_path))
    assert bank.count == bank.procedural + 2
    x, y = torch.rand(2, 500) * 512
    grain = bank.look_up(torch.full((500,), bank.count - 1), x, y, torch.ones(500))
    assert grain.std() > 0.3  # 16 bits of grey are more than white
    draws = Draws("material", 0)
    taken = [draw_material(draws, bank).texture for _ in range(40)]
    assert bank.procedural in taken and min(taken) < bank.procedural
    with pytest.raises(FileNotFoundError, match="no such folder"):
        WorldStereo(1, 96, 192, textures=str(tmp_path / "none"))


def test_meshes_and_surroundings_are_taken(tmp_path):
    goods = trees.stock(tmp_path)
    folders = {name: str(goods / name) for name in ("textures", "meshes", "panoramas")}
    taken = stock(**folders)
    (wedge,) = taken.meshes
    low, high = (f(wedge.points, axis=(0, 1)) for f in (np.min, np.max))
    assert low[1] == 0 and (high - low).max() == pytest.approx(1)
    np.testing.assert_allclose(np.linalg.norm(wedge.normals, axis=-1), 1, atol=1e-6)
    (around,) = taken.panoramas
    assert around.shape[1] == 2 * around.shape[0] and around.dtype == torch.uint8
    left = WorldStereo(1, 48, 96, layouts=["table"], photometric=False, **folders)[0]["left"]
    drawn = WorldStereo(1, 48, 96, layouts=["table"], photometric=False)[0]["left"]
    assert not torch.equal(left, drawn)


def test_meshes_of_ply_files_are_taken(tmp_path):
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    sides = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    write_mesh(tmp_path / "wedge.PLY", corners, sides, np.zeros((4, 3), np.uint8))
    (wedge,) = stock(meshes=str(tmp_path)).meshes
    assert wedge.points.shape == (4, 3, 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("meshes/dot.obj", "v 0 0 0\n", "dot.obj: no triangle"),
        ("panoramas/square.png", None, "square.png: 40x40 pixels: want twice as wide"),
        ("meshes", "", "no such folder"),
        ("textures/cut.jpg", "JFIF", r"textures: .*cut\.jpg: cannot be read as an image"),
    ],
)
def test_bad_stock(tmp_path, name, content, message):
    kind, path = name.split("/")[0], tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is None:
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(path)
    else:
        path.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        stock(**{kind: str(tmp_path / kind)})


def test_a_variable_that_is_not_set_is_no_folder(monkeypatch):
    monkeypatch.delenv("VIZOO_NOWHERE", raising=False)
    for name in ("textures", "cache"):
        with pytest.raises(ValueError, match="the environment variable VIZOO_NOWHERE is not set"):
            WorldStereo(1, 48, 96, **{name: "$VIZOO_NOWHERE/x"})


def test_caches_know_what_lies_in_a_folder(tmp_path):
    """What is in the files counts, be their sizes equal; hidden ones are none."""
    kept = []
    for folder, value in (("a/looks", 8), ("b/looks", 9), ("c/looks", 8)):
        (tmp_path / folder).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(tmp_path / folder / "grain.bmp")
        (tmp_path / folder / "grain.bmp").rename(tmp_path / folder / "grain.png")
        (tmp_path / folder / f"._{value}.png").write_text("of a Mac")
        looks = str(tmp_path / folder)
        kept.append(WorldStereo(1, 48, 96, textures=looks, cache=str(tmp_path)).cache.name)
    assert len({path.stat().st_size for path in tmp_path.glob("*/looks/grain.png")}) == 1
    assert kept[0] == kept[2] != kept[1]


def test_hidden_files_are_no_stock(tmp_path):
    goods = trees.stock(tmp_path)
    folders = {name: str(goods / name) for name in ("textures", "meshes", "panoramas")}
    for name in folders:
        seen = next((goods / name).iterdir())
        seen.with_name(f"._{seen.name}").write_text("of a Mac")
        seen.with_name(f"folder{seen.suffix}").mkdir()
    assert [len(files_of(*each)) for each in folders.items()] == [1, 1, 1]


def test_an_empty_folder_is_told_before_training(tmp_path):
    for kind in ("textures", "meshes", "panoramas"):
        with pytest.raises(FileNotFoundError, match=f"{kind}: .*: no (picture|mesh) in it"):
            WorldStereo(1, 48, 96, **{kind: str(tmp_path)})


def test_the_right_camera_stands_in_the_room_too():
    """Nothing is between the cameras, so neither stands behind a wall."""
    for seed in range(6):
        worlds = WorldStereo(1, 32, 64, seed=seed, layouts=["room"], floating=0)
        taken = []
        place = worlds._place
        worlds._place = lambda *a, place=place, taken=taken: taken.append(place(*a)) or taken[-1]
        _, rig = worlds.pair(0)
        eye = torch.from_numpy(taken[-1].eye).float()[:, None]
        view, camera = taken[-1], frame(taken[-1].gaze)
        way = torch.from_numpy(rig.baseline * camera[0]).float()[:, None]
        assert not view.world.blocked(eye, way).any()


def test_a_car_stands_on_wheels_on_both_sides():
    wheels = furniture.car(Draws("car", 0))[-1][0]
    assert wheels.points[..., 2].max() == pytest.approx(-wheels.points[..., 2].min())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length 0"),
        ({"max_disparity": 2}, "max_disparity 2"),
        ({"layouts": ["garden"]}, "garden"),
        ({"layouts": []}, "choose from room"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        WorldStereo(**{"length": 1, "height": 48, "width": 96, **arguments})


def test_every_layout_has_much_to_see():
    for layout in LAYOUTS:
        for seed in range(2):
            place = build_place(layout, Draws(layout, seed), stock(), floating=0)
            camera = Pinhole.centred(place.eye, frame(place.gaze), 48, 96, 70.0)
            view = render(place.world, camera)
            assert len(np.unique(view.instance)) > 4
            assert view.distance.isfinite().float().mean() > 0.5
    with pytest.raises(ValueError, match="garden"):
        build_place("garden", Draws(0), stock())


def test_rooms_of_a_home_fill_it_and_walls_stand_between_them():
    for seed in range(8):
        bounds = np.array([[-7.0, -5.0], [7.0, 5.0]])
        rooms, walls = layouts._divided(Draws("rooms", seed), bounds)
        assert len(walls) == len(rooms) - 1 > 0
        sizes = np.array([room[1] - room[0] for room in rooms])
        assert sizes.min() > 1.2 and sizes.prod(axis=1).sum() == pytest.approx(14 * 10)
        for start, end in walls:
            (axis,) = np.flatnonzero(start == end)
            for edge in (0, 1):  # some room ends there, and some begins
                assert any(room[edge, axis] == start[axis] for room in rooms)


@pytest.mark.parametrize(
    ("outer", "start", "end"),
    [
        (False, (-4.0, 3.0), (4.0, 3.0)),
        (True, (-4.0, 3.0), (4.0, 3.0)),
        (True, (3.0, -4.0), (3.0, 4.0)),
        (True, (4.0, -3.0), (-4.0, -3.0)),
        (False, (-3.0, 4.0), (-3.0, -4.0)),
    ],
)
def test_one_sees_through_a_wall_where_it_is_open(outer, start, end):
    """Straight at the wall, which is the first thing built, between frames and what hangs there."""
    start, end, height, opened = np.array(start), np.array(end), 2.6, 0
    forward = (end - start) / 8
    beyond = start - (start @ forward) * forward  # the way from the origin straight to the wall
    for seed in range(6):
        met = start + 3.5 * forward
        openings = layouts._openings(Draws("wall", seed), 8.0, height, [(3.3, 3.7)], outer)
        build = layouts._Builder(Draws("wall", seed), stock())
        layouts._wall(build, start, end, height, 0.2, "plain", [met, met + 1], outer=outer)
        wall = World(build.things[:1], [], np.ones(3), Sky(np.ones(3), np.ones(3)), texture_bank())
        along, up = (part.ravel() for part in np.meshgrid(np.arange(0.1, 8, 0.1), [0.2, 1.5, 2.5]))
        ground = start + along[:, None] * forward - beyond
        origins = torch.tensor(np.stack([ground[:, 0], up, ground[:, 1]]), dtype=torch.float32)
        way = torch.tensor([beyond[0], 0, beyond[1]], dtype=torch.float32)[:, None] / 3
        distance = wall.cast(origins, way.expand_as(origins)).distance.numpy()
        edges = np.array([edge for opening in openings for edge in opening[:2]])
        apart = np.abs(along[:, None] - edges).min(axis=1, initial=1.0) > 0.01
        is_open = np.array(
            [any(a < x < b and low < y < top for a, b, low, top in openings)
             for x, y in zip(along, up, strict=True)]
        )  # fmt: skip
        assert (np.isinf(distance) == is_open)[apart].all()
        np.testing.assert_allclose(distance[apart & ~is_open], 2.9, atol=1e-5)
        assert not is_open[np.abs(along - 3.5) < 0.19].any()  # another wall may end there
        opened += is_open.sum()
    assert opened > 100


def test_a_home_has_a_roof_and_its_observer_room():
    for seed in range(6):
        place = build_place("home", Draws("home", seed), stock(), floating=0)
        low, high = place.room
        spots = torch.tensor(low + np.random.rand(64, 3) * (high - low), dtype=torch.float32).T
        up = torch.tensor([[0.0], [1.0], [0.0]]).expand_as(spots)
        assert place.world.cast(spots, up).distance.max() < 3.4
        spots[1] = 9.0  # seen from above the roof is one, however low ceilings hang below it
        down = place.world.cast(spots, -up).distance
        assert down.max() - down.min() < 1e-4 and 5.6 < down.min() < 6.8
        around = Panorama(place.eye, 0.0, 16).rays(*grid(16, 32))
        assert place.world.cast(column(place.eye), around).distance.min() > 0.05


def test_a_seed_gives_what_its_version_gave():
    """Whoever changes these numbers changes `WORLD_VERSION` too."""
    assert layouts.WORLD_VERSION == 6
    for layout, wanted in PINNED.items():
        build = layouts._Builder(Draws("pinned", 3), stock())
        layouts.LAYOUTS[layout](build, 3)
        points = np.concatenate([thing.shape.points.reshape(-1, 3) for thing in build.things])
        looks = np.mean([thing.material.base for thing in build.things])
        assert (len(points), *points.mean(axis=0), looks) == pytest.approx(wanted, rel=1e-6)


def test_normals_and_things_of_a_sample():
    """Normals are those of the surfaces that depth shows, in the camera's frame, towards it."""
    worlds = WorldStereo(1, 96, 192, seed=5, photometric=False, surfaces=True)
    sample, rig = worlds.pair(0)
    normal, seen = sample["normal"], sample["valid"][0]
    depth = rig.focal * rig.baseline / sample["disparity"][0].clamp(min=1e-6)
    y, x = torch.meshgrid(torch.arange(96.0), torch.arange(192.0), indexing="ij")
    rays = torch.stack(((x - rig.cx) / rig.focal, (y - rig.cy) / rig.focal, torch.ones_like(x)))
    assert ((normal * rays).sum(0)[seen] < 1e-3).all()
    assert torch.allclose(normal.norm(dim=0), seen.float(), atol=1e-4)
    points = depth * rays
    right, down = (
        points[:, 1:-1, 2:] - points[:, 1:-1, :-2],
        points[:, 2:, 1:-1] - points[:, :-2, 1:-1],
    )
    found = torch.nn.functional.normalize(torch.linalg.cross(down, right, dim=0), dim=0)
    agree = (found * normal[:, 1:-1, 1:-1]).sum(0)[seen[1:-1, 1:-1]]
    assert (agree > 0.99).float().mean() > 0.7
    things = sample["instance"][0]
    assert (things[seen] > 0).all() and len(things.unique()) > 5
    assert "normal" not in WorldStereo(1, 32, 64, seed=5)[0]


@pytest.mark.parametrize("kind", [WorldViews, WorldPanoramas])
def test_surfaces_of_other_cameras(kind):
    size = (48, 64) if kind is WorldViews else (48,)
    sample = kind(1, *size, seed=5, surfaces=True)[0]
    seen = sample["valid"][0]
    assert torch.allclose(sample["normal"].norm(dim=0), seen.float(), atol=1e-4)
    assert (sample["instance"][0] > 0).equal(seen)
    up = sample["normal"][1][seen]
    assert (up < -0.99).any()  # a floor or a table, seen from above
