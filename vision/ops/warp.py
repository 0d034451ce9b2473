"""Sampling the right view at the places a disparity map points to."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["warp_by_disparity"]


def warp_by_disparity(
    image: Tensor, disparity: Tensor, *, padding: str = "border", align_corners: bool = True
) -> Tensor:
    """Samples ``image`` at (x - disparity, y), bilinearly.

    Args:
        image: right view, (B, C, H, W).
        disparity: (B, 1, H, W), pixels.
        padding: ``"border"`` repeats the edge, ``"zeros"`` reads 0 outside.
        align_corners: False reproduces the published networks' skew: the position really read is
            ``((x - d) * W / (W - 1) - 0.5, y * H / (H - 1) - 0.5)``.

    Returns:
        (B, C, H, W), the type of ``image``.
    """
    height, width = image.shape[-2:]
    disparity = disparity.float()
    x = torch.arange(width, device=image.device, dtype=disparity.dtype)
    y = torch.arange(height, device=image.device, dtype=disparity.dtype)
    x = (x - disparity[:, 0]) * (2 / max(width - 1, 1)) - 1
    y = (y * (2 / max(height - 1, 1)) - 1)[:, None].expand_as(x)
    grid = torch.stack((x, y), dim=-1)
    sampled = F.grid_sample(
        image.float(), grid, mode="bilinear", padding_mode=padding, align_corners=align_corners
    )
    return sampled.to(image.dtype)
