"""Which views are worth matching: scores of view pairs, from sparse points or from poses alone.

A score sums, over the points that two views share, how well the angle between their two rays suits
matching: ``exp(-(angle - 5)^2 / (2 s^2))`` in degrees, s = 1 up to 5 degrees and 10 beyond (as in
MVSNet's COLMAP export).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .cameras import camera_centre, invert_intrinsics, invert_pose, project
from .scene import Scene, derive_range

__all__ = ["pair_by_poses", "pairs_from_scores", "score_by_points"]

_BEST_ANGLE = 5.0  # degrees
_SIGMA_BELOW, _SIGMA_ABOVE = 1.0, 10.0
_GRID = 8  # imagined points along each side of a photograph
_DEPTHS = 4


def _angle_score(cosine: Tensor) -> Tensor:
    """Return how well an angle between two rays, given by its cosine, suits matching: 0 to 1."""
    angle = torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))
    sigma = torch.where(angle <= _BEST_ANGLE, _SIGMA_BELOW, _SIGMA_ABOVE)
    return torch.exp(-((angle - _BEST_ANGLE) ** 2) / (2 * sigma**2))


def score_by_points(points: Tensor, tracks: Sequence[Tensor], centres: Tensor) -> Tensor:
    """Score all pairs of V views by those of points (N, 3) that both see.

    Tracks are for each view the indices of its points, centres (V, 3) where the cameras stand.

    Returns:
        (V, V) float64, symmetric, 0 on the diagonal.
    """
    count, points, centres = len(tracks), points.double(), centres.double()
    tracks = [torch.unique(track) for track in tracks]
    scores = torch.zeros(count, count, dtype=torch.float64)
    seen = torch.zeros(len(points), dtype=torch.bool)
    for a in range(count):
        seen.zero_()
        seen[tracks[a]] = True
        for b in range(a + 1, count):
            shared = points[tracks[b][seen[tracks[b]]]]
            if len(shared):
                scores[a, b] = _angle_score(_cosine(shared, centres[a], centres[b])).sum()
    return scores + scores.T


def pair_by_poses(scene: Scene) -> Scene:
    """Return the scene with pairs scored by its cameras alone.

    In place of sparse points, points are imagined on a grid over each photograph, at a few depths
    spread over its range evenly in inverse depth. Another view shares those that fall into it.
    """
    views = scene.views
    intrinsics = torch.stack([view.intrinsics for view in views]).double()
    extrinsics = torch.stack([view.extrinsics for view in views]).double()
    sizes = _sizes(scene)
    centres, limits = camera_centre(extrinsics), torch.tensor(sizes, dtype=torch.float64)
    scores = torch.zeros(len(views), len(views), dtype=torch.float64)
    for a, view in enumerate(views):
        reach = view.depth_range or derive_range(scene, a)[0]
        points = _imagined(intrinsics[a], extrinsics[a], *sizes[a], *reach)
        pixels, depth = project(points[None], intrinsics, extrinsics)
        inside = (pixels >= -0.5) & (pixels <= limits.flip(1)[:, None] - 0.5)
        shared = (depth > 0) & inside.all(-1)
        cosine = _cosine(points[None], centres[a], centres[:, None])
        scores[a] = (_angle_score(cosine) * shared).sum(1)
    scene.pairs = pairs_from_scores(((scores + scores.T) / 2).fill_diagonal_(0))
    return scene


def pairs_from_scores(scores: Tensor, count: int = 10) -> list[list[tuple[int, float]]]:
    """Return for each view the ``count`` best sources with a positive score, best first."""
    pairs = []
    for row in scores.tolist():
        # Equal scores go by the index, on every machine alike.
        order = sorted(range(len(row)), key=lambda view: (-row[view], view))[:count]
        pairs.append([(view, row[view]) for view in order if row[view] > 0])
    return pairs


def _sizes(scene: Scene) -> list[tuple[int, int]]:
    """Sizes of the photographs; a damaged one, which is told when it is read, has the first's."""
    sizes: dict[int, tuple[int, int]] = {}
    for index, view in enumerate(scene.views):
        try:
            sizes[index] = view.size or scene.size(index)
        except (ValueError, OSError) as error:
            damage = error
    if not sizes:
        raise damage
    return [sizes.get(index, next(iter(sizes.values()))) for index in range(len(scene))]


def _imagined(
    k: Tensor, e: Tensor, height: int, width: int, least: float, greatest: float
) -> Tensor:
    y = torch.linspace(0, height - 1, _GRID, dtype=torch.float64)
    x = torch.linspace(0, width - 1, _GRID, dtype=torch.float64)
    y, x = torch.meshgrid(y, x, indexing="ij")
    pixels = torch.stack([x, y, torch.ones_like(x)], -1).view(-1, 3)
    depths = 1 / torch.linspace(1 / least, 1 / greatest, _DEPTHS, dtype=torch.float64)
    local = (pixels @ invert_intrinsics(k).T)[None] * depths[:, None, None]
    pose = invert_pose(e)
    return (local.view(-1, 3) @ pose[:3, :3].T) + pose[:3, 3]


def _cosine(points: Tensor, a: Tensor, b: Tensor) -> Tensor:
    to_a = torch.nn.functional.normalize(points - a, dim=-1)
    to_b = torch.nn.functional.normalize(points - b, dim=-1)
    return (to_a * to_b).sum(-1)
