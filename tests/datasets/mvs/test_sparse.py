"""Points of a scene whose depth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vizoo.datasets.mvs import Scene, truth_points
from vizoo.datasets.mvs.scene import sparse_points


def test_points_of_the_truth(scene):
    points, colours = truth_points(scene)
    assert points.shape == colours.shape == (4 * 48 * 64, 3) and colours.dtype == torch.uint8
    sparse, _, tracks = sparse_points(scene)
    assert len(sparse) > 50 and len(tracks) == 4
    counts = torch.zeros(len(sparse)).index_add_(
        0, torch.cat(tracks), torch.ones(sum(map(len, tracks)))
    )
    assert counts.min() >= 2


def test_empty_truth_is_no_truth(scene):
    nothing = torch.zeros(1, 48, 64)
    views = [replace(view, truth=lambda: (nothing, nothing > 0)) for view in scene.views]
    with pytest.raises(ValueError, match="true depth maps are empty"):
        truth_points(Scene("dark", views, scene.pairs, scene.layout))


def test_no_points_without_truth(scene):
    views = [replace(view, truth=None) for view in scene.views]
    for points in (truth_points, sparse_points):
        with pytest.raises(ValueError, match="scene bare: no view has true depth"):
            points(Scene("bare", views, scene.pairs, scene.layout))
