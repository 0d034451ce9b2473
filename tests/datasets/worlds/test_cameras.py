"""Views and panoramas of worlds: what one camera sees lies where another one sees it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

pytest.importorskip("open3d")

from vizoo.__main__ import main
from vizoo.datasets.mvs.layouts import open_scene
from vizoo.datasets.stereo import StereoPairs
from vizoo.datasets.worlds import shapes
from vizoo.datasets.worlds.cameras import Panorama, Pinhole, frame, render
from vizoo.datasets.worlds.materials import Material, texture_bank
from vizoo.datasets.worlds.panorama import WorldPanoramas
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.datasets.worlds.views import WorldViews
from vizoo.datasets.worlds.world import Sky, Thing, World
from vizoo.panorama.sampling import pixel_directions
from vizoo.vision.io.images import read_image
from vizoo.vision.io.pairing import images_in

PLAIN = Material(0, 100.0, 0.0, (0.0, 0.0), (0.5, 0.5, 0.5), 0.0, 0.0)


@pytest.fixture(scope="module")
def ball():
    thing = Thing(shapes.sphere(1.0, steps=80).moved((-3, 1, 4)), PLAIN, 1)
    dark = Sky(np.zeros(3), np.zeros(3))
    return World([thing], [], np.full(3, 0.5), dark, texture_bank())


@pytest.mark.parametrize("index", range(2))
def test_views_agree(index):
    """Points of the reference, projected into another view, have the depth that it sees."""
    scene = WorldViews(2, 96, 128, views=3, seed=1, photometric=False).scene(index)
    reference, known = scene.depth(0)
    first = scene.views[0]
    y, x = torch.nonzero(known[0], as_tuple=True)
    pixels = torch.stack([x, y, torch.ones_like(x)]).double() * reference[0, y, x]
    points = torch.linalg.inv(first.extrinsics.double()) @ torch.cat(
        [torch.linalg.inv(first.intrinsics.double()) @ pixels, torch.ones(1, len(x))]
    )
    for number in (1, 2):
        other = scene.views[number]
        rotation = other.extrinsics[:3, :3].double()
        torch.testing.assert_close(rotation @ rotation.T, torch.eye(3).double(), atol=1e-5, rtol=0)
        assert torch.linalg.det(rotation) > 0
        seen = other.intrinsics.double() @ (other.extrinsics.double() @ points)[:3]
        column, row = (seen[:2] / seen[2]).round().long()
        inside = (seen[2] > 0) & (column >= 0) & (column < 128) & (row >= 0) & (row < 96)
        assert inside.float().mean() > 0.4
        found = scene.depth(number)[0][0, row[inside], column[inside]]
        error = (found - seen[2][inside]).abs() / seen[2][inside]
        assert error.median() < 0.01
        there = scene.image(number)[:, row[inside], column[inside]]
        step = (there - scene.image(0)[:, y[inside], x[inside]]).abs().mean(0)
        assert step[error < 0.01].median() < 0.03


def test_samples_of_views():
    worlds = WorldViews(2, 48, 64, views=3, seed=2)
    sample = worlds[1]
    assert sample["images"].shape == (3, 3, 48, 64) and sample["images"].max() <= 1
    assert sample["intrinsics"].shape == (3, 3, 3) and sample["extrinsics"].shape == (3, 4, 4)
    least, greatest = sample["depth_range"]
    depth = sample["depth"][sample["valid"]]
    assert least <= depth.min() and depth.max() <= greatest
    assert torch.equal(worlds[1]["images"], sample["images"])


def test_a_panorama_sees_what_a_pinhole_camera_sees(ball):
    seen = render(ball, Panorama(np.zeros(3), 0.0, 64))
    rows, columns = torch.nonzero(seen.instance == 1, as_tuple=True)
    # The ball is up and to the right of one who looks along z: x is on the left there.
    assert rows.float().mean() < 31 and columns.float().mean() > 64
    camera = Pinhole.centred(np.zeros(3), frame(np.array([-3.0, 1, 4])), 5, 5, 50.0)
    straight = render(ball, camera).distance[2, 2]
    assert seen.distance.min() == pytest.approx(float(straight), abs=0.02)


def test_pixels_of_panoramas_look_where_the_network_thinks():
    """The same but for handedness: there x is to the right."""
    camera = Panorama(np.zeros(3), 0.0, 8)
    y, x = torch.meshgrid(torch.arange(8.0), torch.arange(16.0), indexing="ij")
    rays = camera.rays(x.flatten(), y.flatten()).T.view(8, 16, 3).double()
    rays[..., 0] *= -1
    torch.testing.assert_close(rays, pixel_directions(8, 16), atol=1e-6, rtol=0)


def test_panoramas_close_and_keep_their_distance():
    for sample in WorldPanoramas(3, 48, seed=1):
        image, depth = sample["image"], sample["depth"][0]
        assert image.shape == (3, 48, 96) and sample["valid"].all()
        assert depth.min() > 0.05 and depth.max() < 2 * math.hypot(8, 8)
        inner = (depth[:, 1:] - depth[:, :-1]).abs().mean()
        assert (depth[:, 0] - depth[:, -1]).abs().mean() < 5 * inner + 0.05


@pytest.mark.parametrize("kind", [WorldViews, WorldPanoramas])
def test_items_depend_on_seed_and_index_alone(kind):
    size = (24, 32, 2) if kind is WorldViews else (16,)
    one, longer, other = (
        kind(length, *size, seed=seed) for length, seed in ((2, 5), (3, 5), (2, 6))
    )
    first, second = one
    assert torch.equal(second["depth"], longer[1]["depth"])
    assert not torch.equal(first["depth"], second["depth"])
    assert not torch.equal(first["depth"], other[0]["depth"])
    assert (first["name"], second["name"]) == ("world-5-000000", "world-5-000001")
    assert one[-1]["name"] == "world-5-000001"
    with pytest.raises(IndexError, match="index 2 of 2"):
        one[2]


@pytest.mark.parametrize("kind", [WorldStereo, WorldViews, WorldPanoramas])
def test_kept_worlds_are_those_that_were_made(tmp_path, kind):
    size = (32, 64) if kind is not WorldPanoramas else (32,)
    made, kept = (kind(1, *size, seed=5, cache=str(tmp_path)) for _ in range(2))
    first = made[0]
    kept._make = lambda index: pytest.fail("made again")
    for name, value in kept[0].items():
        assert value == first[name] if name == "name" else torch.equal(value, first[name])


def test_bad_views():
    with pytest.raises(ValueError, match="views 1"):
        WorldViews(1, 48, 64, views=1)


def test_the_command_writes_what_readers_read(tmp_path, capsys):
    out = str(tmp_path)
    assert main(["world", f"{out}/pairs", "--count", "2", "--size", "48x96"]) == 0
    pairs = StereoPairs(*(f"{out}/pairs/{part}/*" for part in ("left", "right", "disparity")))
    assert len(pairs) == 2 and pairs[0]["disparity"].shape == (1, 48, 96)
    assert read_image(tmp_path / "pairs/occluded/world-0-000000.png").shape == (3, 48, 96)
    assert read_image(tmp_path / "pairs/contact_sheet.jpg").shape == (3, 80, 320)
    assert images_in(tmp_path / "pairs") == []
    views = ["world", f"{out}/views", "--camera", "views", "--views", "3", "--count", "1"]
    assert main([*views, "--size", "48x64", "--layout", "colmap", "--place", "room"]) == 0
    assert len(open_scene(tmp_path / "views/world-0-000000")) == 3
    around = ["world", f"{out}/around", "--camera", "panorama", "--count", "1"]
    assert main([*around, "--size", "32x64", "--place", "room"]) == 0
    assert (tmp_path / "around/train.txt").read_text().count("\n") == 1
    said = capsys.readouterr()
    assert "panorama, 1 of 32x64 pixels" in said.out and said.err == ""
    assert main(["world", f"{out}/pairs", "--count", "1", "--size", "48x96"]) == 0
    assert "pairs of other runs are there too: world-0-000001\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--camera", "views", "--size", "48x64", "--layout", "dtu_training"],
            "take another layout",
        ),
        (["--count", "0"], "--count 0"),
        (["--camera", "views", "--views", "0"], "views 0"),
        (["--floating", "-3"], "floating -3"),
        (["--camera", "panorama", "--layout", "matterport3d"], "leave the street out"),
        (["--views", "3"], "--views goes with --camera views"),
        (["--camera", "panorama", "--size", "32x32"], "twice as wide"),
        (["--layout", "dtu"], "dtu"),
        (["--textures", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_bad_options(tmp_path, capsys, options, message):
    assert main(["world", str(tmp_path / "out"), "--count", "1", *options]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()
