"""Convolution on the faces of a mesh, as SubdivNet defines it (Hu et al., TOG 2022).

Features are (N, F, C): what belongs to a face is one row, which a gather copies whole. Faces are
worked off in chunks: rows are gathered, combined and multiplied by the weights while they are in
the cache, so that neither the gathered rows nor the combinations are ever in memory as a whole.
Only the features are kept for the backward pass, which gathers too: an inverse table says which
rows a face took part in, so that nothing is scattered and the result does not depend on the order.
Combinations are taken in float32 for float16 and bfloat16. On a GPU ``kernels/mesh.cu`` combines,
and matrix products do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

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

__all__ = ["gather_faces", "inverse_table", "mesh_convolution"]

KERNELS["mesh"] = ("mesh_forward<{}>", "mesh_backward<{}>")
_THREADS, _BLOCKS = 128, 1 << 16  # on a GPU: of a block, of a launch

_MEMORY, _MEMORY_ON_GPU = 32 << 20, 128 << 20
_TERMS = 4  # the face, the sum of its neighbours, two sums of differences

_CHUNK = 1 << 20  # bytes of combinations at once on a CPU, so that they stay in its cache
_GROUP = 16  # channels: shorter rows would waste what a read of memory brings


def mesh_convolution(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    neighbours: Tensor | None = None,
    inverse: Tensor | None = None,
    *,
    memory: int | None = None,
) -> Tensor:
    """Combines each face e with its neighbours e_1 … e_n, which form a cycle, by four matrices.

    y = W_0 e + W_1 Σ e_j + W_2 Σ |e_(j+1) − e_j| + W_3 Σ |e − e_j| + b. Which neighbour comes first
    and which way round they go makes no difference. First derivatives only.

    Args:
        features: (N, F, C), floating.
        weight: (C_out, C, 4).
        bias: (C_out,), or None.
        neighbours: (G, n) integer, 0 to F − 1, n at least 2 (on a GPU what names no face counts as
            NaN). With G = F a row for each face; with G = F / 4 for each face 4 g + 3, the centre
            child of g. None: for each centre child its siblings 4 g, 4 g + 1, 4 g + 2, without a
            table.
        inverse: `inverse_table(neighbours, F)`; needed for gradients.
        memory: bytes of workspace at most, or what one face (backwards: 16 channels) takes where
            that is more; by default 32 MB, on a GPU 128 MB, for fewer and larger products.

    Returns:
        (N, G, C_out).

    Raises:
        ValueError: shapes, types or devices do not belong together.
    """
    _check(features, weight, bias, neighbours, inverse)
    if memory is None:
        memory = _MEMORY_ON_GPU if features.is_cuda else _MEMORY
    check_at_least("memory", memory, 1)
    if exporting():
        return _plain(features, weight, bias, neighbours)
    if neighbours is not None and inverse is None and torch.is_grad_enabled():
        if any(x is not None and x.requires_grad for x in (features, weight, bias)):
            raise ValueError("gradients need inverse=inverse_table(neighbours, faces)")
    return torch.ops.vizoo.mesh_convolution(features, weight, bias, neighbours, inverse, memory)


def gather_faces(features: Tensor, neighbours: Tensor, inverse: Tensor) -> Tensor:
    """The neighbours' rows, with a backward pass that gathers.

    Args:
        features: (N, F, C), floating.
        neighbours: (G, n) integer.
        inverse: `inverse_table(neighbours, F)`.

    Returns:
        (N, G, n, C).

    Raises:
        ValueError: the shapes do not belong together.
    """
    if features.dim() != 3 or neighbours.dim() != 2 or len(inverse) != features.shape[1]:
        raise ValueError(
            f"features (N, F, C), neighbours (G, n) and inverse (F, m) are wanted, got "
            f"{tuple(features.shape)}, {tuple(neighbours.shape)} and {tuple(inverse.shape)}"
        )
    if exporting():
        return _gather(features, neighbours, inverse)
    return torch.ops.vizoo.gather_faces(features, neighbours, inverse)


def inverse_table(neighbours: Tensor, faces: int) -> Tensor:
    """For each face the places of `neighbours` that name it.

    Args:
        neighbours: (G, n) integer, 0 to `faces` − 1.
        faces: number of faces F.

    Returns:
        (F, m) int32, m the largest number of places that name one face: slot · G + row, and
        n · G where there are fewer.
    """
    named = neighbours.T.flatten().long()
    count = torch.bincount(named, minlength=faces)
    order = named.argsort(stable=True)
    start = count.cumsum(0) - count
    places = torch.arange(int(count.max()), device=named.device)
    index = (start[:, None] + places).clamp(max=named.numel() - 1)
    table = torch.where(places < count[:, None], order[index], named.numel())
    return table.to(torch.int32)


def _check(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    neighbours: Tensor | None,
    inverse: Tensor | None,
) -> None:
    if features.dim() != 3 or weight.dim() != 3 or weight.shape[1:] != (features.shape[2], _TERMS):
        raise ValueError(
            f"features must be (N, F, C) and weight (C_out, C, {_TERMS}), got "
            f"{tuple(features.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be ({weight.shape[0]},), got {tuple(bias.shape)}")
    faces = features.shape[1]
    if neighbours is None:
        if faces % 4:
            raise ValueError(f"{faces} faces have no centre children: their number must be 4 G")
    else:
        rows = neighbours.shape[0]
        if neighbours.dim() != 2 or neighbours.shape[1] < 2 or rows not in (faces, faces // 4):
            raise ValueError(
                f"neighbours must be (F, n) or (F / 4, n) with n at least 2 for {faces} faces, got "
                f"{tuple(neighbours.shape)}"
            )
        if inverse is not None and (inverse.dim() != 2 or inverse.shape[0] != faces):
            raise ValueError(f"inverse must be ({faces}, m), got {tuple(inverse.shape)}")
    check_devices(features, weight, bias, neighbours, inverse)
    check_types("features and weights", features, weight, bias)


def _plain(
    features: Tensor, weight: Tensor, bias: Tensor | None, neighbours: Tensor | None
) -> Tensor:
    """The same with standard operators, all faces at once."""
    if neighbours is None:
        near = features.unflatten(1, (-1, 4))
        centre, near = near[:, :, 3], near[:, :, :3].unbind(2)
    else:
        same = neighbours.shape[0] == features.shape[1]
        centre = features if same else features[:, 3::4]
        near = [features.index_select(1, slot) for slot in neighbours.unbind(1)]
    around = [(b - a).abs() for a, b in zip(near, (*near[1:], near[0]), strict=True)]
    terms = centre, sum(near), sum(around), sum((centre - x).abs() for x in near)
    return F.linear(torch.cat(terms, 2), weight.transpose(1, 2).flatten(1), bias)


def _counts(faces: int, neighbours: Tensor | None) -> tuple[int, int]:
    """Rows of the result, and neighbours of each."""
    return (faces // 4, 3) if neighbours is None else (neighbours.shape[0], neighbours.shape[1])


def _rows(features: Tensor, neighbours: Tensor | None, memory: int) -> Iterator[slice]:
    """Chunks of the result's rows of (F, C): what is made for one keeps to `memory`."""
    rows, slots = _counts(len(features), neighbours)
    itemsize = accumulation_type(features).itemsize
    row = max(1, itemsize * features.shape[1] * (3 * slots + 2 * _TERMS))
    if features.device.type == "cpu":
        memory = min(memory, 4 * _CHUNK)
    step = max(1, memory // row)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _gathered(features: Tensor, neighbours: Tensor | None, rows: slice) -> tuple[Tensor, Tensor]:
    """Of (F, C) the centres (n, C) of some rows and their neighbours (slots, n, C)."""
    dtype = accumulation_type(features)
    if neighbours is None:
        family = features.unflatten(0, (-1, 4))[rows].to(dtype)
        return family[:, 3], family[:, :3].transpose(0, 1)
    same = neighbours.shape[0] == features.shape[0]
    centre = features[rows] if same else features[3::4][rows]
    some = neighbours[rows]
    near = features.index_select(0, some.T.flatten()).view(*some.T.shape, -1)
    return centre.to(dtype), near.to(dtype)


def _terms(centre: Tensor, near: Tensor) -> Tensor:
    """(n, 4 C): the four combinations side by side."""
    terms = centre.new_empty(centre.shape[0], _TERMS, centre.shape[1])
    terms[:, 0] = centre
    _sum(near, terms[:, 1])
    if near.shape[0] == 3:  # round a triangle one goes up from the least to the greatest and back
        torch.sub(near.amax(0), near.amin(0), out=terms[:, 2]).mul_(2)
    else:
        _sum(_steps(near).abs_(), terms[:, 2])
    _sum((near - centre).abs_(), terms[:, 3])
    return terms.flatten(1)


def _steps(x: Tensor) -> Tensor:
    """(slots, n, C): each slot less the one before it, the first less the last."""
    out = torch.empty_like(x)
    torch.sub(x[1:], x[:-1], out=out[1:])
    torch.sub(x[0], x[-1], out=out[0])
    return out


def _sum(parts: Tensor, out: Tensor) -> Tensor:
    """(slots, n, C) to `out` (n, C): faster than a reduction over so few."""
    torch.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out += part
    return out


def _combined(
    features: Tensor, neighbours: Tensor | None, memory: int
) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of the rows of (F, C), and their combinations (n, 4 C)."""
    for rows in _rows(features, neighbours, memory):
        yield rows, _terms(*_gathered(features, neighbours, rows)).to(features.dtype)


def _convolve(
    combined: Callable[..., Iterator[tuple[slice, Tensor]]],
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    neighbours: Tensor | None,
    inverse: Tensor | None,
    memory: int,
) -> Tensor:
    out = features.new_empty(_shape(features, weight, neighbours))
    if out.numel() == 0 or features.shape[2] == 0:
        return out.zero_() if bias is None else out.copy_(bias.expand_as(out))
    matrix = weight.permute(2, 1, 0).flatten(0, 1).contiguous()
    for image, into in zip(features.contiguous(), out, strict=True):
        for rows, terms in combined(image, neighbours, memory):
            if bias is None:
                torch.mm(terms, matrix, out=into[rows])
            else:
                torch.addmm(bias, terms, matrix, out=into[rows])
    return out


_forward = partial(_convolve, _combined)


def _backward(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    neighbours: Tensor | None,
    inverse: Tensor | None,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of features and weight; the former by groups of channels, which `memory` bounds."""
    _check_inverse(neighbours, inverse)
    dtype, channels = accumulation_type(features), features.shape[2]
    to_features = torch.zeros_like(features, memory_format=torch.contiguous_format)
    to_weight = torch.zeros_like(weight, dtype=dtype, memory_format=torch.contiguous_format)
    if gradient.numel() == 0 or channels == 0:
        return to_features, to_weight.to(weight.dtype)
    group, written = channels, None
    if neighbours is not None:
        fit = memory // (dtype.itemsize * neighbours.numel())
        group = min(channels, max(_GROUP, fit // _GROUP * _GROUP))
        # One for all images and groups: pages that are new to the process cost more than the sums.
        written = features.new_empty((neighbours.numel() + 1) * group, dtype=dtype)
    gradient = gradient.contiguous()
    for first in range(0, channels, group):
        some = slice(first, min(first + group, channels))
        matrix = weight[:, some].transpose(1, 2).flatten(1).contiguous()  # (C_out, 4 c)
        total = to_weight.new_zeros(matrix.shape)
        for image, given, into in zip(features, gradient, to_features, strict=True):
            part, into = image[:, some].contiguous(), into[:, some]
            sums = into if into.dtype == dtype else torch.zeros_like(into, dtype=dtype)
            _add_gradients(sums, total, part, given, matrix, neighbours, inverse, written, memory)
            if sums is not into:
                into.copy_(sums)
        to_weight[:, some] = total.unflatten(1, (_TERMS, -1)).transpose(1, 2)
    return to_features, to_weight.to(weight.dtype)


def _add_gradients(
    to_features: Tensor,
    to_weight: Tensor,
    features: Tensor,
    gradient: Tensor,
    matrix: Tensor,
    neighbours: Tensor | None,
    inverse: Tensor | None,
    written: Tensor | None,
    memory: int,
) -> None:
    """Of one image's features (F, C), to zeros (F, C), and of the weights (C_out, 4 C).

    What each row gives to each of its neighbours is `written` down, and then each face collects
    what was written for it.
    """
    dtype, (faces, channels) = accumulation_type(features), features.shape
    if neighbours is None:
        families = to_features.unflatten(0, (-1, 4))
        own, around = families[:, 3], families[:, :3].transpose(0, 1)
    else:
        count, slots = neighbours.shape
        own = to_features if count == faces else to_features[3::4]
        inverse, written = cast("tuple[Tensor, Tensor]", (inverse, written))
        written = written[: (slots * count + 1) * channels].view(-1, channels)
        written[-1] = 0  # for faces with fewer places than others
        around = written[:-1].view(slots, count, channels)
    for rows in _rows(features, neighbours, memory):
        centre, near = _gathered(features, neighbours, rows)
        given = gradient[rows]
        terms = _terms(centre, near).to(given.dtype)
        if to_weight.dtype == given.dtype:
            to_weight.addmm_(given.T, terms)
        else:
            to_weight += given.T @ terms
        back = (given @ matrix).to(dtype).unflatten(1, (_TERMS, -1))  # (n, 4, C)
        signs = (near - centre).sign_().mul_(back[:, 3])
        torch.sub(back[:, 0], _sum(signs, torch.empty_like(centre)), out=own[rows])
        bends = _steps(_steps(near).sign_()).mul_(back[:, 2])  # each at the slot after its own
        signs[:-1] -= bends[1:]
        signs[-1] -= bends[0]
        torch.add(signs, back[:, 1], out=around[:, rows])
    if inverse is not None and written is not None:
        step = max(1, _CHUNK // (dtype.itemsize * channels))
        for start in range(0, faces, step):
            some = slice(start, start + step)
            to_features[some] += F.embedding_bag(inverse[some], written, mode="sum")


def _shape(features: Tensor, weight: Tensor, neighbours: Tensor | None) -> tuple[int, ...]:
    return features.shape[0], _counts(features.shape[1], neighbours)[0], weight.shape[0]


def _combined_cuda(
    features: Tensor, neighbours: Tensor | None, memory: int
) -> Iterator[tuple[slice, Tensor]]:
    """As `_combined`; the combinations keep to `memory`."""
    faces, channels = features.shape
    rows, table = _counts(faces, neighbours)[0], _table(features, neighbours)
    step = max(1, memory // (_TERMS * channels * features.element_size()))
    for first in range(0, rows, step):
        count = min(step, rows - first)
        terms = features.new_empty(count, _TERMS * channels)
        launch(
            "mesh",
            f"mesh_forward<{TYPES[features.dtype]}>",
            (min(_BLOCKS, -(-count * channels // _THREADS)),),
            _THREADS,
            *(features, features.stride(0), table, terms),
            *(first, count, _counts(faces, neighbours)[1], channels, faces // rows, faces),
        )
        yield slice(first, first + count), terms


_forward_cuda = partial(_convolve, _combined_cuda)


def _backward_cuda(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    neighbours: Tensor | None,
    inverse: Tensor | None,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """By groups of channels: what the products give for one keeps to `memory`."""
    _check_inverse(neighbours, inverse)
    (_, rows, _), (_, faces, channels) = _shape(features, weight, neighbours), features.shape
    to_features = torch.empty_like(features, memory_format=torch.contiguous_format)
    to_weight = weight.new_zeros(weight.shape, dtype=torch.float32)
    if gradient.numel() == 0 or channels == 0:
        return to_features.zero_(), to_weight.to(weight.dtype)
    gradient, features = gradient.to(features.dtype).contiguous(), features.contiguous()
    table, places = _table(features, neighbours), _table(features, inverse)
    slots = 1 if neighbours is None or inverse is None else inverse.shape[1]
    fit = memory // (_TERMS * rows * features.element_size())
    group = min(channels, max(_GROUP, fit // _GROUP * _GROUP))
    for first in range(0, channels, group):
        some = slice(first, first + group)
        matrix = weight[:, some].transpose(1, 2).flatten(1)  # (C_out, 4 c)
        total = to_weight.new_zeros(matrix.shape)
        for image, given, into in zip(features, gradient, to_features, strict=True):
            part = image[:, some]
            for rows_, terms in _combined_cuda(part, neighbours, memory):
                total += given[rows_].T @ terms
            launch(
                "mesh",
                f"mesh_backward<{TYPES[features.dtype]}>",
                (min(_BLOCKS, -(-faces * part.shape[1] // _THREADS)),),
                _THREADS,
                *(part, channels, table, places, slots),
                *(given @ matrix, into[:, some], channels, faces, rows),
                *(_counts(faces, neighbours)[1], part.shape[1], faces // rows),
            )
        to_weight[:, some] = total.unflatten(1, (_TERMS, -1)).transpose(1, 2)
    return to_features, to_weight.to(weight.dtype)


def _check_inverse(neighbours: Tensor | None, inverse: Tensor | None) -> None:
    if neighbours is not None and inverse is None:
        raise ValueError("gradients through a table of neighbours need its `inverse_table`")


def _table(features: Tensor, table: Tensor | None) -> Tensor:
    """As the kernels read it: int32, and an empty tensor's null pointer for none."""
    if table is None:
        return torch.empty(0, dtype=torch.int32, device=features.device)
    return table.int().contiguous()


def _gather(features: Tensor, neighbours: Tensor, inverse: Tensor) -> Tensor:
    rows = features.index_select(1, neighbours.flatten())
    return rows.unflatten(1, neighbours.shape)


def _collect(gradient: Tensor, inverse: Tensor) -> Tensor:
    """To each face the sum of what (N, G, n, C) holds at its places."""
    batch, rows, slots, channels = gradient.shape
    dtype = accumulation_type(gradient)
    out = gradient.new_empty(batch, inverse.shape[0], channels)
    written = gradient.new_zeros(slots * rows + 1, channels, dtype=dtype)
    for image, into in zip(gradient, out, strict=True):
        written[:-1].view(slots, rows, channels).copy_(image.transpose(0, 1))
        into.copy_(F.embedding_bag(inverse, written, mode="sum"))
    return out


def _register_convolution() -> None:
    tables = "Tensor? neighbours, Tensor? inverse, SymInt memory"
    operator = define(
        "mesh_convolution",
        f"(Tensor features, Tensor weight, Tensor? bias, {tables}) -> Tensor",
        choose("mesh_convolution", _forward, _forward_cuda),
        lambda x, weight, bias, near, *_: x.new_empty(_shape(x, weight, near)),
    )
    derivative = define(
        "mesh_convolution_backward",
        f"(Tensor gradient, Tensor features, Tensor weight, {tables}) -> (Tensor, Tensor)",
        choose("mesh_convolution", _backward, _backward_cuda),
        lambda _, *given: tuple(x.new_empty(x.shape) for x in given[:2]),
    )

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        features, weight, bias, neighbours, inverse, ctx.memory = inputs
        ctx.bias = bias is not None
        ctx.save_for_backward(features, weight, neighbours, inverse)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        to_features, to_weight = derivative(gradient, *ctx.saved_tensors, ctx.memory)
        to_bias = gradient.sum((0, 1)) if ctx.bias else None
        return to_features, to_weight, to_bias, None, None, None

    operator.register_autograd(backward, setup_context=keep)

    register_autocast("mesh_convolution", 3)

    @register_flop_formula(torch.ops.vizoo.mesh_convolution)
    def _(features: Any, weight: Any, *others: Any, out_shape: Any = None, **_: Any) -> int:
        return 2 * torch.Size(out_shape).numel() * weight[1] * _TERMS

    @register_flop_formula(torch.ops.vizoo.mesh_convolution_backward)
    def _(gradient: Any, features: Any, weight: Any, *others: Any, **_: Any) -> int:
        return 4 * torch.Size(gradient).numel() * weight[1] * _TERMS


def _register_gather() -> None:
    operator = define(
        "gather_faces",
        "(Tensor features, Tensor neighbours, Tensor inverse) -> Tensor",
        _gather,
        lambda x, neighbours, _: x.new_empty(x.shape[0], *neighbours.shape, x.shape[2]),
    )
    derivative = define(
        "gather_faces_backward",
        "(Tensor gradient, Tensor inverse) -> Tensor",
        _collect,
        lambda x, inverse: x.new_empty(x.shape[0], inverse.shape[0], x.shape[3]),
    )

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[2])

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return derivative(gradient, *ctx.saved_tensors), None, None

    operator.register_autograd(backward, setup_context=keep)


_register_convolution()
_register_gather()
