"""Scores of view pairs and derived ranges."""

from __future__ import annotations

import math

import pytest
import torch

from vizoo.datasets.mvs import Scene, View, derive_range
from vizoo.datasets.mvs.cameras import camera_centre, range_from_cameras, range_from_points
from vizoo.datasets.mvs.pairs import (
    angle_score,
    pairs_from_scores,
    score_by_points,
    score_by_poses,
)
from vizoo.datasets.mvs.scene import sparse_points


def poses_at(*centres):
    poses = torch.eye(4).repeat(len(centres), 1, 1)
    poses[:, :3, 3] = -torch.tensor(centres, dtype=torch.float32)
    return poses


def test_the_angles_score_is_the_published_one():
    angles = torch.tensor([5.0, 4.0, 3.0, 15.0, 25.0], dtype=torch.float64)
    expected = [1.0, math.exp(-0.5), math.exp(-2.0), math.exp(-0.5), math.exp(-2.0)]
    assert angle_score(torch.cos(torch.deg2rad(angles))).tolist() == pytest.approx(expected)


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
    intrinsics = torch.tensor([[100.0, 0, 50], [0, 100, 50], [0, 0, 1]]).repeat(4, 1, 1)
    scores = score_by_poses(intrinsics, extrinsics, [(101, 101)] * 4, [(8.0, 12.0)] * 4)
    pairs = pairs_from_scores(scores)
    assert [source for source, _ in pairs[0]][0] == 2  # neither the same place nor the far one
    assert pairs[3] == [] and scores[0, 1] < 0.01 * scores[0, 2]


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
    (least, greatest), how = range_from_cameras(poses_at([0, 0, 0], [0.5, 0, 0], [2, 0, 0]), 0)
    assert (least, greatest) == (1.0, 30.0) and "nearest other camera" in how


def test_cameras_at_one_place():
    with pytest.raises(ValueError, match="all cameras stand at one place"):
        range_from_cameras(poses_at([1, 2, 3], [1, 2, 3]), 0)
    view = View("a", torch.zeros(3, 4, 4), torch.eye(3), torch.eye(4))
    other = View("b", torch.zeros(3, 4, 4), torch.eye(3), torch.eye(4))
    with pytest.raises(ValueError, match="^scene s: all cameras"):
        derive_range(Scene("s", [view, other], [[], []], "folder"), 0)
