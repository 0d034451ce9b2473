"""Points of a scene whose depth is known: all of them, or a few with the views that see them."""

from __future__ import annotations

import torch
from torch import Tensor

from ...vision.io.images import to_bytes
from .cameras import lift, project
from .scene import Scene

__all__ = ["sparse_points", "truth_points"]

_PER_VIEW = 200  # about how many sparse points begin in each view
_AGREE = 0.01  # relative difference of depth up to which a view sees a point


def truth_points(scene: Scene) -> tuple[Tensor, Tensor]:
    """Return the true points of all views, (N, 3) float32, and their colours (N, 3) uint8.

    Raises:
        ValueError: no view has true depth, or all of it is empty.
    """
    points, colours = [], []
    for index, view in enumerate(scene.views):
        known = scene.depth(index)
        if known is None:
            continue
        depth, valid = (each[0] for each in known)
        points.append(lift(depth, view.intrinsics, view.extrinsics)[valid])
        colours.append(torch.from_numpy(to_bytes(scene.image(index)))[valid])
    if not points:
        raise ValueError(f"scene {scene.name}: no view has true depth")
    if not any(len(part) for part in points):
        raise ValueError(f"scene {scene.name}: its true depth maps are empty, no pixel is known")
    return torch.cat(points), torch.cat(colours)


def sparse_points(scene: Scene) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return points that two views or more see, as structure from motion would find them.

    Returns:
        Points (N, 3) float32, their colours (N, 3) uint8, and for each view the indices of those
        that it sees, in order.
    """
    depths = [scene.depth(index) for index in range(len(scene))]
    kept_points, colours, seen = [], [], []
    for index, known in enumerate(depths):
        if known is None:
            continue
        height, width = known[0].shape[1:]
        step = max(1, int((height * width / _PER_VIEW) ** 0.5))
        grid = torch.zeros(height, width, dtype=torch.bool)
        grid[step // 2 :: step, step // 2 :: step] = True
        grid &= known[1][0]
        view = scene.views[index]
        points = lift(known[0][0], view.intrinsics, view.extrinsics)[grid]
        sees = torch.stack(
            [_sees(scene, other, depths[other], points) for other in range(len(scene))]
        )
        sees[index] = True
        kept = sees.sum(0) >= 2
        kept_points.append(points[kept])
        seen.append(sees[:, kept])
        colours.append(torch.from_numpy(to_bytes(scene.image(index)))[grid][kept])
    if not kept_points:
        raise ValueError(f"scene {scene.name}: no view has true depth")
    visible = torch.cat(seen, dim=1)
    tracks = [row.nonzero()[:, 0] for row in visible]
    return torch.cat(kept_points), torch.cat(colours), tracks


def _sees(scene: Scene, index: int, known: tuple | None, points: Tensor) -> Tensor:
    if known is None:
        return torch.zeros(len(points), dtype=torch.bool)
    view = scene.views[index]
    pixels, depth = project(points, view.intrinsics, view.extrinsics)
    height, width = known[0].shape[1:]
    x, y = pixels.round().long().unbind(-1)
    inside = (depth > 0) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    there = known[0][0][y.clamp(0, height - 1), x.clamp(0, width - 1)]
    return inside & ((there - depth).abs() < _AGREE * depth)
