"""Multi-view stereo without a network: what learned ones are measured against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..datasets.mvs.cameras import invert_intrinsics, relative_pose

__all__ = ["plane_sweep"]

_GREY = (0.299, 0.587, 0.114)
_FLAT = 1e-6  # product of two deviations of brightness below which windows tell nothing


@torch.inference_mode()
def plane_sweep(
    images: Tensor,
    intrinsics: Tensor,
    extrinsics: Tensor,
    depth_range: tuple[float, float],
    planes: int = 96,
    window: int = 9,
) -> tuple[Tensor, Tensor]:
    """Depth of the first view by normalised cross-correlation on fronto-parallel planes.

    The planes of Collins ("A Space-Sweep Approach to True Multi-Image Matching", CVPR 1996),
    evenly spaced in inverse depth. A pixel's score is the mean of the better half of its sources',
    so that it may be hidden in some; the best plane is refined by a parabola.

    Args:
        images: (V, 3, H, W), RGB in [0, 1], V at least 2.
        intrinsics: (V, 3, 3), pixels.
        extrinsics: (V, 4, 4), world to camera.
        depth_range: least and greatest depth.
        planes: how many, at least 2.
        window: side of the square that is compared, odd, pixels.

    Returns:
        Depth (H, W) in the cameras' unit, and the score (H, W) in [-1, 1] of its plane.

    Raises:
        ValueError: fewer than two views or planes, no odd window, or a range that is none.
    """
    if not 0 < depth_range[0] < depth_range[1]:
        raise ValueError(f"depth range {depth_range[0]:g} to {depth_range[1]:g} is none")
    if len(images) < 2 or planes < 2 or window < 1 or window % 2 == 0:
        raise ValueError(
            f"plane sweep over {len(images)} views, {planes} planes, window {window}: want two "
            "views, two planes and an odd window at least"
        )
    near, far = 1 / depth_range[0], 1 / depth_range[1]
    grey = (images.float() * images.new_tensor(_GREY).view(3, 1, 1)).sum(1, keepdim=True)
    reference, sources = grey[:1], grey[1:]
    height, width = reference.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack((x, y, torch.ones_like(x))).flatten(1).to(images)
    poses = relative_pose(extrinsics[:1], extrinsics[1:]).to(images)
    turned = intrinsics[1:] @ poses[:, :3, :3] @ invert_intrinsics(intrinsics[0])
    directions, shifts = turned @ pixels, intrinsics[1:] @ poses[:, :3, 3:]  # (S, 3, N), (S, 3, 1)
    size = images.new_tensor([width, height]).view(2, 1)
    mean, variance = _moments(reference, window)
    scores = images.new_empty(planes, height, width)
    steps = torch.linspace(far, near, planes).tolist()
    for plane, inverse in enumerate(steps):
        points = directions + inverse * shifts
        ahead = points[:, 2:]
        at = points[:, :2] / ahead.clamp(min=1e-6)
        grid = ((2 * at + 1) / size - 1).mT.reshape(-1, height, width, 2)
        warped = F.grid_sample(sources, grid, align_corners=False)
        outside = (grid.abs().amax(-1) > 1) | (ahead.view(-1, height, width) <= 0)
        alike = _correlation(reference, mean, variance, warped, window)[:, 0]
        alike = alike.masked_fill(outside, -1)
        scores[plane] = alike.topk((len(alike) + 1) // 2, dim=0).values.mean(0)
    score, index = scores.max(0)
    before, after = (
        scores.gather(0, (index + step).clamp(0, planes - 1)[None])[0] for step in (-1, 1)
    )
    bend = 2 * score - before - after
    offset = torch.where(bend > 1e-6, (after - before) / (2 * bend.clamp(min=1e-6)), 0)
    offset = offset.clamp(-0.5, 0.5).masked_fill((index == 0) | (index == planes - 1), 0)
    inverse = far + (index + offset) * (near - far) / (planes - 1)
    return 1 / inverse, score


def _moments(picture: Tensor, window: int) -> tuple[Tensor, Tensor]:
    mean = _box(picture, window)
    return mean, (_box(picture**2, window) - mean**2).clamp(min=0)


def _correlation(
    reference: Tensor, mean: Tensor, variance: Tensor, others: Tensor, window: int
) -> Tensor:
    """Normalised cross-correlation of windows, (S, 1, H, W); 0 where one is flat."""
    other_mean, other_variance = _moments(others, window)
    covariance = _box(reference * others, window) - mean * other_mean
    deviations = (variance * other_variance).sqrt()
    return torch.where(deviations > _FLAT, covariance / deviations.clamp(min=_FLAT), 0)


def _box(picture: Tensor, window: int) -> Tensor:
    return F.avg_pool2d(picture, window, 1, window // 2, count_include_pad=False)
