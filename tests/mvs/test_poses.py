"""Poses that are a little off: brought nearer to the truth, left where nothing is known."""

import math

import pytest
import torch

from vizoo.datasets.mvs.cameras import relative_pose
from vizoo.datasets.mvs.transforms import PoseError
from vizoo.mvs import poses
from vizoo.mvs.classical import plane_sweep
from vizoo.mvs.poses import refine_poses


def views_of(sample):
    return [sample[name] for name in ("images", "intrinsics", "extrinsics")]


def turned(first, second):
    """By how many degrees each source of the second stands otherwise, seen from the reference."""
    one, other = (relative_pose(x[:1].double(), x[1:].double())[:, :3, :3] for x in (first, second))
    between = one @ other.mT
    sine = (between - between.mT).flatten(1).norm(dim=1) / math.sqrt(8)
    return sine.asin() * 180 / math.pi


@pytest.fixture(scope="module")
def depth(textured_views):
    truth, known = textured_views["depth"][0], textured_views["valid"][0]
    return torch.where(known, truth, truth[known].median())


@pytest.fixture(scope="module", params=[1, 2, 4, 5])
def off(request, textured_views):
    return PoseError(0.2, 0.005)(textured_views, torch.Generator().manual_seed(request.param))


def test_poses_come_nearer_to_the_truth(textured_views, off, depth):
    before = turned(off["extrinsics"], textured_views["extrinsics"])
    refined = refine_poses(*views_of(off), depth)
    after = turned(refined, textured_views["extrinsics"])
    assert after.mean() < 0.5 * before.mean()
    assert torch.equal(refined[0], off["extrinsics"][0]) and refined.dtype == torch.float32
    rotation = refined[:, :3, :3]
    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(3).expand_as(rotation))


def test_rough_depth_will_do(textured_views, off):
    limits = tuple(textured_views["depth_range"].tolist())
    swept, _ = plane_sweep(*views_of(off), limits, smooth=True)
    before = turned(off["extrinsics"], textured_views["extrinsics"])
    after = turned(refine_poses(*views_of(off), swept[::2, ::2]), textured_views["extrinsics"])
    assert after.mean() < 0.8 * before.mean()


@pytest.mark.parametrize("error", [None, 3])
def test_right_poses_stay(textured_views, depth, error):
    views = views_of(textured_views)
    if error is not None:  # of about 0.001 degrees
        generator = torch.Generator().manual_seed(error)
        views[2] = PoseError(0.2, 0.005)(textured_views, generator)["extrinsics"]
    assert torch.equal(refine_poses(*views, depth), views[2])


def test_a_pixel_that_is_none_leaves_poses_alone(off, depth):
    images, intrinsics, extrinsics = views_of(off)
    images = images.clone()
    images[0, :, 40, 60] = torch.nan
    assert torch.equal(refine_poses(images, intrinsics, extrinsics, depth), extrinsics)


def test_autocast_changes_nothing(off, depth):
    refined = refine_poses(*views_of(off), depth)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(refine_poses(*views_of(off), depth), refined)


def test_what_depth_explains_is_not_the_poses(textured_views, depth, monkeypatch):
    views = views_of(textured_views)
    turns = []
    for held in (1e-3, 1e6):  # depth may move, or may not
        monkeypatch.setattr(poses, "_HELD", held)
        turns.append(turned(refine_poses(*views, 1.03 * depth), views[2]).mean())
    assert turns[0] < 0.5 * turns[1]


@pytest.mark.parametrize("kind", ["flat", "noise", "small", "tiny"])
def test_where_images_tell_nothing_poses_stay(textured_views, depth, kind):
    images, intrinsics, extrinsics = views_of(textured_views)
    generator = torch.manual_seed(0)
    if kind == "flat":
        images = torch.full_like(images, 0.5)
    if kind == "noise":
        images = torch.rand(images.shape, generator=generator)
    if kind in ("small", "tiny"):
        side = 12 if kind == "small" else 2
        images, depth = images[..., :side, :side], depth[:side, :side]
    refined = refine_poses(images, intrinsics, extrinsics, depth)
    assert turned(refined, extrinsics).max() < 0.2 and refined.isfinite().all()
    if kind in ("flat", "tiny"):
        torch.testing.assert_close(refined, extrinsics)


def test_types_and_sizes(off, depth):
    images, intrinsics, extrinsics = views_of(off)
    single = refine_poses(images, intrinsics, extrinsics, depth)
    double = refine_poses(*(x.double() for x in (images, intrinsics, extrinsics, depth)))
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-4, atol=1e-4)
    odd = refine_poses(images[..., :95, :127], intrinsics, extrinsics, depth[:95, :127])
    torch.testing.assert_close(odd, single, rtol=0, atol=2e-3)
    assert not torch.allclose(extrinsics, single, rtol=0, atol=2e-3)
