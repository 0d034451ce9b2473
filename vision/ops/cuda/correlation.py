"""Correlation along rows, in groups and in a square window: ``kernels/correlation.cu``."""

from __future__ import annotations

import torch
from torch import Tensor

from .._kernels import TYPES, launch

KERNELS = (
    "correlation_forward<{}, 1>",
    "correlation_forward<{}, 4>",
    "correlation_backward<{}, 1, 16, 32>",
    "correlation_backward<{}, 4, 4, 32>",
    "correlation_backward<{}, 4, 1, 16>",
)

_REACH = 64  # displacements that a block takes at most
_DEPTH = 16  # of a thread


def forward(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    return _forward(left, right, 1, 1, displacements, 0, False)[:, 0, 0]


def backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int
) -> tuple[Tensor, Tensor]:
    return _backward(gradient, left, right, 1, 1, displacements, 0, False)


def grouped_forward(left: Tensor, right: Tensor, displacements: int, groups: int) -> Tensor:
    return _forward(left, right, groups, 1, displacements, 0, False)[:, :, 0]


def grouped_backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int, groups: int
) -> tuple[Tensor, Tensor]:
    return _backward(gradient, left, right, groups, 1, displacements, 0, False)


def square_forward(left: Tensor, right: Tensor, radius: int) -> Tensor:
    side = 2 * radius + 1
    return _forward(left, right, 1, side, side, radius, True).flatten(1, 3)


def square_backward(
    gradient: Tensor, left: Tensor, right: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    side = 2 * radius + 1
    return _backward(gradient, left, right, 1, side, side, radius, True)


def _forward(
    left: Tensor,
    right: Tensor,
    groups: int,
    lines: int,
    count: int,
    shift: int,
    reverse: bool,
) -> Tensor:
    """(B, groups, lines, count, H, W)."""
    batch, channels, height, width = left.shape
    out = left.new_empty(batch, groups, lines, count, height, width)
    channels //= groups
    if out.numel() == 0 or channels == 0:
        return out.zero_()
    subtiles = 4 if channels <= 16 and width > 32 else 1
    blocks = -(-count // _REACH)
    depths = -(-count // (blocks * _DEPTH))
    steps = -(-count // (depths * _DEPTH))
    launch(
        "correlation",
        f"correlation_forward<{TYPES[left.dtype]}, {subtiles}>",
        (-(-width // (32 * subtiles)) * steps, height * lines, batch * groups),
        128,
        *(left, *left.stride(), right, *right.stride(), out),
        *(batch, groups, channels, height, width, count, lines, shift, int(reverse), depths),
    )
    return out


def _backward(
    gradient: Tensor,
    left: Tensor,
    right: Tensor,
    groups: int,
    lines: int,
    count: int,
    shift: int,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    batch, channels, height, width = left.shape
    grads = torch.empty_like(left), torch.empty_like(right)
    channels //= groups
    if left.numel() == 0:
        return grads
    if channels <= 8:
        subtiles, bundles, step = 4, 1, 16
    else:
        subtiles, bundles, step = (4, 4, 32) if channels <= 32 else (1, 16, 32)
    whole = all(x.stride(3) == 1 and not any(s % 4 for s in x.stride()[:3]) for x in grads)
    tiles = 2 * -(-width // (32 * subtiles)) * -(-channels // (8 * bundles))
    views = (part for x in (left, right, *grads) for part in (x, *x.stride()))
    launch(
        "correlation",
        f"correlation_backward<{TYPES[left.dtype]}, {subtiles}, {bundles}, {step}>",
        (tiles, height, batch * groups),
        8 * subtiles * bundles,
        *(gradient.to(left.dtype).contiguous(), *views),
        *(batch, groups, channels, height, width, count, lines, shift, int(reverse)),
        int(whole and width % 4 == 0),
    )
    return grads
