"""A view's depth range where none is stated: from sparse points, or from where cameras stand."""

from __future__ import annotations

import torch
from torch import Tensor

from .cameras import camera_centre

__all__ = ["range_from_cameras", "range_from_points"]

_LEAST_POINTS = 10
_PERCENTILES = (0.01, 0.99)
_CONVERGING = (1 / 3, 3.0)  # times the distance at which the cameras look at the same place
_PARALLEL = (2.0, 60.0)  # times the baseline, for cameras that look in parallel


def range_from_points(depths: Tensor) -> tuple[float, float] | None:
    """Return the 1st and 99th percentile of the positive depths; None of fewer than ten."""
    depths = depths[depths > 0].double().sort().values
    if len(depths) < _LEAST_POINTS:
        return None
    least, greatest = (depths[int((len(depths) - 1) * share)].item() for share in _PERCENTILES)
    return (least, greatest) if least < greatest else None


def range_from_cameras(extrinsics: Tensor, index: int) -> tuple[tuple[float, float], str]:
    """Guess a view's range from all cameras' poses, (V, 4, 4).

    Where the viewing directions converge in front of the cameras, from a third to three times the
    distance of that place; else from 2 to 60 times the distance to the nearest other camera.

    Raises:
        ValueError: all cameras stand at one place.
    """
    extrinsics = extrinsics.double()
    centres, axes = camera_centre(extrinsics), extrinsics[:, 2, :3]
    apart = (centres - centres[index]).norm(dim=1)
    apart = apart[apart > 0]
    if not len(apart):
        raise ValueError(
            "all cameras stand at one place, so no depth can be measured; are the extrinsics right?"
        )
    # The place nearest to all axes: sum (I - a a^T) (x - c) = 0.
    across = torch.eye(3, dtype=torch.float64) - axes[:, :, None] * axes[:, None, :]
    system = across.sum(0)
    if torch.linalg.eigvalsh(system)[0] > 1e-3 * len(axes):
        place = torch.linalg.solve(system, (across @ centres[:, :, None]).sum(0))[:, 0]
        ahead = ((place - centres) * axes).sum(1)
        if (ahead > 0).all():
            middle = ahead[index].item()
            low, high = _CONVERGING
            return (middle * low, middle * high), (
                f"guessed: {low:.2g} to {high:g} times the distance at which the cameras' viewing "
                "directions meet"
            )
    baseline = apart.min().item()
    low, high = _PARALLEL
    return (baseline * low, baseline * high), (
        f"guessed: {low:g} to {high:g} times the distance to the nearest other camera"
    )
