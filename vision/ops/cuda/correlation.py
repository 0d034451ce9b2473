"""Correlation along rows, in groups and in a square window: ``kernels/correlation.cu``.

Forwards, rows of many channels have kernels of their own: half types on tensor cores,
``kernels/banded.cu``, and float32, ``kernels/sliced.cu``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._kernels import TYPES, Argument, Arguments, launch

KERNELS = (
    "correlation_forward<float, 1, 2>",
    "correlation_forward<{}, 4, 1>",
    "correlation_backward<{}, 1, 16, 32>",
    "correlation_backward<{}, 2, 8, 32>",
    "correlation_backward<{}, 4, 4, 32>",
    "correlation_backward<{}, 4, 1, 16>",
)
BANDED = ("banded_forward<Half>", "banded_forward<BFloat>")
SLICED = ("sliced_forward",)

_DEPTH = 16  # of a thread
_MANY = 1024  # pieces of 32 columns: enough for large tiles to keep a GPU busy
_DEEP = 64  # channels: beyond, threads share them


def forward(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """(B, C, H, W) twice to (B, displacements, H, W)."""
    batch, _, height, width = left.shape
    out = left.new_empty(batch, displacements, height, width)
    return _forward(left, right, out, 1, 1, displacements, 0, False)


def backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int
) -> tuple[Tensor, Tensor]:
    """Gradients of both images, from (B, displacements, H, W)."""
    return _backward(gradient, left, right, 1, 1, displacements, 0, False)


def grouped_forward(left: Tensor, right: Tensor, displacements: int, groups: int) -> Tensor:
    """(B, C, H, W) twice to (B, groups, displacements, H, W)."""
    batch, _, height, width = left.shape
    out = left.new_empty(batch, groups, displacements, height, width)
    return _forward(left, right, out, groups, 1, displacements, 0, False)


def grouped_backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int, groups: int
) -> tuple[Tensor, Tensor]:
    """Gradients of both images, from (B, groups, displacements, H, W)."""
    return _backward(gradient, left, right, groups, 1, displacements, 0, False)


def square_forward(left: Tensor, right: Tensor, radius: int) -> Tensor:
    """(B, C, H, W) twice to (B, side², H, W), with a side of 2 radius + 1."""
    (batch, _, height, width), side = left.shape, 2 * radius + 1
    out = left.new_empty(batch, side * side, height, width)
    return _forward(left, right, out, 1, side, side, radius, True)


def square_backward(
    gradient: Tensor, left: Tensor, right: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    """Gradients of both images, from (B, side², H, W)."""
    side = 2 * radius + 1
    return _backward(gradient, left, right, 1, side, side, radius, True)


def _forward(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    groups: int,
    lines: int,
    count: int,
    shift: int,
    reverse: bool,
) -> Tensor:
    """To `out`, which holds (B, groups, lines, count, H, W)."""
    batch, channels, height, width = left.shape
    channels //= groups
    if out.numel() == 0 or channels == 0:
        return out.zero_()
    pieces, rows = -(-width // 32), height * lines * batch * groups
    many = pieces * rows >= _MANY and (pieces % 2 == 0 or pieces > 4)
    features: Arguments = left, *left.stride(), right, *right.stride(), out
    sizes = batch, groups, channels, height, width, count, lines, shift, int(reverse)
    shallow = channels <= 16 and pieces > 1
    file, threads, reach, unit = "correlation", 128, 64, _DEPTH
    if shallow:
        kernel, columns = f"correlation_forward<{TYPES[left.dtype]}, 4, 1>", 128
    elif left.dtype != torch.float32:
        file, kernel, columns, unit = "banded", f"banded_forward<{TYPES[left.dtype]}>", 32, 4
    elif channels <= _DEEP and many:
        kernel, columns = "correlation_forward<float, 1, 2>", 64
    else:
        file, kernel, columns, reach = "sliced", "sliced_forward", 40, 48
    units = -(-count // (-(-count // reach) * unit))  # of displacements that a block takes
    if file == "sliced":  # 40 threads for each unit, in whole warps
        threads = 32 * -(-40 * units // 32)
    launch(
        file,
        kernel,
        (-(-width // columns) * -(-count // (units * unit)), height * lines, batch * groups),
        threads,
        *features,
        *sizes,
        units if unit == _DEPTH else units * unit,
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
    elif channels <= 32:
        subtiles, bundles, step = 4, 4, 32
    else:  # 64 or 128 channels at once, whichever wastes fewer
        subtiles, bundles, step = (2, 8, 32) if -(-channels // 64) % 2 else (1, 16, 32)
    whole = all(x.stride(3) == 1 and not any(s % 4 for s in x.stride()[:3]) for x in grads)
    tiles = 2 * -(-width // (32 * subtiles)) * -(-channels // (8 * bundles))
    views: list[Argument] = []
    for x in (left, right, *grads):
        views += [x, *x.stride()]
    launch(
        "correlation",
        f"correlation_backward<{TYPES[left.dtype]}, {subtiles}, {bundles}, {step}>",
        (tiles, height, batch * groups),
        8 * subtiles * bundles,
        gradient.to(left.dtype).contiguous(),
        *views,
        *(batch, groups, channels, height, width, count, lines, shift, int(reverse)),
        int(whole and width % 4 == 0),
    )
    return grads
