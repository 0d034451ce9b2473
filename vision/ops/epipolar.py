"""Correlation of each pixel with places along its epipolar line in other views.

What DispMVS looks up (Yan et al., AAAI 2023, arXiv 2211.16905). A texel is one row of a table
whose columns are the channels, a sample the weighted sum of four rows: PyTorch's `embedding_bag`
reads these without writing the texels to memory. Pixels are worked off in chunks, so that samples
never take more than `memory` bytes. Sums are taken in float32 for float16 and bfloat16. Kernels:
``kernels/epipolar.cu``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._banded import accumulation_type
from ._kernels import KERNELS, TYPES, choose, launch
from ._registration import (
    check_at_least,
    check_devices,
    check_types,
    define,
    exporting,
    register_autocast,
)

__all__ = ["epipolar_correlation"]

_MEMORY = 16 << 20
_OVERHEAD = 24  # numbers that a sample takes at each level beside its channels

_PARTS = (3, 4, 8)  # of 32 channels, which a warp keeps in registers
KERNELS["epipolar"] = tuple(
    f"epipolar_{way}<{{}}, {n}>" for way in ("forward", "backward") for n in _PARTS
)
_CHANNELS = 32 * _PARTS[-1]  # at most
_LEVELS = 4  # of one launch
_WARPS, _PIXELS = 8, 32  # of a block


def epipolar_correlation(
    reference: Tensor,
    pyramid: Iterable[Tensor],
    base: Tensor,
    direction: Tensor,
    flow: Tensor,
    radius: int,
    *,
    memory: int = _MEMORY,
) -> Tensor:
    """Correlates each reference pixel with 2 r + 1 places on its line in each of S views.

    The places are ``base + (flow + k) * direction`` for k = -r … r, in pixels of level 0; level p
    is read at the same places divided by 2^p, bilinearly, and is 0 outside. Gradients reach the
    features only: places count as given. First derivatives only.

    Args:
        reference: features of the reference view, (B, C, H, W), floating.
        pyramid: for each level p features of the other views, (B, S, C, H_p, W_p), of one type.
            Fastest where their memory has the channels last.
        base: where each line starts, (x, y) in pixels, (B, S, 2, H, W), floating.
        direction: of each line, the same shape.
        flow: distance travelled along the line, (B, S, H, W).
        radius: r, at least 0.
        memory: bytes of workspace at most, or what one pixel takes where that is more; features
            that do not lie with their channels last, or are of a half type, are copied beside.

    Returns:
        (B, S, P (2 r + 1), H, W), the type of `reference`, level by level: mean over channels of
        the products.

    Raises:
        ValueError: shapes, types or devices do not belong together, or a number is too small.
    """
    pyramid = list(pyramid)
    _check(reference, pyramid, base, direction, flow)
    check_at_least("radius", radius, 0)
    check_at_least("memory", memory, 1)
    lines = [base, direction, flow]
    if exporting():
        return _plain(reference, pyramid, lines, radius)
    return torch.ops.vizoo.epipolar_correlation(reference, pyramid, lines, radius, memory)


def _check(
    reference: Tensor, pyramid: Sequence[Tensor], base: Tensor, direction: Tensor, flow: Tensor
) -> None:
    if reference.dim() != 4 or flow.dim() != 4:
        raise ValueError(
            f"reference must be (B, C, H, W) and flow (B, S, H, W), got {tuple(reference.shape)} "
            f"and {tuple(flow.shape)}"
        )
    (batch, channels, height, width), views = reference.shape, flow.shape[1]
    if not pyramid:
        raise ValueError("pyramid has no level")
    for level in pyramid:
        if level.dim() != 5 or level.shape[:3] != (batch, views, channels) or 0 in level.shape[3:]:
            raise ValueError(
                f"each level must be ({batch}, {views}, {channels}, H, W) and have a pixel, "
                f"got {tuple(level.shape)}"
            )
    for name, tensor in (("base", base), ("direction", direction)):
        if tensor.shape != (batch, views, 2, height, width):
            raise ValueError(
                f"{name} must be {(batch, views, 2, height, width)}, got {tuple(tensor.shape)}"
            )
    if flow.shape != (batch, views, height, width):
        raise ValueError(f"flow must be {(batch, views, height, width)}, got {tuple(flow.shape)}")
    given = (reference, *pyramid, base, direction, flow)
    check_devices(*given)
    if not all(x.is_floating_point() for x in given):
        raise ValueError("features, lines and flow must be floating")
    check_types("features", reference, *pyramid)


def _precise(tensor: Tensor) -> Tensor:
    """Positions in a half type would be off by pixels."""
    return tensor.to(accumulation_type(tensor))


def _plain(
    reference: Tensor, pyramid: Sequence[Tensor], lines: Sequence[Tensor], radius: int
) -> Tensor:
    """The same with standard operators that trace with dynamic sizes; all samples at once.

    Here and below `lines` are base, direction and flow.
    """
    base, direction, flow = map(_precise, lines)
    (batch, channels, height, width), views = reference.shape, flow.shape[1]
    count, dtype = 2 * radius + 1, accumulation_type(reference)
    step = torch.arange(-radius, radius + 1, device=flow.device, dtype=flow.dtype)
    step = (flow[:, :, None] + step.view(-1, 1, 1)).flatten(0, 1)  # (B S, K, H, W)
    base, direction = base.flatten(0, 1), direction.flatten(0, 1)
    x, y = (base[:, i, None] + step * direction[:, i, None] for i in (0, 1))
    reference = reference.to(dtype).repeat_interleave(views, 0)[:, :, None]
    planes = []
    for level, features in enumerate(pyramid):
        high, wide = features.shape[3:]
        # Two pixels outside is outside enough; an infinite place would give NaN.
        u = (x / 2**level).clamp(min=-2)
        v = (y / 2**level).clamp(min=-2)
        grid = torch.stack(((2 * u + 1) / wide - 1, (2 * v + 1) / high - 1), -1)
        grid = grid.clamp(-6, 6).reshape(batch * views, count * height, width, 2)
        sampled = F.grid_sample(
            features.flatten(0, 1).to(dtype), grid.to(dtype), align_corners=False
        )
        sampled = sampled.view(batch * views, channels, count, height, width)
        planes.append((sampled * reference).mean(1))
    cost = torch.cat(planes, 1).view(batch, views, len(planes) * count, height, width)
    return cost.to(pyramid[0].dtype)


def _table(features: Tensor) -> Tensor:
    """(C, H, W) as (H W, C); no copy where the channels lie last."""
    table = features.permute(1, 2, 0).reshape(-1, features.shape[0])
    return table.to(accumulation_type(features)).contiguous()


def _chunks(
    reference: Tensor, pyramid: Sequence[Tensor], lines: Sequence[Tensor], radius: int, memory: int
) -> Iterator[tuple[int, int, slice, list[tuple[Tensor, Tensor]]]]:
    """Chunks of pixels: image, view, pixels, and for each level the texels that they read.

    Texels are (n, K, 4) rows of the level's table and their weights.
    """
    dtype, flow = accumulation_type(reference), lines[2]
    sizes = [(level.shape[3], level.shape[4]) for level in pyramid]
    numbers = (2 * radius + 1) * (reference.shape[1] + _OVERHEAD * len(sizes))
    step = max(1, memory // (dtype.itemsize * numbers))
    along = torch.arange(-radius, radius + 1, device=flow.device, dtype=flow.dtype)
    for image in range(flow.shape[0]):
        for view in range(flow.shape[1]):
            start, towards, travelled = (_precise(x[image, view].flatten(-2)) for x in lines)
            for first in range(0, len(travelled), step):
                some = slice(first, first + step)
                places = (travelled[some, None] + along).unsqueeze(0)
                places = places * towards[:, some, None] + start[:, some, None]  # (2, n, K)
                texels = [_texels(places / 2**p, *size, dtype) for p, size in enumerate(sizes)]
                yield image, view, some, texels


def _texels(places: Tensor, height: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The four texels around each place: (n, K, 4) indices and weights; weight 0 outside."""
    axes = []
    for place, size in zip(places, (width, height), strict=True):
        place = place.clamp(-2, size + 1)  # so that indices fit, whatever the line does
        low = place.nan_to_num().floor()
        part = place - low  # NaN stays NaN
        index = torch.stack((low, low + 1))
        weight = torch.stack((1 - part, part))
        inside = (index >= 0) & (index < size)
        axes.append((index.clamp(0, size - 1).long(), (weight * inside).to(dtype)))
    (x, across), (y, down) = axes
    index = (y[:, None] * width + x).flatten(0, 1)  # (4, n, K)
    weight = (down[:, None] * across).flatten(0, 1)
    return index.permute(1, 2, 0).contiguous(), weight.permute(1, 2, 0).contiguous()


def _forward(
    reference: Tensor, pyramid: Sequence[Tensor], lines: Sequence[Tensor], radius: int, memory: int
) -> Tensor:
    cost = reference.new_empty(_shape(pyramid, lines, radius))
    channels, count, held = reference.shape[1], 2 * radius + 1, None
    if cost.numel() == 0 or channels == 0:
        return cost.zero_()
    out = cost.flatten(3).unflatten(2, (len(pyramid), count))
    for image, view, some, texels in _chunks(reference, pyramid, lines, radius, memory):
        if held != (image, view):
            held = image, view
            tables = [_table(level[image, view]) for level in pyramid]
            mean = _table(reference[image]) / channels
        for level, (index, weight) in enumerate(texels):
            samples = F.embedding_bag(
                index.view(-1, 4), tables[level], per_sample_weights=weight.view(-1, 4), mode="sum"
            )
            samples = samples.view(-1, count, channels).mul_(mean[some, None])
            out[image, view, level, :, some] = samples.sum(-1).T
    return cost


def _backward(
    gradient: Tensor,
    reference: Tensor,
    pyramid: Sequence[Tensor],
    lines: Sequence[Tensor],
    radius: int,
    memory: int,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the reference and of each level, by the texels f that a pixel reads.

    With a the gradient times a texel's weight: to the reference the sum of a f, to the texel a
    times the reference.
    """
    dtype, channels = accumulation_type(reference), reference.shape[1]
    to_reference = torch.zeros_like(reference, dtype=dtype)
    to_pyramid = [torch.zeros_like(level, dtype=dtype) for level in pyramid]
    if gradient.numel() and channels:
        gradient = gradient.flatten(3).unflatten(2, (len(pyramid), 2 * radius + 1))
        for image, view, some, texels in _chunks(reference, pyramid, lines, radius, memory):
            mean = _table(reference[image])[some] / channels
            into = to_reference[image].flatten(1)
            for level, (index, weight) in enumerate(texels):
                given = gradient[image, view, level, :, some].T.to(dtype)
                weight = (weight * given[..., None]).flatten(1)
                index = index.flatten(1)
                table = _table(pyramid[level][image, view])
                summed = F.embedding_bag(index, table, per_sample_weights=weight, mode="sum")
                into[:, some] += summed.T / channels
                own = to_pyramid[level][image, view]
                own += _scatter(mean, index, weight, len(table)).T.view_as(own)
            to_reference[image] = into.view_as(to_reference[image])
    to_pyramid = [g.to(level.dtype) for g, level in zip(to_pyramid, pyramid, strict=True)]
    return to_reference.to(reference.dtype), to_pyramid


def _scatter(rows: Tensor, index: Tensor, weight: Tensor, length: int) -> Tensor:
    """To row index[n, t] of (length, C) the sum of weight[n, t] * rows[n].

    It is embedding_bag's own backward pass, which cannot be had through autograd within an
    operator.
    """
    count = index.shape[1]
    bags = torch.arange(len(index), device=index.device)
    return torch.ops.aten._embedding_bag_dense_backward(
        rows,
        index.flatten(),
        bags.repeat_interleave(count),
        torch.full_like(bags, count),
        bags.new_empty(0),
        length,
        False,
        0,
        weight.flatten(),
    )


def _shape(pyramid: Sequence[Tensor], lines: Sequence[Tensor], radius: int) -> tuple[int, ...]:
    batch, views, *size = lines[2].shape
    return batch, views, len(pyramid) * (2 * radius + 1), *size


def _refuses(
    reference: Tensor, pyramid: Sequence[Tensor], lines: Sequence[Tensor], *_: int
) -> str | None:
    """Too many channels, or float64, which says how exact lines are to be."""
    if reference.shape[1] > _CHANNELS:
        return f"no kernels for more than {_CHANNELS} channels"
    double = any(x.dtype == torch.float64 for x in lines)
    return "no kernels for lines in float64" if double else None


def _forward_cuda(
    reference: Tensor, pyramid: Sequence[Tensor], lines: Sequence[Tensor], radius: int, memory: int
) -> Tensor:
    views, height, width = lines[2].shape[1:]
    out = reference.new_empty(_shape(pyramid, lines, radius))
    if out.numel() == 0 or reference.shape[1] == 0:
        return out.zero_()
    features = [_channels_last(level) for level in pyramid]
    nothing = [features[0].new_empty(0)] * len(features)
    blocks = -(-height * width // _PIXELS), 1, len(reference) * views
    _launch("forward", blocks, reference, features, nothing, lines, (out,), radius)
    return out


def _backward_cuda(
    gradient: Tensor,
    reference: Tensor,
    pyramid: Sequence[Tensor],
    lines: Sequence[Tensor],
    radius: int,
    memory: int,
) -> tuple[Tensor, list[Tensor]]:
    batch, channels, height, width = reference.shape
    to_reference = reference.new_zeros(batch, height, width, channels, dtype=torch.float32)
    features = [_channels_last(level) for level in pyramid]
    grads = [torch.zeros_like(level, dtype=torch.float32) for level in features]
    if gradient.numel() and channels:
        blocks = -(-height * width // _WARPS), 1, batch
        given = gradient.to(reference.dtype).contiguous(), to_reference
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


def _register() -> None:
    arguments = "Tensor reference, Tensor[] pyramid, Tensor[] lines, SymInt radius, SymInt memory"
    name = "epipolar_correlation"
    operator = define(
        name,
        f"({arguments}) -> Tensor",
        choose(name, _forward, _forward_cuda, refuses=_refuses),
        lambda reference, *given: reference.new_empty(_shape(*given[:3])),
    )
    derivative = define(
        f"{name}_backward",
        f"(Tensor gradient, {arguments}) -> (Tensor, Tensor[])",
        choose(name, _backward, _backward_cuda, atomics=True, refuses=lambda _, *x: _refuses(*x)),
        lambda _, reference, pyramid, *others: (
            torch.empty_like(reference),
            [torch.empty_like(level) for level in pyramid],
        ),
    )

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        reference, pyramid, lines, ctx.radius, ctx.memory = inputs
        ctx.save_for_backward(reference, *lines, *pyramid)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        reference, base, direction, flow, *pyramid = ctx.saved_tensors
        lines = [base, direction, flow]
        grads = derivative(gradient, reference, pyramid, lines, ctx.radius, ctx.memory)
        return *grads, [None] * len(lines), None, None

    operator.register_autograd(backward, setup_context=keep)

    register_autocast(name, 2)


_register()
