"""Correlation of two feature maps along the scan line."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["correlation"]


def correlation(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """Correlates each left pixel x with the right pixels x, x - 1, … x - (displacements - 1).

    Args:
        left: features of the left view, (B, C, H, W).
        right: features of the right view, the same shape and type.
        displacements: how many displacements D, at least 1, in pixels of the feature map.

    Returns:
        (B, D, H, W): mean over channels of ``left[x] * right[x - d]``, 0 where x < d.
    """
    batch, channels, height, width = left.shape
    rows = F.pad(right, (displacements - 1, 0)).permute(0, 2, 1, 3)  # (B, H, C, W + D - 1)
    product = left.permute(0, 2, 3, 1) @ rows  # (B, H, W, W + D - 1)
    # Row x of the product holds its band from column x on: one element more per row shears it.
    sheared = F.pad(product.flatten(2), (0, width)).unflatten(2, (width, width + displacements))
    band = sheared[..., :displacements].flip(-1).permute(0, 3, 1, 2)
    return band / channels
