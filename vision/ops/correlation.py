"""Correlation of two feature maps: along the scan line, in groups, and in a square window.

One product of rows serves all three (``_banded.py``): the band of the (W, W) product that the
displacements can reach, in blocks of columns and chunks of rows. Against the loop over
displacements of the published networks this saves autograd's copy of the volume for each
displacement (``benchmarks/ops.py`` compares). Sums are taken in float32 for float16 and bfloat16.
Second derivatives work.

Kernels are in ``kernels/correlation.cu``; forwards, rows of many channels have their own: half
types on tensor cores, ``kernels/banded.cu``, and float32, ``kernels/sliced.cu``.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ._banded import WORKSPACE, accumulation_type, correlate_band, correlate_band_backward
from ._kernels import KERNELS, TYPES, Argument, Arguments, launch
from ._registration import check_at_least, check_pair, exporting, register_pair_operator

__all__ = ["correlation", "correlation_2d", "group_wise_correlation"]

KERNELS["correlation"] = (
    "correlation_forward<float, 1, 2>",
    "correlation_forward<{}, 4, 1>",
    "correlation_backward<{}, 1, 16, 32>",
    "correlation_backward<{}, 2, 8, 32>",
    "correlation_backward<{}, 4, 4, 32>",
    "correlation_backward<{}, 4, 1, 16>",
)
KERNELS["banded"] = ("banded_forward<Half>", "banded_forward<BFloat>")
KERNELS["sliced"] = ("sliced_forward",)

_DEPTH = 16  # of a thread
_MANY = 1024  # pieces of 32 columns: enough for large tiles to keep a GPU busy
_DEEP = 64  # channels: beyond, threads share them


def correlation(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """Correlates each left pixel x with the right pixels x, x - 1, … x - (displacements - 1).

    Beside the result it needs about 8 MB of workspace on the CPU, or what one row of the batch
    needs where that is more: about 4 bytes times B · W · (D + 24) · (1 + C / 24).

    Args:
        left: features of the left view, (B, C, H, W), floating.
        right: features of the right view, the same shape, type and device.
        displacements: how many displacements D, at least 1, in pixels of the feature map; may
            exceed W.

    Returns:
        (B, D, H, W), type of the inputs: mean over channels of ``left[x] * right[x - d]`` for
        d = 0 … D - 1, and 0 where x < d.

    Raises:
        ValueError: shapes, types or devices differ, or ``displacements`` is below 1.
    """
    check_pair(left, right)
    check_at_least("displacements", displacements, 1)
    if exporting():
        return _correlation_plain(left, right, displacements)
    return torch.ops.vizoo.correlation(left, right, displacements)


def group_wise_correlation(left: Tensor, right: Tensor, displacements: int, groups: int) -> Tensor:
    """As :func:`correlation`, of groups of channels (GwcNet, Guo et al., CVPR 2019).

    Returns:
        (B, G, D, H, W): mean over the C / G channels of each of G groups, 0 where x < d.

    Raises:
        ValueError: as there, or ``groups`` is below 1 or does not divide the channels.
    """
    check_pair(left, right)
    check_at_least("displacements", displacements, 1)
    check_at_least("groups", groups, 1)
    if left.shape[1] % groups:
        raise ValueError(f"{left.shape[1]} channels do not divide into {groups} groups")
    if exporting():
        return _grouped_plain(left, right, displacements, groups)
    return torch.ops.vizoo.group_wise_correlation(left, right, displacements, groups)


def correlation_2d(left: Tensor, right: Tensor, radius: int) -> Tensor:
    """Correlates each left pixel with a square window around the same place on the right.

    Features and workspace are as for :func:`correlation` with D = 2 r + 1, and the radius r is at
    least 0, in pixels of the feature map.

    Returns:
        (B, (2r + 1)², H, W), the window row by row (dy, then dx): mean over channels of
        ``left[y, x] * right[y + dy, x + dx]``, 0 where that lies outside.

    Raises:
        ValueError: shapes, types or devices differ, or ``radius`` is below 0.
    """
    check_pair(left, right)
    check_at_least("radius", radius, 0)
    if exporting():
        return _correlation_2d_plain(left, right, radius)
    return torch.ops.vizoo.correlation_2d(left, right, radius)


def _correlation_plain(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """The same with standard operators that trace with dynamic sizes; W (W + D) per row."""
    channels, width = left.shape[1], left.shape[3]
    dtype = accumulation_type(left)
    rows = F.pad(right.to(dtype), (displacements - 1, 0)).permute(0, 2, 1, 3)
    product = left.to(dtype).permute(0, 2, 3, 1) @ rows  # (B, H, W, W + D - 1)
    x = torch.arange(width, device=left.device)
    d = torch.arange(displacements, device=left.device)[:, None, None]
    columns = x[:, None] + (displacements - 1) - d[:, 0, 0]  # (W, D): the band in each row
    band = product.gather(3, columns.expand(*product.shape[:2], -1, -1))
    band = band.permute(0, 3, 1, 2) / channels
    return torch.where(x >= d, band, 0.0).to(left.dtype)


def _grouped_plain(left: Tensor, right: Tensor, displacements: int, groups: int) -> Tensor:
    batch = left.shape[0]
    left, right = (x.unflatten(1, (groups, -1)).flatten(0, 1) for x in (left, right))
    return _correlation_plain(left, right, displacements).unflatten(0, (batch, groups))


def _correlation_2d_plain(left: Tensor, right: Tensor, radius: int) -> Tensor:
    dtype, (height, width), side = accumulation_type(left), left.shape[2:], 2 * radius + 1
    left_, pad = left.to(dtype), (radius, radius, radius, radius)
    right_ = F.pad(right.to(dtype), pad)
    inside = F.pad(torch.ones_like(right[:1, :1], dtype=dtype), pad)
    volume = []
    for dy in range(side):
        for dx in range(side):
            window = (..., slice(dy, dy + height), slice(dx, dx + width))
            mean = (left_ * right_[window]).mean(1, keepdim=True)
            volume.append(torch.where(inside[window] > 0, mean, 0.0))
    return torch.cat(volume, 1).to(left.dtype)


def _correlation_shape(left: Tensor, right: Tensor, displacements: int) -> tuple[int, ...]:
    return left.shape[0], displacements, *left.shape[2:]


def _correlation_forward(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    out = left.new_empty(_correlation_shape(left, right, displacements))
    reach = min(displacements, left.shape[3])
    correlate_band(left, right, out[:, :reach], first=1 - reach, reverse=True)
    out[:, reach:].zero_()
    return out


def _correlation_backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_type(left)
    grad_left, grad_right = (torch.zeros_like(x, dtype=dtype) for x in (left, right))
    reach = min(displacements, left.shape[3])
    correlate_band_backward(
        gradient[:, :reach], left, right, grad_left, grad_right, first=1 - reach, reverse=True
    )
    return grad_left.to(left.dtype), grad_right.to(right.dtype)


def _grouped_shape(left: Tensor, right: Tensor, displacements: int, groups: int) -> tuple[int, ...]:
    return left.shape[0], groups, displacements, *left.shape[2:]


def _split(features: Tensor, groups: int) -> Tensor:
    return features.reshape(-1, features.shape[1] // groups, *features.shape[2:])


def _grouped_forward(left: Tensor, right: Tensor, displacements: int, groups: int) -> Tensor:
    shape = _grouped_shape(left, right, displacements, groups)
    if 0 in left.shape:
        return left.new_zeros(shape)
    if groups >= 8 and left.shape[1] <= 16 * groups and left.numel() <= WORKSPACE:
        return _grouped_slices(left, right, displacements, groups)
    return _correlation_forward(_split(left, groups), _split(right, groups), displacements).view(
        shape
    )


def _grouped_slices(left: Tensor, right: Tensor, displacements: int, groups: int) -> Tensor:
    """Displacement by displacement: many small matrix products would take longer."""
    out = left.new_empty(_grouped_shape(left, right, displacements, groups))
    left, right = (
        x.to(accumulation_type(x), memory_format=torch.contiguous_format).unflatten(1, (groups, -1))
        for x in (left, right)
    )
    width = left.shape[4]
    reach = min(displacements, width)
    for d in range(reach):
        out[:, :, d, :, d:] = (left[..., d:] * right[..., : width - d]).mean(2)
        out[:, :, d, :, :d] = 0
    out[:, :, reach:] = 0
    return out


def _grouped_backward(
    gradient: Tensor, left: Tensor, right: Tensor, displacements: int, groups: int
) -> tuple[Tensor, Tensor]:
    grads = torch.zeros_like(left), torch.zeros_like(right)
    if 0 not in left.shape:
        split = _correlation_backward(
            gradient.flatten(0, 1), _split(left, groups), _split(right, groups), displacements
        )
        for grad, value in zip(grads, split, strict=True):
            grad.copy_(value.view(left.shape))
    return grads


def _square_shape(left: Tensor, right: Tensor, radius: int) -> tuple[int, ...]:
    return left.shape[0], (2 * radius + 1) ** 2, *left.shape[2:]


def _shifted_rows(height: int, radius: int) -> Iterator[tuple[int, slice, slice]]:
    """Window row, the left rows and the right rows that it joins."""
    for i, dy in enumerate(range(-radius, radius + 1)):
        if abs(dy) < height:
            yield i, slice(max(0, -dy), height - max(0, dy)), slice(max(0, dy), height + min(0, dy))


def _square_forward(left: Tensor, right: Tensor, radius: int) -> Tensor:
    out = left.new_zeros(_square_shape(left, right, radius))
    lines = out.unflatten(1, (2 * radius + 1, 2 * radius + 1))
    for i, here, there in _shifted_rows(left.shape[2], radius):
        a, b, line = left[:, :, here], right[:, :, there], lines[:, i, :, here]
        correlate_band(a, b, line, first=-radius, reverse=False)
    return out


def _square_backward(
    gradient: Tensor, left: Tensor, right: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    dtype = accumulation_type(left)
    grads = [torch.zeros_like(x, dtype=dtype) for x in (left, right)]
    lines = gradient.unflatten(1, (2 * radius + 1, 2 * radius + 1))
    for i, here, there in _shifted_rows(left.shape[2], radius):
        correlate_band_backward(
            lines[:, i, :, here],
            left[:, :, here],
            right[:, :, there],
            grads[0][:, :, here],
            grads[1][:, :, there],
            first=-radius,
            reverse=False,
        )
    return grads[0].to(left.dtype), grads[1].to(right.dtype)


_Window = tuple[int, int, int, int, bool]
"""Groups, lines, displacements of a line, their shift, and whether they run to the right."""


def _kernels(
    shape: Callable[..., tuple[int, ...]], window: Callable[..., _Window]
) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    """Forward and backward by kernels, of an operator whose sizes mean a shape and a window."""

    def forward(left: Tensor, right: Tensor, *sizes: int) -> Tensor:
        return _launch_forward(left, right, shape(left, right, *sizes), window(*sizes))

    def backward(
        gradient: Tensor, left: Tensor, right: Tensor, *sizes: int
    ) -> tuple[Tensor, Tensor]:
        return _launch_backward(gradient, left, right, window(*sizes))

    return forward, backward


def _launch_forward(left: Tensor, right: Tensor, shape: tuple[int, ...], window: _Window) -> Tensor:
    """Of a `shape` that holds (B, groups, lines, count, H, W)."""
    out = left.new_empty(shape)
    groups, lines, count, shift, reverse = window
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


def _launch_backward(
    gradient: Tensor, left: Tensor, right: Tensor, window: _Window
) -> tuple[Tensor, Tensor]:
    groups, lines, count, shift, reverse = window
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


_CORRELATION = (
    _correlation_forward,
    _correlation_backward,
    _correlation_shape,
    *_kernels(_correlation_shape, lambda count: (1, 1, count, 0, False)),
)
_GROUPED = (
    _grouped_forward,
    _grouped_backward,
    _grouped_shape,
    *_kernels(_grouped_shape, lambda count, groups: (groups, 1, count, 0, False)),
)
_SQUARE = (
    _square_forward,
    _square_backward,
    _square_shape,
    *_kernels(_square_shape, lambda r: (1, 2 * r + 1, 2 * r + 1, r, True)),
)
register_pair_operator("correlation", "displacements", *_CORRELATION)
register_pair_operator("group_wise_correlation", "displacements groups", *_GROUPED)
register_pair_operator("correlation_2d", "radius", *_SQUARE)
