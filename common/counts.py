"""What a network costs without running it: parameters, multiply-adds, memory of activations.

The forward pass is followed operator by operator on the meta device, where nothing is computed.
Multiply-adds are those of PyTorch's own formulas (`torch.utils.flop_counter`): convolutions and
matrix products count, and any operator for which a formula is registered there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .layers import CHANNELS_LAST, evaluating

__all__ = ["Counts", "Operator", "count", "count_parameters", "follow", "on_meta"]


@dataclass(frozen=True)
class Counts:
    """Costs of one forward pass."""

    parameters: int  #: values in parameters; buffers do not count
    macs: int  #: multiply-adds
    #: bytes of the tensors alive at the worst moment, inputs with them and weights not, where every
    #: operator writes its output to memory
    memory: int

    def to_json(self) -> dict[str, int]:
        """Plain values under the attributes' names."""
        return asdict(self)


@dataclass(frozen=True)
class Operator:
    """One operator call of a forward pass."""

    function: Callable[..., Any]  #: the operator's overload
    args: tuple[Any, ...]  #: positional arguments, tensors on the meta device
    kwargs: dict[str, Any]  #: named arguments
    macs: int  #: multiply-adds

    @property
    def key(self) -> str:
        """Kind, shapes and settings in one line; alike for calls that cost alike.

        Example: ``aten.convolution 1x8x72x144 24x8x1x1 None [1, 1] [0, 0] [1, 1] False [0, 0] 1``
        """
        words = [_word(value) for value in self.args]
        words += [f"{name}={_word(value)}" for name, value in sorted(self.kwargs.items())]
        return " ".join((str(self.function).removesuffix(".default"), *words))


def on_meta(net: nn.Module) -> nn.Module:
    """A copy of a network without values: shapes only."""
    # Of a network's plain tensors scalars and indices mix with what has no values; they are read.
    held = (
        value
        for module in net.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and value.layout == torch.strided
        if value.is_floating_point() and value.dim()
    )
    memo = {
        id(tensor): _meta_like(tensor)
        for tensor in (*net.parameters(), *net.buffers(), *held)
        if tensor.device.type != "meta"
    }
    return copy.deepcopy(net, memo)


def follow(net: nn.Module, *inputs: Tensor) -> tuple[list[Operator], int]:
    """The operators of a forward pass in evaluation mode, and the peak memory of its tensors.

    Args:
        net: on the meta device (see `on_meta`).
        *inputs: there too.

    Returns:
        The operators in order, without those that only look at a tensor's memory in another way;
        and the bytes of `Counts.memory`.
    """
    watch = _Watch((*net.parameters(), *net.buffers()), inputs)
    with evaluating(net), torch.no_grad(), watch:
        net(*inputs)
    return watch.operators, watch.peak


def count(net: nn.Module, *inputs: Tensor) -> Counts:
    """Count a network's costs; its device is of no matter, nor is that of its inputs.

    Example:
        >>> count(extract(supernet, architecture), left, right).macs
    """
    there = all(tensor.is_meta for tensor in (*net.parameters(), *net.buffers()))
    shapes = net if there else on_meta(net)
    operators, peak = follow(shapes, *(tensor.to("meta") for tensor in inputs))
    return Counts(count_parameters(net), sum(operator.macs for operator in operators), peak)


def count_parameters(net: nn.Module) -> int:
    """Number of parameter values; buffers such as running means do not count."""
    return sum(parameter.numel() for parameter in net.parameters())


class _Watch(TorchDispatchMode):
    """Writes down operators, and the bytes alive after each."""

    def __init__(self, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self.peak = 0
        self._weights = {StorageWeakRef(tensor.untyped_storage()) for tensor in weights}
        self._alive: dict[StorageWeakRef, int] = {}
        self._bytes = 0
        self._note(inputs)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = _called(function, args, kwargs)
        if not (_is_view(function) or str(function).startswith("aten.empty")):
            formula = flop_registry.get(function.overloadpacket)
            flops = formula(*args, **kwargs, out_val=result) if formula else 0
            # Fresh tensors of the same shapes, so that no memory is kept alive.
            named = {name: _meta_like(value) for name, value in kwargs.items()}
            self.operators.append(Operator(function, _meta_like(args), named, flops // 2))
            self._note(tree_leaves(result))
        return result

    def _note(self, values: Sequence[Any]) -> None:
        for ref in [ref for ref in self._alive if ref.expired()]:
            self._bytes -= self._alive.pop(ref)
        for value in values:
            if isinstance(value, Tensor):
                ref = StorageWeakRef(value.untyped_storage())
                if ref not in self._alive and ref not in self._weights:
                    self._alive[ref] = value.untyped_storage().nbytes()
                    self._bytes += self._alive[ref]
        self.peak = max(self.peak, self._bytes)


_MOST = 10_000  # results that are remembered
_known: dict[Any, Any] = {}


def _called(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operator returns on the meta device.

    Many are a long way of smaller ones there, and subnets of one supernet have most of their calls
    in common: so shapes of results are remembered.
    """
    given = _described((*args, *kwargs.items())) if _is_functional(function) else None
    if given is None:
        return _laid_out(function(*args, **kwargs), function, args)
    key = function, given, torch.get_default_dtype()  # of what is made without a type
    if (known := _known.get(key)) is not None:
        return _made(known)
    result = _laid_out(function(*args, **kwargs), function, args)
    known = _described(result)
    if known is not None and _bytes(result) == _bytes(_made(known)):
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = known
    return result


_FORGETFUL = (torch.ops.aten.convolution.default, torch.ops.aten.replication_pad2d.default)


def _laid_out(result: Any, function: Any, args: Any) -> Any:
    """An operator's result as it lies where there are values: some meta kernels make it contiguous.

    It lies with its channels last where the input, or the weights of a convolution, do.
    """
    layout = CHANNELS_LAST.get(result.dim()) if function in _FORGETFUL else None
    given = (x for x in args[:2] if isinstance(x, Tensor))
    if layout is None or all(suggest_memory_format(x) != layout for x in given):
        return result
    return torch.empty_like(result, memory_format=layout)


@cache
def _is_functional(function: Any) -> bool:
    """Whether an operator returns tensors of its own and changes none."""
    schema = function._schema
    return all(value.alias_info is None for value in (*schema.arguments, *schema.returns))


_PLAIN = (int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def _described(value: Any) -> Any:
    """What a value is made of, hashable, tensors by their shapes; None where that is not all."""
    kind = type(value)
    if kind in (Tensor, nn.Parameter):
        plain = value.is_meta and value.layout == torch.strided and not value.dtype.is_complex
        if not plain or value.storage_offset():
            return None
        return Tensor, (value.shape, value.stride(), value.dtype)
    if kind in (tuple, list):
        parts = tuple(map(_described, value))
        return None if None in parts else (kind, parts)
    # With the type, since 1, 1.0 and True are equal.
    return (kind, value) if value is None or isinstance(value, _PLAIN) else None


def _made(description: Any) -> Any:
    """A value that is described so."""
    kind, content = description
    if kind is Tensor:
        return _shaped(*content)
    return kind(map(_made, content)) if kind in (tuple, list) else content


def _shaped(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _bytes(result: Any) -> list[int]:
    """Those of the storages of the tensors that an operator returned."""
    return [x.untyped_storage().nbytes() for x in tree_leaves(result) if isinstance(x, Tensor)]


def _is_view(function: Any) -> bool:
    """Whether an operator returns its argument's memory and leaves it as it is."""
    returned = [value.alias_info for value in function._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


def _meta_like(tensor: Any) -> Any:
    """A tensor's shape, without values, also within lists; anything else as it is."""
    if type(tensor) in (tuple, list):
        return type(tensor)(map(_meta_like, tensor))
    if not isinstance(tensor, Tensor):
        return tensor
    like = _shaped(tensor.shape, tensor.stride(), tensor.dtype)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(like, requires_grad=tensor.requires_grad)
    return like


def _word(value: Any) -> str:
    if isinstance(value, Tensor):
        return "x".join(map(str, value.shape)) or "scalar"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_word, value))}]"
    return str(value)
