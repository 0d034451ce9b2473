"""A checkpoint as bytes: each process's share of what all hold alike, and its own part whole."""

from __future__ import annotations

import io
import itertools
import math
import pickle
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ....common.ranks import digest

__all__ = ["Shared", "aligned", "divide", "join", "pack", "unpack"]

_ALIGNED = 16
_PLACE = "place among shared tensors"


class Shared:
    """Tensors that all processes hold alike, of any kind, laid end to end as bytes."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.starts, self.length = _starts([t.nbytes for t in self.tensors])
        kinds = [(str(t.dtype), tuple(t.shape), _order(t)) for t in self.tensors]
        self.digest = digest(repr(kinds))

    def bounds(self, rank: int, processes: int) -> tuple[int, int]:
        """First byte, and the one behind the last, of a process's share."""
        size = -(-self.length // processes)
        return min(rank * size, self.length), min((rank + 1) * size, self.length)

    def write(self, out: Tensor, start: int) -> None:
        """Copy the bytes from `start` on into `out` (N,), as many as it has room for.

        From a GPU they go through pinned memory, in a stream of their own.
        """
        device = next((t.device for t in self.tensors if t.is_cuda), None)
        if device is None:
            self._copy(out, start)
            return
        pinned = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._copy(pinned, start)
        stream.synchronize()
        out.copy_(pinned)

    def _copy(self, out: Tensor, start: int) -> None:
        stop = start + len(out)
        for tensor, first in zip(self.tensors, self.starts, strict=True):
            low = max(first, start)
            high = min(first + tensor.nbytes, stop)
            if low < high:
                part = _bytes(tensor)[low - first : high - first]
                out[low - start : high - start].copy_(part, non_blocking=True)


def divide(checkpoint: Mapping[str, Any], shared: Collection[str]) -> tuple[dict, list[Tensor]]:
    """Take out of a checkpoint what all processes hold alike.

    That is what `shared` names within its `state_dict`, and the states of optimisers.

    Returns:
        The checkpoint with places instead of those tensors, and the tensors.
    """
    tensors: list[Tensor] = []

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors.append(value.detach())
        facts = {"shape": list(value.shape), "dtype": value.dtype, "order": _order(value)}
        return {_PLACE: len(tensors) - 1, **facts}

    parameters = {
        name: place(value) if name in shared else value
        for name, value in checkpoint["state_dict"].items()
    }
    states = tree_map(place, checkpoint["optimizer_states"])
    return {**checkpoint, "state_dict": parameters, "optimizer_states": states}, tensors


def join(divided: Any, stream: Tensor) -> Any:
    """The checkpoint that `divide` took apart, with the bytes of all shared tensors (N,)."""
    leaves = tree_leaves(divided, is_leaf=_is_place)
    places = sorted(filter(_is_place, leaves), key=itemgetter(_PLACE))
    sizes = [math.prod(place["shape"]) * place["dtype"].itemsize for place in places]
    starts, _ = _starts(sizes)

    def fill(value: Any) -> Any:
        if not _is_place(value):
            return value
        index, order = value[_PLACE], value["order"]
        flat = stream[starts[index] : starts[index] + sizes[index]].clone()
        tensor = flat.view(value["dtype"]).view([value["shape"][axis] for axis in order])
        return tensor.permute([order.index(axis) for axis in range(len(order))])

    return tree_map(fill, divided, is_leaf=_is_place)


def pack(own: dict[str, Any], check: bool = False) -> Tensor:
    """What belongs to one process alone, as bytes (N,); `check` tries whether it can be read again.

    Raises:
        ValueError: it cannot: something in it is neither a plain value nor a tensor.
    """
    content = io.BytesIO()
    torch.save(own, content)
    packed = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    if check:
        try:
            unpack(packed)
        except pickle.UnpicklingError as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                "a snapshot keeps tensors and plain values, and the state of a callback, a data "
                f"module or a hook has something else: {reason}"
            ) from error
    return packed


def unpack(packed: Tensor) -> dict[str, Any]:
    """What `pack` was given."""
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)


def aligned(size: int) -> int:
    """Bytes of room for a piece, so that the next begins where any type may."""
    return -(-size // _ALIGNED) * _ALIGNED


def _starts(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces begin, and where the last one's room ends."""
    ends = list(itertools.accumulate(map(aligned, sizes), initial=0))
    return ends[:-1], ends[-1]


def _order(tensor: Tensor) -> list[int]:
    """The axes as memory has them, the slowest first: layouts such as channels-last stay."""
    return sorted(range(tensor.ndim), key=tensor.stride, reverse=True)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.permute(_order(tensor)).contiguous().flatten().view(torch.uint8)


def _is_place(value: Any) -> bool:
    return isinstance(value, Mapping) and _PLACE in value
