"""Augmentations: what they keep true of a sample, and that a seed decides them."""

from __future__ import annotations

import pytest
import torch

from vizoo.datasets.stereo.transforms import (
    _RECIPES,
    ColourJitter,
    Compose,
    RandomCrop,
    RandomErase,
    RandomScale,
    RandomVerticalFlip,
    recipe,
    resize,
)
from vizoo.vision.ops import warp_by_disparity


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def sample() -> dict:
    """Smooth texture on a plane whose disparity grows with y and x, exact to the interpolation."""
    height, width = 60, 96
    y = torch.arange(height).view(-1, 1).float()
    x = torch.arange(width).view(1, -1).float()

    def texture(x, y):
        waves = [torch.sin(x / (3 + i) + y / (5 - i) + i) for i in range(3)]
        return 0.5 + 0.4 * torch.stack(waves)

    disparity = (4 + 0.05 * y + 0.02 * x)[None]
    valid = torch.rand(1, height, width, generator=seeded(5)) > 0.2
    # A right pixel u shows the left pixel x with u = x - d(x, y).
    source = (x + 4 + 0.05 * y) / (1 - 0.02)
    return {
        "left": texture(x.expand(height, width), y),
        "right": texture(source, y),
        "disparity": disparity * valid,
        "valid": valid,
        "name": "plane",
    }


def mismatch(sample: dict) -> float:
    """Mean colour difference between the left image and the right one moved by the disparity."""
    warped = warp_by_disparity(sample["right"][None], sample["disparity"][None])[0]
    inside = torch.arange(sample["left"].shape[2]) - sample["disparity"] > 1
    keep = (sample["valid"] & inside).expand(3, -1, -1)
    return (warped - sample["left"])[keep].abs().mean().item()


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) if torch.is_tensor(one[key]) else one[key] == other[key]
        for key in one
    )


GEOMETRIC = {
    "crop": RandomCrop(40, 64),
    "flip": RandomVerticalFlip(1.0),
    "scale": RandomScale(-0.3, 0.5, stretch=0.2),
    "resize": lambda sample, generator: resize(sample, 50, 120),
}
PHOTOMETRIC = {"colour": ColourJitter(), "erase": RandomErase(1.0, 5, 10)}


def test_the_fixture_matches(sample):
    assert mismatch(sample) < 0.01
    assert mismatch({**sample, "disparity": sample["disparity"] + 1}) > 0.05


@pytest.mark.parametrize("name", GEOMETRIC)
def test_views_still_match(sample, name):
    for seed in range(5):
        assert mismatch(GEOMETRIC[name](sample, seeded(seed))) < 0.015


@pytest.mark.parametrize("name", [*GEOMETRIC, *PHOTOMETRIC])
def test_sample_keeps_its_form(sample, name):
    before = {key: value.clone() for key, value in sample.items() if torch.is_tensor(value)}
    out = (GEOMETRIC | PHOTOMETRIC)[name](sample, seeded())
    assert equal({**before, "name": "plane"}, sample)
    assert out.keys() == sample.keys() and out["name"] == "plane"
    size = out["left"].shape[1:]
    for key in before:
        assert out[key].shape == (before[key].shape[0], *size)
        assert out[key].dtype == before[key].dtype
    assert out["left"].min() >= 0 and out["right"].max() <= 1
    assert (out["disparity"][~out["valid"]] == 0).all() and (
        out["disparity"][out["valid"]] > 0
    ).all()


@pytest.mark.parametrize("name", _RECIPES)
def test_a_seed_decides(sample, name):
    transform = recipe(name, 40, 64)
    one, other = transform(sample, seeded(1)), transform(sample, seeded(1))
    assert equal(one, other)
    assert one["left"].shape == (3, 40, 64)
    assert not equal(one, transform(sample, seeded(2)))


def test_mild_is_strong_with_fewer_faults():
    strong, mild = (recipe(name, 40, 64).transforms for name in ("strong", "mild"))
    assert [type(step) for step in mild] == [type(step) for step in strong]
    (jitter, erase), (less, fewer) = strong[-2:], mild[-2:]
    assert less.asymmetric < jitter.asymmetric and fewer.probability < erase.probability


def test_without_a_generator_the_global_state_decides(sample):
    transform = recipe("strong", 40, 64)
    torch.manual_seed(3)
    one = transform(sample)
    torch.manual_seed(3)
    assert equal(one, transform(sample))


def test_crop_is_a_slice(sample):
    out = RandomCrop(40, 64)(sample, seeded(4))
    windows = sample["left"].unfold(1, 40, 1).unfold(2, 64, 1)
    y, x = next(
        (y, x)
        for y in range(windows.shape[1])
        for x in range(windows.shape[2])
        if torch.equal(windows[:, y, x], out["left"])
    )
    for key in ("left", "right", "disparity", "valid"):
        assert torch.equal(out[key], sample[key][:, y : y + 40, x : x + 64])


def test_kitti_crop_lies_below(sample):
    rows = torch.arange(60.0).view(1, 60, 1).expand(3, 60, 96)
    marked = {**sample, "left": rows}
    tops = {RandomCrop(20, 96, top=0.25)(marked, seeded(s))["left"].min().item() for s in range(99)}
    assert min(tops) == 15 and max(tops) == 40
    assert RandomCrop(50, 96, top=0.25)(marked, seeded())["left"].min() == 10


def test_crop_of_a_small_image(sample):
    with pytest.raises(ValueError, match="plane: 60x96 pixels are too few for a crop of 64x96"):
        RandomCrop(64, 96)(sample)


def test_flip(sample):
    out = RandomVerticalFlip(1.0)(sample)
    assert torch.equal(out["disparity"], sample["disparity"].flip(1))
    assert RandomVerticalFlip(0.0)(sample) is sample


def test_scale_multiplies_disparities_by_the_ratio_of_widths(sample):
    whole = {
        **sample,
        "disparity": torch.full((1, 60, 96), 7.0),
        "valid": torch.ones(1, 60, 96) > 0,
    }
    for seed in range(5):
        out = RandomScale(-0.5, 0.5, stretch=0.3)(whole, seeded(seed))
        width = out["left"].shape[2]
        assert torch.allclose(out["disparity"], torch.tensor(7.0 * width / 96))
    assert torch.equal(resize(whole, 30, 96)["disparity"], torch.full((1, 30, 96), 7.0))


def test_scale_leaves_room_for_the_crop(sample):
    for probability in (0.0, 1.0):
        out = RandomScale(-2, -1, probability=probability, height=70, width=64)(sample, seeded())
        assert out["left"].shape[1] >= 70 and out["left"].shape[2] >= 64


def test_resize_mixes_no_foreground_with_background(sample):
    disparity = torch.full((1, 60, 96), 5.0)
    disparity[:, 20:40, 30:60] = 50.0
    whole = {**sample, "disparity": disparity, "valid": torch.ones(1, 60, 96) > 0}
    for size in ((90, 144), (37, 61)):
        out = resize(whole, *size)["disparity"] * 96 / size[1]
        assert (((out - 5).abs() < 1e-4) | ((out - 50).abs() < 1e-4)).all()


def test_extra_maps_go_along(sample):
    out = recipe("strong", 40, 64)({**sample, "occluded": sample["valid"]}, seeded(7))
    assert torch.equal(out["occluded"], out["valid"]) and out["occluded"].dtype == torch.bool


def test_colour_is_the_published_one(sample):
    only = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "lighting": 0.0}
    assert torch.allclose(ColourJitter(**only)(sample)["left"], sample["left"])
    dark = ColourJitter(**{**only, "brightness": 0.4})(sample, seeded(1))
    ratio = dark["left"] / sample["left"]
    assert ratio.std() < 1e-6 and 0.6 <= ratio.mean() < 1
    flat = ColourJitter(**{**only, "contrast": 0.4})(sample, seeded(1))
    assert flat["left"].std() < sample["left"].std()
    grey = ColourJitter(**{**only, "saturation": 0.4})(sample, seeded(1))
    assert grey["left"].std(dim=0).mean() < sample["left"].std(dim=0).mean()
    lit = ColourJitter(**{**only, "lighting": 0.1})(sample, seeded(1))
    moved = (lit["left"] - sample["left"]).flatten(1)
    assert moved.std(dim=1).max() < 1e-5 and 0 < moved.abs().max() < 0.2


def test_colour_is_drawn_apart_or_together(sample):
    same = {**sample, "right": sample["left"]}
    apart = ColourJitter(asymmetric=1.0)(same, seeded())
    assert not torch.allclose(apart["left"], apart["right"], atol=1e-3)
    together = ColourJitter(asymmetric=0.0)(same, seeded())
    assert torch.equal(together["left"], together["right"])


def test_erase_fills_the_right_image_with_its_mean(sample):
    out = RandomErase(1.0, 8, 8)(sample, seeded(2))
    assert torch.equal(out["left"], sample["left"])
    changed = (out["right"] != sample["right"]).any(dim=0)
    assert 0 < changed.sum() <= 128
    mean = sample["right"].mean(dim=(1, 2))
    assert torch.allclose(out["right"][:, changed], mean[:, None].expand(3, int(changed.sum())))
    assert RandomErase(0.0)(sample) is sample


def test_recipe_names():
    assert recipe("none", 1, 1) is None
    assert isinstance(recipe("fadnet", 8, 8), Compose)
    with pytest.raises(ValueError, match="augmentation 'fadnett' is none of crop, fadnet, kitti"):
        recipe("fadnett", 8, 8)
    with pytest.raises(ValueError, match="empty"):
        recipe("crop", 0, 8)
