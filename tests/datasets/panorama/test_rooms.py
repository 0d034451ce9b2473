"""Generated rooms: exact depth, repeatable, inferable, cached."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vizoo.datasets.panorama import GeneratedRooms, Room, furnished_room
from vizoo.datasets.panorama.rooms import CAMERA_HEIGHT, pixel_rays
from vizoo.panorama.mesh import spherical_mesh
from vizoo.panorama.sampling import face_labels, pixel_directions


@pytest.fixture
def golden(shared):
    found = np.load(shared / "golden" / "spheredepth" / "room.npz")
    half, boxes = found["room_half"], np.stack([found["box_lo"], found["box_hi"]], axis=1)
    walls = np.stack([-half, half])
    radius = float(found["sphere_radius"])
    return found, Room(walls, boxes, found["sphere_centre"], radius), Room(walls)


def test_golden(golden):
    want, room, empty = golden
    assert np.abs(room.cast(want["dir"])[0] - want["depth"]).max() < 1e-9
    depth = room.cast(pixel_rays(16, 32).reshape(-1, 3))[0].reshape(16, 32)
    assert np.abs(depth - want["erp_depth"]).max() < 1e-9
    corners = empty.cast(want["corner_room_dir"])[0]
    assert np.abs(corners - want["corner_room_depth"]).max() < 1e-9
    assert np.abs(corners - np.linalg.norm(want["room_half"])).max() < 1e-9


def test_rays_are_those_of_the_networks_pixels():
    assert np.abs(pixel_rays(9, 18) - pixel_directions(9, 18).numpy()).max() < 1e-15


@pytest.mark.parametrize("seed", range(4))
def test_rays_end_on_the_surface_that_they_name(seed):
    room = furnished_room(seed)
    rays = pixel_rays(32, 64).reshape(-1, 3)
    depth, surface = room.cast(rays)
    points, shapes = rays * depth[:, None], np.concatenate([room.walls[None], room.boxes])
    for number, shape in enumerate(shapes):
        for side in range(6):
            mine = points[surface == 6 * number + side]
            assert np.abs(mine[:, side // 2] - shape[side % 2, side // 2]).max(initial=0) < 1e-12
    ball = points[surface == 6 * len(shapes)]
    assert np.abs(np.linalg.norm(ball - room.centre, axis=1) - room.radius).max(initial=0) < 1e-12
    # Nothing nearer: no point on the way is in a box or in the sphere.
    for share in (0.2, 0.5, 0.9, 0.999):
        way = share * points
        inside = ((way > room.walls[0]) & (way < room.walls[1])).all(1)
        assert inside.all()
        for low, high in room.boxes:
            assert not ((way > low) & (way < high)).all(1).any()
        assert (np.linalg.norm(way - room.centre, axis=1) > room.radius).all()


def test_rays_along_the_axes():
    room = Room(np.array([[-1.0, -2, -3], [4, 5, 6]]))
    rays = np.concatenate([np.eye(3), -np.eye(3)])
    depth, surface = room.cast(rays)
    assert depth.tolist() == [4, 5, 6, 1, 2, 3] and surface.tolist() == [1, 3, 5, 0, 2, 4]


def test_what_makes_depth_inferable():
    for seed in range(20):
        room = furnished_room(seed)
        assert room.walls[0, 1] == pytest.approx(-CAMERA_HEIGHT)
        assert (room.boxes[:, 0, 1] == room.walls[0, 1]).all()
        assert (room.boxes[:, 0] >= room.walls[0] - 1e-9).all()
        assert (room.boxes[:, 1] <= room.walls[1] + 1e-9).all()
        depth = room.cast(pixel_rays(16, 32).reshape(-1, 3))[0]
        assert 0.3 < depth.min() and depth.max() < 10


def test_items_depend_on_seed_and_index_alone():
    one, other = GeneratedRooms(3, 16, seed=5), GeneratedRooms(4, 16, seed=5)
    for name in ("image", "depth", "valid"):
        assert torch.equal(one[2][name], other[2][name])
    assert not torch.equal(one[0]["depth"], one[1]["depth"])
    assert not torch.equal(one[0]["depth"], GeneratedRooms(1, 16, seed=6)[0]["depth"])
    sample = one[-1]
    assert sample["name"] == "generated-5-000002" and len(list(one)) == 3
    assert sample["image"].shape == (3, 16, 32) and sample["depth"].shape == (1, 16, 32)
    assert sample["image"].dtype == sample["depth"].dtype == torch.float32
    assert sample["valid"].all() and 0 <= sample["image"].min() and sample["image"].max() <= 1
    with pytest.raises(IndexError, match="index 3 of 3"):
        one[3]
    with pytest.raises(ValueError, match="height 0"):
        GeneratedRooms(1, 0)


def test_the_series_stays_what_it_is():
    """A change here needs another ROOMS_VERSION, else caches mix two series."""
    sample = GeneratedRooms(1, 32, seed=1)[0]
    assert sample["depth"].mean().item() == pytest.approx(2.2605, abs=1e-4)
    assert sample["image"].mean().item() == pytest.approx(0.4, abs=1e-3)


def test_brightness_does_not_tell_depth():
    rooms = [GeneratedRooms(8, 32, seed=1)[i] for i in range(8)]
    grey = torch.cat([room["image"].mean(0).flatten() for room in rooms])
    depth = torch.cat([room["depth"].flatten() for room in rooms])
    assert torch.corrcoef(torch.stack([grey, depth]))[0, 1].abs() < 0.4


def test_cache(tmp_path):
    fresh, kept = GeneratedRooms(2, 8, seed=3), GeneratedRooms(2, 8, seed=3, cache=str(tmp_path))
    for _ in range(2):
        for name in ("image", "depth", "valid"):
            assert torch.equal(kept[1][name], fresh[1][name])
    (file,) = tmp_path.rglob("*.safetensors")
    kept._make = None  # it is read
    assert torch.equal(kept[1]["image"], fresh[1]["image"])
    del kept._make
    file.write_bytes(b"damaged")
    assert torch.equal(kept[1]["image"], fresh[1]["image"])


@pytest.mark.parametrize("level", [5])
def test_labels_of_faces_are_what_rays_along_their_centroids_find(level):
    errors = []
    for seed in range(2):
        room = furnished_room(seed)
        depth = torch.from_numpy(room.panorama(256, 512, supersample=1)[1])[None, None]
        labels, known = face_labels(depth, depth > 0, level)
        assert known.all()
        exact = room.cast(spherical_mesh(level).centroids)[0]
        errors.append(np.abs(labels[0].numpy() - exact))
    assert np.median(errors) < 1e-2
