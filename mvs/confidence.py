"""How sure a depth map is, whatever it was made by: from the photographs and the map alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ..vision.windows import moments
from .classical import SourceCorrelation

__all__ = ["depth_confidence"]

_WINDOW = 9
_ROUGH = 4.0  # how fast confidence falls with the deviation of log depth around a pixel


@torch.no_grad()
def depth_confidence(
    images: Tensor, intrinsics: Tensor, extrinsics: Tensor, depth: Tensor
) -> Tensor:
    """Confidence in a depth map: where views agree in what they show, and neighbours in depth.

    With c the normalised cross-correlation of windows at the depth, in the mean of the better half
    of the sources, and s the standard deviation of log depth in a window, it is
    (1 + c) / 2 exp(-4 s). It ranks pixels; it is no probability.

    Args:
        images: (V, 3, H, W), RGB in [0, 1], the depth map's view first, V at least 2.
        intrinsics: (V, 3, 3), pixels.
        extrinsics: (V, 4, 4), world to camera.
        depth: (H, W), positive, in the cameras' unit.

    Returns:
        (H, W) in [0, 1].
    """
    depth = depth.float()
    alike = SourceCorrelation(images, intrinsics, extrinsics, (_WINDOW,)).score(1 / depth)
    logarithm = depth.log()[None, None]
    rough = moments(logarithm - logarithm.mean(), _WINDOW)[1].sqrt()[0, 0]
    return ((1 + alike.clamp(-1, 1)) / 2 * torch.exp(-_ROUGH * rough)).clamp(0, 1)
