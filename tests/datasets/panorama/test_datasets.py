"""Augmentation of panoramas and their data module."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sphere import room_depth

from vizoo.datasets.panorama import PanoramaDataModule
from vizoo.datasets.panorama.base import PanoramaDataset, PanoramaRecord
from vizoo.datasets.panorama.transforms import (
    SphereAugmentation,
    _blurred,
    _sphere_rotation,
)
from vizoo.datasets.worlds.panorama import WorldPanoramas
from vizoo.panorama.sampling import pixel_directions, sample_equirectangular
from vizoo.vision.io.images import write_image
from vizoo.vision.io.pfm import read_pfm

F64 = torch.float64


def test_rotations():
    forward, up = torch.tensor([0.0, 0, 1], dtype=F64), torch.tensor([0.0, 1, 0], dtype=F64)
    turned = _sphere_rotation(math.pi / 2)
    torch.testing.assert_close(turned @ forward, torch.tensor([1.0, 0, 0], dtype=F64))
    torch.testing.assert_close(turned @ up, up)
    for mirrored in (False, True):
        matrix = _sphere_rotation(0.7, 0.2, 1.1, mirrored)
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(3, dtype=F64))
        assert torch.linalg.det(matrix).item() == pytest.approx(-1 if mirrored else 1)
        lean = math.sin(0.2) * math.sin(1.1), math.cos(0.2), math.sin(0.2) * math.cos(1.1)
        torch.testing.assert_close(matrix @ up, torch.tensor(lean, dtype=F64))
    mirror = _sphere_rotation(0, mirrored=True)
    torch.testing.assert_close(mirror, torch.diag(torch.tensor([-1.0, 1, 1], dtype=F64)))


def test_a_turned_camera_sees_the_room_turned():
    """What the network would see along d by R is what a ray along R d finds."""
    looks = torch.nn.functional.normalize(torch.randn(500, 3, dtype=F64), dim=1)
    turn = _sphere_rotation(0.9, 0.3, 2.0, mirrored=True)
    depth = room_depth(pixel_directions(128, 256))[None, None]
    found = sample_equirectangular(depth, looks @ turn.T, "nearest")[0, :, 0]
    assert (found - room_depth(looks @ turn.T)).abs().median() < 0.02


def test_augmentation():
    sample = WorldPanoramas(1, 16)[0]
    change = SphereAugmentation(tilt=5)
    seen, flips, recoloured = [], 0, 0
    for seed in range(40):
        found = change(sample, torch.Generator().manual_seed(seed))
        again = change(sample, torch.Generator().manual_seed(seed))
        assert torch.equal(found["rotation"], again["rotation"])
        assert torch.equal(found["image"], again["image"])
        assert torch.equal(found["depth"], sample["depth"]) and found["rotation"].shape == (3, 3)
        assert 0 <= found["image"].min() and found["image"].max() <= 1
        flips += bool(torch.linalg.det(found["rotation"]) < 0)
        recoloured += not torch.equal(found["image"], sample["image"])
        seen.append(found["rotation"][1, 1].item())
    assert 8 < flips < 32 and 8 < recoloured < 32
    assert min(seen) >= math.cos(math.radians(5)) - 1e-6 and min(seen) < 0.9999
    assert "rotation" not in sample
    assert PanoramaDataModule(augmentation="none").augment is None
    with pytest.raises(ValueError, match="augmentation 'spin' is none of none, sphere, strong"):
        PanoramaDataModule(augmentation="spin")
    with pytest.raises(ValueError, match="tilt 200"):
        PanoramaDataModule(tilt=200)


def test_strong_augmentation():
    """Other light and colours, the same for the same draws; never another depth or size."""
    sample = WorldPanoramas(1, 16)[0]
    change = PanoramaDataModule(augmentation="strong", tilt=5).augment
    brightness, above = [], []
    for seed in range(60):
        changed = change(sample, torch.Generator().manual_seed(seed))
        again = change(sample, torch.Generator().manual_seed(seed))
        image = changed["image"]
        assert torch.equal(image, again["image"]) and torch.equal(changed["depth"], sample["depth"])
        assert image.shape == sample["image"].shape and image.dtype == torch.float32
        assert 0 <= image.min() and image.max() <= 1 and not torch.equal(image, sample["image"])
        brightness.append(image.mean().item())
        above.append((image[:, :4].mean() / image[:, -4:].mean().clamp(min=0.01)).item())
    assert min(brightness) < 0.3 and max(brightness) > 0.5
    assert min(above) < 0.5 * np.median(above) and max(above) > 2 * np.median(above)


@pytest.mark.parametrize("factor", [2, 3])
def test_a_blur_moves_nothing_and_has_no_seam(factor):
    waves = (torch.arange(64) + 0.5) / 64 * 2 * math.pi
    image = torch.stack([waves.sin(), waves.cos(), torch.ones(64)])[:, None].expand(3, 32, 64)
    for blurred in (_blurred(image, factor), _blurred(image.roll(7, -1), factor).roll(-7, -1)):
        found = torch.atan2(blurred[0], blurred[1]) - waves
        assert (found.sin().asin() / (2 * math.pi) * 64).abs().max() < 0.15  # pixels
    noise = torch.rand(3, 32, 64)
    assert _blurred(noise, factor).std() < 0.7 * noise.std()


@pytest.mark.parametrize("height", [8, 40, 48])
def test_no_seam_where_sizes_change(tmp_path, height):
    """A sphere that is turned by half before it is resized is one that is turned afterwards."""
    colours = np.random.default_rng(0).integers(0, 256, (height, 2 * height, 3)).astype(np.uint8)
    read = {}
    for name, shift in (("own", 0), ("turned", height)):
        file = tmp_path / f"{name}.png"
        write_image(file, np.roll(colours, shift, axis=1))
        records = [PanoramaRecord(name, str(file))]
        read[name] = PanoramaDataset(records, read_pfm, (16, 32))[0]["image"]
    torch.testing.assert_close(read["turned"], read["own"].roll(16, 2))


def test_data_module():
    rooms = list(WorldPanoramas(4, 16, seed=1))
    train, few = [lambda: rooms], [lambda: rooms[:2]]
    data = PanoramaDataModule(train=train, val=few, batch_size=2, workers=0)
    batches = list(data.train_dataloader())
    assert [batch["rotation"].shape for batch in batches] == [(2, 3, 3)] * 2
    assert batches[0]["image"].shape == (2, 3, 16, 32) and batches[0]["valid"].dtype == torch.bool
    (first, _) = data.val_dataloader()
    assert "rotation" not in first and first["depth"].shape == (1, 1, 16, 32)
    again = PanoramaDataModule(train=train, batch_size=2, workers=0)
    for one, other in zip(batches, again.train_dataloader(), strict=True):
        assert torch.equal(one["image"], other["image"]) and one["name"] == other["name"]
    mixed = PanoramaDataModule(train=[*few, WorldPanoramas(1, 24)], batch_size=3, workers=0)
    with pytest.raises(ValueError, match="different sizes in one batch"):
        list(mixed.train_dataloader())
