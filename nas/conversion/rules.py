"""What operators do to channels, by the kind of operator; the tensors themselves are not read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .labels import Channels, Ledger

__all__ = ["Known", "propagate", "tensors"]


class Known(Protocol):
    """Who knows the channels of tensors, and what runs now."""

    ledger: Ledger

    def channels(self, tensor: Tensor) -> Channels | None:
        """Of a tensor; None where all of its sizes are fixed."""

    def divided(self, labels: Tensor) -> int:
        """Which of the dimensions that channels were divided into holds them from now on."""

    def joined(self, labels: Tensor) -> None:
        """Note the labels of a dimension that channels were joined into."""

    def counted(self, labels: Tensor) -> None:
        """Note labels whose number may be written down in the module that runs."""

    def here(self, name: str) -> str:
        """An operator's name and where it runs."""


_SAME = {"clone", "contiguous", "detach", "alias", "_to_copy", "lift_fresh", "zeros_like"}
_SAME |= {"ones_like", "full_like", "empty_like", "rand_like", "randn_like", "bernoulli", "dropout"}
_SAME |= {"native_dropout", "fill", "zero", "_fused_dropout"}
_POINTWISE = {"copy", "masked_fill", "where", "lerp", "hardswish", "hardsigmoid", "hardtanh"}
_POINTWISE |= {"silu", "gelu", "elu", "selu", "celu", "relu6", "leaky_relu", "softplus", "mish"}
_POINTWISE |= {"log_sigmoid_forward", "threshold", "prelu", "_prelu_kernel", "rrelu", "clamp"}
_MOVES = {"_unsafe_view", "cat", "stack", "repeat", "roll", "flip", "index", "index_select"}
_MOVES |= {"pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle"}
_MOVES |= {"_reshape_copy", "repeat_interleave", "rot90", "_reshape_alias", "constant_pad_nd"}
_DIVIDES = {"view", "_unsafe_view", "_reshape_copy", "_reshape_alias"}
_REDUCES = {"mean", "sum", "amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean"}
_REDUCES |= {"prod", "linalg_vector_norm", "norm", "logsumexp", "any", "all", "argmax", "argmin"}
_ALONG = {"_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum", "cumprod"}
_SPATIAL = re.compile(r"(pool|upsample|pad|grid_sampler).*?([123])d")
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}
# Operators of this package: sums over the channels of features that meet; positions moved alone;
# the channels of two features one after the other.
_CORRELATIONS = {"vizoo::correlation", "vizoo::correlation_2d", "vizoo::epipolar_correlation"}
_WARPS = {"vizoo::warp_by_disparity", "vizoo::warp_by_disparity_fused"}
_VOLUMES = {"vizoo::concat_volume"}


def propagate(known: Known, func: Any, args: Sequence[Any], kwargs: Any, out: Any) -> dict:
    """The channels of an operator's outputs: tensor's identity → channels; others have none.

    Args:
        known: who knows the inputs' channels.
        func: the operator, below autograd and before any backend.
        args: its arguments by place.
        kwargs: its arguments by name.
        out: what it returned.
    """
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    inputs = tensors((args, kwargs))
    given = [c for t in inputs if (c := known.channels(t)) is not None]
    if not given:
        return {}
    outputs = tensors(out)
    if name in _CORRELATIONS:
        channels = _correlation(known, name, inputs)
    elif name in _WARPS:
        channels = _spatial(known, 2, args, outputs)
    elif name in _VOLUMES:
        channels = _volume(known, args, outputs[0])
    elif "::" in name:
        channels = None
    elif name in _SAME or name == "as_strided" and args[0].shape == outputs[0].shape:
        channels = _same(known, args, outputs)
    elif torch.Tag.pointwise in func.tags or name in _POINTWISE:
        channels = _pointwise(known, name, inputs, outputs)
    elif name == "split" or name == "split_with_sizes":
        channels = _split(known, args, outputs)
    elif name in _PRODUCTS:
        channels = _product(known, name, args, outputs[0])
    elif name in _REDUCES:
        channels = _reduction(known, args, kwargs, outputs)
    elif name in _ALONG:
        channels = _along(known, args, outputs)
    elif name.startswith("_scaled_dot_product"):
        channels = _attention(known, args, kwargs, outputs)
    elif match := _SPATIAL.search(name):
        channels = _spatial(known, int(match[2]), args, outputs)
    elif (name in _MOVES or func.is_view) and name not in ("as_strided", "unfold"):
        channels = _moved(known, name, func, args, kwargs, outputs)
    else:
        channels = None
    if channels is None:
        for each in given:
            known.ledger.fix(each.labels, f"operator {known.here(name)}")
        return {}
    return channels


def tensors(tree: Any) -> list[Tensor]:
    """The tensors among arguments or results."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) in (list, tuple):  # as operators have them; several times faster than PyTorch's
        return [tensor for part in tree if part is not None for tensor in tensors(part)]
    if isinstance(tree, int | float | str):
        return []
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


_Found = dict[int, Channels | None] | None


def _same(known: Known, args: Sequence[Any], outputs: list[Tensor]) -> _Found:
    return {id(o): known.channels(args[0]) for o in outputs if o.shape == args[0].shape}


def _pointwise(known: Known, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> _Found:
    """Entries that meet are of one channel; tensors of fixed size fix what they meet."""
    rank, why = outputs[0].dim(), known.here(name)
    common: Channels | None = None
    fixed = []
    for tensor in inputs:
        channels, shift = known.channels(tensor), rank - tensor.dim()
        if channels is None:
            fixed.append((tensor, shift))
            continue
        dim = channels.dim + shift
        own = Channels(dim, channels.labels)
        if common is None:
            common = own
        elif dim == common.dim and len(own.labels) == len(common.labels):
            known.ledger.unite(common.labels, own.labels, why)
        elif dim == common.dim:  # one for all channels, as of attention to places
            common = max(common, own, key=lambda c: len(c.labels))
        else:
            known.ledger.fix(channels.labels, f"operator {why} across channels")
            fixed.append((tensor, shift))
    if common is None:
        return {}
    for tensor, shift in fixed:
        if common.dim >= shift and tensor.shape[common.dim - shift] > 1:
            known.ledger.fix(common.labels, f"meets a tensor of fixed size in {why}")
    return {id(o): common for o in outputs if o.dim() == rank}


def _split(known: Known, args: Sequence[Any], outputs: list[Tensor]) -> _Found:
    """Pieces of one size are of the same channels, so that they stay of one size."""
    tensor, dim = args[0], (args[2] if len(args) > 2 else 0) % args[0].dim()
    channels = known.channels(tensor)
    if channels is None or channels.dim != dim:
        return {id(o): channels for o in outputs}
    pieces = channels.labels.split([o.shape[dim] for o in outputs])
    for piece in pieces[1:]:
        if len(piece) == len(pieces[0]):
            known.ledger.unite(pieces[0], piece, known.here("split"))
    if isinstance(args[1], int):
        known.counted(pieces[0])
        known.counted(channels.labels)
    return {id(o): Channels(dim, p) for o, p in zip(outputs, pieces, strict=True)}


def _product(known: Known, name: str, args: Sequence[Any], out: Tensor) -> _Found:
    """(…, M, K) times (…, K, N)."""
    one, other = args[-2:]
    why, rank = known.here(name), out.dim()
    a, b = known.channels(one), known.channels(other)
    if name.startswith(("add", "badd")) and known.channels(args[0]) is not None:
        return None
    inner = [c if c is not None and c.dim == d else None for c, d in ((a, rank - 1), (b, rank - 2))]
    outer = [c for c, i in zip((a, b), inner, strict=True) if c is not None and i is None]
    if any(i is not None for i in inner):
        left, right = inner
        if left is not None and right is not None:
            known.ledger.unite(left.labels, right.labels, why)
        elif (alone := left or right) is not None:
            known.ledger.fix(alone.labels, f"meets a tensor of fixed size in {why}")
    if not outer:
        return {}
    if len(outer) == 1:
        if rank == 3 and outer[0].dim == 0:
            known.ledger.fix(outer[0].labels, f"meets a tensor of fixed size in {why}")
        return {id(out): outer[0]}
    if outer[0].dim == outer[1].dim == 0 and rank == 3:
        known.ledger.unite(outer[0].labels, outer[1].labels, why)
        return {id(out): outer[0]}
    return None


def _dims(value: Any, rank: int) -> list[int]:
    if value is None or value == [] or isinstance(value, bool):
        return list(range(rank))
    return [d % rank for d in (value if isinstance(value, Sequence) else [value])]


def _reduction(known: Known, args: Sequence[Any], kwargs: Any, outputs: list[Tensor]) -> _Found:
    """Channels that are reduced are gone: fewer are averaged, say."""
    channels = known.channels(args[0])
    if channels is None or len([a for a in args if isinstance(a, Tensor)]) > 1:
        return None
    rank = args[0].dim()
    place: Any = next((a for a in args[1:] if isinstance(a, list | tuple)), None)
    if place is None:
        place = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)), None)
    dims = _dims(kwargs.get("dim", place), rank)
    if channels.dim in dims:
        return {}
    shift = 0 if outputs[0].dim() == rank else sum(d < channels.dim for d in dims)
    return {id(o): Channels(channels.dim - shift, channels.labels) for o in outputs}


def _along(known: Known, args: Sequence[Any], outputs: list[Tensor]) -> _Found:
    """Everything along one dimension together."""
    channels = known.channels(args[0])
    if channels is None or args[1] % args[0].dim() == channels.dim:
        return None
    return _same(known, args, outputs)


def _attention(known: Known, args: Sequence[Any], kwargs: Any, outputs: list[Tensor]) -> _Found:
    """(B, heads, N, width): the heads of queries, keys, values and a mask are the same."""
    query, key, value = (known.channels(tensor) for tensor in args[:3])
    masks = [mask for mask in (*args[3:], *kwargs.values()) if isinstance(mask, Tensor)]
    headed = [(mask, c) for mask in masks if (c := known.channels(mask)) is not None]
    if value is None or value.dim not in (1, args[2].dim() - 1):
        return None
    if value.dim == 1 and args[2].dim() == 4:
        if query is None or key is None or query.dim != 1 or key.dim != 1:
            return None
        if any(channels.dim != mask.dim() - 3 for mask, channels in headed):
            return None
        for other in (query, key, *(channels for _, channels in headed)):
            known.ledger.unite(value.labels, other.labels, known.here("attention"))
        for mask in masks:
            if known.channels(mask) is None and mask.dim() > 2 and mask.shape[-3] > 1:
                known.ledger.fix(value.labels, "the mask of its attention has a fixed size")
        return {id(outputs[0]): value}
    if headed:
        return None
    if query is not None or key is not None:
        if query is None or key is None or not query.dim == key.dim == args[0].dim() - 1:
            return None
        known.ledger.unite(query.labels, key.labels, known.here("attention"))
    return {id(outputs[0]): value}


def _spatial(known: Known, dims: int, args: Sequence[Any], outputs: list[Tensor]) -> _Found:
    """Along the last dimensions alone: pooling, padding, interpolation."""
    channels = known.channels(args[0])
    if any(known.channels(other) is not None for other in tensors(list(args[1:]))):
        return None
    if channels is None or channels.dim >= args[0].dim() - dims:
        return None
    return {id(o): channels for o in outputs}


def _correlation(known: Known, name: str, inputs: list[Tensor]) -> _Found:
    """Features (B, C, H, W), channel by channel; what is made of positions has no channels."""
    features = [t for t in inputs if t.dim() == 4 and t.shape[1] == inputs[0].shape[1]]
    channels = [known.channels(tensor) for tensor in features]
    present = [c for c in channels if c is not None and c.dim == 1]
    others = [c for t in inputs if (c := known.channels(t)) is not None]
    if len(present) < len(others):
        return None
    for other in present[1:]:
        known.ledger.unite(present[0].labels, other.labels, known.here(name))
    if len(present) < len(channels):
        known.ledger.fix(present[0].labels, f"meets a tensor of fixed size in {known.here(name)}")
    return {}


def _volume(known: Known, args: Sequence[Any], out: Tensor) -> _Found:
    """(B, C, H, W) and (B, C', H, W) to (B, C + C', D, H, W)."""
    pair = [known.channels(tensor) for tensor in args[:2]]
    if any(channels is not None and channels.dim != 1 for channels in pair):
        return None
    labels = [
        torch.full((tensor.shape[1],), -1) if channels is None else channels.labels
        for tensor, channels in zip(args, pair, strict=False)
    ]
    return {id(out): Channels(1, torch.cat(labels))}


def _moved(
    known: Known, name: str, func: Callable, args: Sequence[Any], kwargs: Any, outputs: list[Tensor]
) -> _Found:
    """Entries that change places alone: the operator runs on labels."""
    inputs = tensors((args, kwargs))
    if name == "index" and any(known.channels(t) is not None for t in inputs[1:]):
        return None
    if name == "constant_pad_nd":
        return _padded(known.channels(args[0]), args, outputs[0])

    def spread(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        channels = known.channels(value)
        if channels is None:
            if name == "index" and value.dtype in (torch.int64, torch.bool, torch.int32):
                return value
            return value.new_full((), -1, dtype=torch.int64).expand(value.shape)
        shape = [1] * value.dim()
        shape[channels.dim] = -1
        return channels.labels.to(value.device).view(shape).expand(value.shape)

    if name == "index_select":
        args = (spread(args[0]), *args[1:])
    elif name in ("view", "_unsafe_view"):
        args = (spread(args[0]).contiguous(), *args[1:])
        func = torch.ops.aten.view.default
    else:
        args, kwargs = tree_map(spread, (list(args), kwargs))
    moved = tensors(func(*args, **kwargs))
    dims = {c.dim for t in inputs if (c := known.channels(t)) is not None}
    return {
        id(o): _collapsed(known, name, labels.cpu(), dims)
        for o, labels in zip(outputs, moved, strict=True)
    }


def _padded(channels: Channels | None, args: Sequence[Any], out: Tensor) -> _Found:
    """What is padded along the channels are places that stay."""
    from_last = args[0].dim() - 1 - channels.dim if channels is not None else 0
    pads = args[1][2 * from_last : 2 * from_last + 2]
    if channels is None or min(pads, default=0) < 0:
        return None
    before, after = (channels.labels.new_full((n,), -1) for n in pads or (0, 0))
    return {id(out): Channels(channels.dim, torch.cat([before, channels.labels, after]))}


def _collapsed(known: Known, name: str, labels: Tensor, dims: set[int]) -> Channels | None:
    """Labels of every entry as those of one dimension, which ties along the others."""
    for dim in range(labels.dim()):
        first = labels.narrow(dim, 0, 1) if labels.shape[dim] else labels
        if bool((labels == first).all()):
            labels = first
    varying = {d: n for d, n in enumerate(labels.shape) if n > 1}
    if not varying:
        if labels.numel() and int(labels.flatten()[0]) >= 0:
            known.ledger.fix(labels.flatten(), f"taken alone in {known.here(name)}")
        return None
    if len(varying) == 1:
        (dim,) = varying
        channels = Channels(dim, labels.flatten())
        if name in _DIVIDES:
            known.joined(channels.labels)
        return channels
    if name in _DIVIDES:
        dim = known.divided(labels)
    else:
        dim = next((d for d in dims if d in varying), min(varying))
    rows = labels.movedim(dim, 0).flatten(1)
    known.ledger.unite(rows[:, :1], rows, known.here(name))
    return Channels(dim, rows[:, 0])
