"""Cost volumes that keep the features: ``kernels/volume.cu``."""

from __future__ import annotations

import torch
from torch import Tensor

from .._kernels import TYPES, Arguments, launch

KERNELS = ("concat_forward<{}, 4>", "concat_forward<{}, 1>", "concat_backward<{}>")

_PART = 32  # displacements of a thread


def forward(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """(B, C, H, W) twice to (B, 2 C, displacements, H, W)."""
    batch, channels, height, width = left.shape
    out = left.new_empty(batch, 2 * channels, displacements, height, width)
    if out.numel() == 0:
        return out
    wide = 4 if width % 4 == 0 else 1
    grid = -(-height * width // (128 * wide)), -(-displacements // _PART), batch * channels
    features: Arguments = left, *left.stride(), right, *right.stride(), out
    launch(
        "volume",
        f"concat_forward<{TYPES[left.dtype]}, {wide}>",
        grid,
        128,
        *features,
        *(batch, channels, height, width, displacements, _PART),
    )
    return out


def backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int
) -> tuple[Tensor, Tensor]:
    """Gradients of both images, from (B, 2 C, displacements, H, W)."""
    batch, channels, height, width = left.shape
    to_left, to_right = torch.empty_like(left), torch.empty_like(right)
    results: Arguments = to_left, *to_left.stride(), to_right, *to_right.stride()
    launch(
        "volume",
        f"concat_backward<{TYPES[left.dtype]}>",
        (-(-height * width // 128), 1, 2 * batch * channels),
        128,
        gradient.to(left.dtype).contiguous(),
        *results,
        *(batch, channels, height, width, displacements),
    )
    return to_left, to_right
