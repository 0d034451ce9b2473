"""Correlation along epipolar lines: ``kernels/epipolar.cu``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._kernels import TYPES, launch

_PARTS = (3, 4, 8)  # of 32 channels, which a warp keeps in registers
KERNELS = tuple(f"epipolar_{way}<{{}}, {n}>" for way in ("forward", "backward") for n in _PARTS)
_CHANNELS = 32 * _PARTS[-1]  # at most
_LEVELS = 4  # of one launch
_WARPS, _PIXELS = 8, 32  # of a block


def refuses(reference: Tensor, pyramid: Sequence[Tensor], *lines: Tensor | int) -> str | None:
    """Too many channels, or float64, which says how exact lines are to be."""
    if reference.shape[1] > _CHANNELS:
        return f"no kernels for more than {_CHANNELS} channels"
    double = any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in lines)
    return "no kernels for lines in float64" if double else None


def forward(
    reference: Tensor,
    pyramid: Sequence[Tensor],
    base: Tensor,
    direction: Tensor,
    flow: Tensor,
    radius: int,
    memory: int,
) -> Tensor:
    """Correlations (B, views, levels (2 radius + 1), H, W) along the epipolar lines."""
    views, height, width = flow.shape[1:]
    planes = len(pyramid) * (2 * radius + 1)
    out = reference.new_empty(len(reference), views, planes, height, width)
    if out.numel() == 0 or reference.shape[1] == 0:
        return out.zero_()
    features = [_channels_last(level) for level in pyramid]
    nothing = [features[0].new_empty(0)] * len(features)
    blocks = -(-height * width // _PIXELS), 1, len(reference) * views
    _launch(
        "forward", blocks, reference, features, nothing, (base, direction, flow), (out,), radius
    )
    return out


def backward(
    gradient: Tensor,
    reference: Tensor,
    pyramid: Sequence[Tensor],
    base: Tensor,
    direction: Tensor,
    flow: Tensor,
    radius: int,
    memory: int,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the reference and of each level, in their own types."""
    batch, channels, height, width = reference.shape
    to_reference = reference.new_zeros(batch, height, width, channels, dtype=torch.float32)
    features = [_channels_last(level) for level in pyramid]
    grads = [torch.zeros_like(level, dtype=torch.float32) for level in features]
    if gradient.numel() and channels:
        blocks = -(-height * width // _WARPS), 1, batch
        given = gradient.to(reference.dtype).contiguous(), to_reference
        lines = base, direction, flow
        _launch("backward", blocks, reference, features, grads, lines, given, radius)
    to_pyramid = [_like(x, level) for x, level in zip(grads, pyramid, strict=True)]
    return _like(to_reference.permute(0, 3, 1, 2), reference), to_pyramid


def _launch(
    way: str,
    blocks: tuple[int, int, int],
    reference: Tensor,
    features: list[Tensor],
    grads: list[Tensor],
    lines: Sequence[Tensor],
    ends: tuple[Tensor, ...],
    radius: int,
) -> None:
    (batch, channels, height, width), views = reference.shape, features[0].shape[1]
    if channels > 1 and reference.stride(1) != 1:
        reference = reference.contiguous(memory_format=torch.channels_last)
    strides = [reference.stride(i) for i in (0, 2, 3)]
    lines = [x.float().contiguous() for x in lines]  # positions in a half type would be off
    size = 4 * reference.element_size()
    whole = channels % 4 == 0 and all(s % 4 == 0 for s in strides)
    whole = whole and all(x.data_ptr() % size == 0 for x in (reference, *features))
    lanes = next(n for n in _PARTS if channels <= 32 * n)
    kernel = f"epipolar_{way}<{TYPES[reference.dtype]}, {lanes}>"
    for above in range(0, len(features), _LEVELS):
        some = slice(above, above + _LEVELS)
        levels = [
            part
            for level, grad in zip(features[some], grads[some], strict=True)
            for part in (level, grad, *level.shape[3:])
        ]
        count = len(levels) // 4
        levels += levels[:4] * (_LEVELS - count)
        launch(
            "epipolar",
            kernel,
            blocks,
            32 * _WARPS,
            *(reference, *strides, *levels, *lines, *ends),
            *(batch, views, channels, height, width, count, above),
            *(len(features) * (2 * radius + 1), radius, int(whole)),
        )


def _channels_last(level: Tensor) -> Tensor:
    """(B, S, C, H, W) whose memory is (B, S, H, W, C); no copy where it is so already."""
    _, views, channels, height, width = level.shape
    area = height * width * channels
    if level.stride() == (views * area, area, 1, width * channels, channels):
        return level
    return level.movedim(2, 4).contiguous().movedim(4, 2)


def _like(gradient: Tensor, wanted: Tensor) -> Tensor:
    """In the type and strides of an input, as autograd's fake kernel says."""
    out = torch.empty_like(wanted)
    if out.dtype == gradient.dtype and out.stride() == gradient.stride():
        return gradient
    return out.copy_(gradient)
