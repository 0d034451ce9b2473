"""Scores of view pairs and derived ranges."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from vizoo.datasets.mvs import Scene, View, derive_range
from vizoo.datasets.mvs.cameras import camera_centre, range_from_cameras, range_from_points
from vizoo.datasets.mvs.matching import Features, depths_in_common, range_from_features
from vizoo.datasets.mvs.pairs import (
    _angle_score,
    pair_by_poses,
    pairs_from_scores,
    score_by_points,
)
from vizoo.datasets.mvs.scene import sparse_points
from vizoo.datasets.worlds.views import WorldViews


def poses_at(*centres):
    poses = torch.eye(4).repeat(len(centres), 1, 1)
    poses[:, :3, 3] = -torch.tensor(centres, dtype=torch.float32)
    return poses


def test_the_angles_score_is_the_published_one():
    angles = torch.tensor([5.0, 4.0, 3.0, 15.0, 25.0], dtype=torch.float64)
    expected = [1.0, math.exp(-0.5), math.exp(-2.0), math.exp(-0.5), math.exp(-2.0)]
    assert _angle_score(torch.cos(torch.deg2rad(angles))).tolist() == pytest.approx(expected)


def test_points_are_counted_for_views_that_share_them():
    centres = torch.tensor(
        [[0.0, 0, 0], [2 * math.tan(math.radians(2.5)) * 10, 0, 0], [50.0, 0, 0]]
    )
    points = torch.tensor([[centres[1, 0] / 2, 0, 10.0], [1000.0, 0, 10]])
    tracks = [torch.tensor([0]), torch.tensor([0, 0]), torch.tensor([1])]
    scores = score_by_points(points, tracks, centres)
    assert scores[0, 1] == pytest.approx(1.0) and scores[0, 2] == 0
    assert torch.equal(scores, scores.T) and not scores.diagonal().any()


def test_poses_alone_prefer_overlap_and_some_baseline():
    extrinsics = poses_at([0.0, 0, 0], [0.01, 0, 0], [1.0, 0, 0], [40.0, 0, 0])
    intrinsics = torch.tensor([[100.0, 0, 50], [0, 100, 50], [0, 0, 1]])
    image = torch.zeros(3, 101, 101)
    views = [View(f"{n}", image, intrinsics, e, (8.0, 12.0)) for n, e in enumerate(extrinsics)]
    pairs = pair_by_poses(Scene("s", views, [[] for _ in views], "folder")).pairs
    assert pairs[0][0][0] == 2 and pairs[3] == []  # neither the same place nor the far one
    scores = dict(pairs[0])
    assert scores[1] < 0.01 * scores[2]


def test_both_scores_agree_on_a_scene(scene):
    points, _, tracks = sparse_points(scene)
    extrinsics = torch.stack([view.extrinsics for view in scene.views])
    by_points = pairs_from_scores(score_by_points(points, tracks, camera_centre(extrinsics)))
    assert [pair[0][0] for pair in by_points] == [pair[0][0] for pair in scene.pairs]


def test_equal_scores_go_by_index_and_the_count_is_kept():
    assert pairs_from_scores(torch.ones(4, 4).fill_diagonal_(0), 2)[3] == [(0, 1.0), (1, 1.0)]


def test_ranges_from_points():
    depths = torch.cat([torch.arange(1.0, 102.0), torch.tensor([-5.0, 0.0])])
    assert range_from_points(depths) == (2.0, 100.0)
    assert range_from_points(torch.ones(9)) is None and range_from_points(torch.ones(20)) is None


def test_ranges_from_converging_and_from_parallel_cameras(scene):
    extrinsics = torch.stack([view.extrinsics for view in scene.views])
    (least, greatest), how = range_from_cameras(extrinsics, 0)
    middle = scene.depth(0)[0].median().item()  # there a generated ring looks
    assert least * 3 == pytest.approx(middle, rel=0.1) and "meet" in how
    many = [[0.01 * step, 0, 0] for step in range(101)]  # hand-held, with small steps
    (least, greatest), how = range_from_cameras(poses_at(*many), 0)
    assert (least, greatest) == pytest.approx((1.0, 30.0)) and "middle distance" in how


def test_ranges_from_features_in_common():
    """Where the layout tells no range, and cameras that stand close together would mislead."""
    scene = WorldViews(1, 240, 320, views=4, seed=3, layouts=["room"]).scene(0)
    depth, valid = scene.depth(0)
    near, far = torch.quantile(depth[valid], torch.tensor([0.05, 0.95])).tolist()
    views = [replace(view, depth_range=None) for view in scene.views]
    told = Scene("s", views, scene.pairs, "folder")
    (least, greatest), how = told.depth_range(0)
    assert "features in common" in how
    assert 0.3 * near < least < near and far < greatest < 3 * far
    images = [view.image for view in views]
    grey = [
        replace(view, image=torch.full_like(i, 0.5)) for view, i in zip(views, images, strict=True)
    ]
    _, how = Scene("s", grey, scene.pairs, "folder").depth_range(0)
    assert how.startswith("guessed")


def test_depths_of_matched_features_are_exact():
    """Those that lie off their epipolar line, behind a camera or without parallax are left out."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(60, 3, generator=generator, dtype=torch.float64) * 2 - 1
    points[:, 2] = points[:, 2] + 4
    points[50:, 2] = -points[50:, 2]
    words = torch.randint(0, 256, (60, 128), generator=generator, dtype=torch.uint8)
    pose, other = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    turn = math.radians(20)
    other[0, 0] = other[2, 2] = math.cos(turn)
    other[0, 2], other[2, 0] = math.sin(turn), -math.sin(turn)
    other[:3, 3] = torch.tensor([0.5, 0.1, 0.3])
    views = []
    for extrinsics in (pose, other):
        seen = points @ extrinsics[:3, :3].T + extrinsics[:3, 3]
        views.append(Features(seen / seen[:, 2:], words, 500.0))
    views[1].rays[40:50, 1] += 0.1
    depths, bounds = depths_in_common(*views, pose, other)
    torch.testing.assert_close(depths.sort().values, points[:40, 2].sort().values)
    assert not len(bounds) and not len(depths_in_common(views[0], views[0], pose, pose)[0])
    assert range_from_features(depths[:19], bounds) is None
    empty = Features(points[:0], words[:0], 1.0)
    assert not len(depths_in_common(views[0], empty, pose, other)[0])


def test_what_is_too_far_for_parallax_widens_the_range():
    """A camera that moves 0.3 to the side: most of what it sees lies beyond 100."""
    generator = torch.Generator().manual_seed(1)
    depth = torch.cat([torch.linspace(2, 4, 60), torch.linspace(100, 1000, 540)]).double()
    rays = torch.rand(600, 3, generator=generator, dtype=torch.float64) - 0.5
    rays[:, 2] = 1
    words = torch.randint(0, 256, (600, 128), generator=generator, dtype=torch.uint8)
    pose, other = torch.eye(4), torch.eye(4)
    other[0, 3] = 0.3
    seen = rays * depth[:, None] + torch.tensor([0.3, 0, 0], dtype=torch.float64)
    views = Features(rays, words, 1000.0), Features(seen / seen[:, 2:], words, 1000.0)
    depths, bounds = depths_in_common(*views, pose, other)
    assert len(depths) == 60 and len(bounds) == 540
    torch.testing.assert_close(bounds, torch.full_like(bounds, 0.3 * 1000 / 8))
    least, greatest = range_from_features(depths, bounds)
    assert 1.4 < least < 2 and 37 < greatest < 60


def test_cameras_at_one_place():
    with pytest.raises(ValueError, match="all cameras stand at one place"):
        range_from_cameras(poses_at([1, 2, 3], [1, 2, 3]), 0)
    view = View("a", torch.zeros(3, 4, 4), torch.eye(3), torch.eye(4))
    other = View("b", torch.zeros(3, 4, 4), torch.eye(3), torch.eye(4))
    with pytest.raises(ValueError, match="^scene s: all cameras"):
        derive_range(Scene("s", [view, other], [[], []], "folder"), 0)
