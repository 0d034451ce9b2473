"""Disparity, depth and points of a rectified pinhole pair."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["depth_to_points", "disparity_to_depth", "smooth_surface"]

_STEP, _RELATIVE = 0.75, 0.06  # pixels, and share of the disparity, by which a surface varies


def disparity_to_depth(
    disparity: Tensor, focal: float, baseline: float, doffs: float = 0.0
) -> Tensor:
    """Return depth = focal * baseline / (disparity + doffs).

    Args:
        disparity: any shape, pixels; not finite or not positive where unknown.
        focal: focal length, pixels.
        baseline: distance between the cameras, any unit.
        doffs: right principal point's x minus the left one's, pixels.

    Returns:
        Depth along the optical axis in the baseline's unit, same shape and type; 0 where the
        disparity is unknown or the point would lie at infinity or behind the camera.

    Example:
        >>> disparity_to_depth(torch.tensor([10.0, 0.0]), focal=500.0, baseline=0.1)
        tensor([5., 0.])
    """
    divisor = disparity + doffs
    known = torch.isfinite(disparity) & (disparity > 0) & (divisor > 0)
    # Ones where it is unknown, so that gradients stay finite there.
    return torch.where(known, focal * baseline / torch.where(known, divisor, 1), 0)


def depth_to_points(
    depth: Tensor, focal: float, cx: float, cy: float, focal_y: float | None = None
) -> Tensor:
    """Return the 3D point of every pixel in the camera's frame: x right, y down, z forward.

    Args:
        depth: (B, 1, H, W), any unit.
        focal: horizontal focal length, pixels.
        cx: of the principal point, pixels; the first pixel's centre is (0, 0).
        cy: of the principal point, pixels.
        focal_y: vertical focal length, pixels; by default the horizontal one.

    Returns:
        (B, 3, H, W), in the unit of the depth; the origin where the depth is 0.

    Raises:
        ValueError: the depth has another shape.
    """
    if depth.ndim != 4 or depth.shape[1] != 1:
        raise ValueError(f"depth must have shape (B, 1, H, W), got {tuple(depth.shape)}")
    height, width = depth.shape[-2:]
    x = (torch.arange(width, device=depth.device, dtype=depth.dtype) - cx) / focal
    y = (torch.arange(height, device=depth.device, dtype=depth.dtype) - cy) / (focal_y or focal)
    return torch.cat([depth * x, depth * y[:, None], depth], dim=1)


def smooth_surface(disparity: Tensor) -> Tensor:
    """Say where a disparity map is a surface rather than a step between two.

    Networks blur the step between foreground and background over a few pixels; as points these fly
    freely in space. A pixel counts as a step where the disparities of its 3x3 neighbourhood differ
    by more than 0.75 pixels plus 0.06 times its own.

    Args:
        disparity: (B, 1, H, W), pixels; not positive where unknown (left out of the comparison).

    Returns:
        (B, 1, H, W) bool: known and not on a step.
    """
    known = torch.isfinite(disparity) & (disparity > 0)
    pool = torch.nn.functional.max_pool2d
    highest = pool(torch.where(known, disparity, -torch.inf), 3, stride=1, padding=1)
    lowest = -pool(torch.where(known, -disparity, -torch.inf), 3, stride=1, padding=1)
    return known & (highest - lowest <= _STEP + _RELATIVE * disparity)
