"""What every elastic layer is: the largest weights, numbers that depend on choices, an export."""

from __future__ import annotations

import copy
import functools
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ...common.layers import CHANNELS_LAST
from ..values import Placed, Value, joined, maximum, resolve, segments

__all__ = ["Axis", "ElasticModule", "Part", "extract_module", "is_elastic", "parts", "put", "take"]

Part = tuple[int, int]  #: start and length of channels in use

_KNOWN = 256
"""Settings that a layer keeps: of any that depends on few choices, all."""

_FEW = 4
"""Parts up to this number are put together one by one, more of them by their indices."""

_Layer = TypeVar("_Layer", bound=nn.Module)

Setting = Mapping[str, Any] | None  #: a value for each choice, by name; None means the largest

Copies = dict[int, Any] | None
"""What is copied so far, by identity, as `copy.deepcopy` keeps it: shared modules stay shared."""

Condition = Mapping[str, tuple[Any, ...]]
"""Names of choices and the values (of all of them) under which something is in use."""


class Axis(NamedTuple):
    """A dimension of a tensor whose entries are channels, so that they may change places."""

    tensor: str  #: the parameter's or buffer's name in its layer
    dim: int  #: the dimension
    number: Value | int  #: the channels it has
    #: `reads` (a weight's input channels), `writes` (its output channels), or `keeps` (channel by
    #: channel, as in a normalisation or depthwise convolution)
    role: str


class ElasticModule(nn.Module):
    """Holds the largest weights and runs the active part of them; starts as the largest.

    A layer of your own inherits this and its torch layer, calls `set_numbers` at the end of
    `__init__`, and implements `settings` and `export`.
    """

    numbers: Mapping[str, Value | int] = {}  #: the arguments that may depend on choices, by name
    active: Any = None  #: what `settings` returned for the active architecture
    _modules: dict[str, nn.Module]  # type: ignore[assignment]  # none of them is None
    _names: tuple[str, ...] = ()
    _values: tuple[Any, ...] | None = None

    def set_numbers(self, **numbers: Value | int) -> None:
        """State the arguments that may depend on choices, and activate the largest."""
        self.numbers = numbers
        choices = [choice for value in self.values() for choice in value.choices]
        self._names = tuple(dict.fromkeys(choice.name for choice in choices))
        self._known: dict[tuple[Any, ...], Any] = {}
        self.settings({choice.name: choice.smallest for choice in choices})  # it fits, too
        self.active = self.settings(None)

    def values(self) -> tuple[Value, ...]:
        """The values this module depends on, its children's left out."""
        return tuple(v for v in self.numbers.values() if isinstance(v, Value))

    def conditions(self) -> Mapping[str, Condition]:
        """Under which choices a child is in use, by the child's name; no entry means always."""
        return {}

    def axes(self) -> tuple[Axis, ...]:
        """Where the channels lie that may be sorted; numbers without an axis are not sorted."""
        return ()

    def settings(self, architecture: Setting) -> Any:
        """What is in use under `architecture`, ready for `forward`."""
        raise NotImplementedError

    def activate(self, architecture: Mapping[str, Any]) -> None:
        """Run as `architecture` says from now on, this module alone."""
        values = tuple(map(architecture.__getitem__, self._names))
        if values == self._values:
            return
        if values not in self._known:
            if len(self._known) == _KNOWN:
                self._known.clear()
            self._known[values] = self.settings(architecture)
        self.active = self._known[values]
        self._values = values

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Module:
        """The standard torch module that equals this one under `architecture`.

        It has its own storage and this module's device, dtype, memory format, training flag and
        `requires_grad` flags. What is active here stays as it is. Containers pass `copies` on.
        """
        raise NotImplementedError

    @property
    def active_values(self) -> dict[str, Any]:
        """The values of the choices used here, by name; empty before the first activation."""
        return {} if self._values is None else dict(zip(self._names, self._values, strict=True))


def is_elastic(numbers: Iterable[object]) -> bool:
    """Whether any of the numbers depends on a choice."""
    return any(isinstance(number, Value) for number in numbers)


def number_of(value: Value | int, architecture: Setting) -> int:
    """The number under an architecture."""
    return maximum(value) if architecture is None else resolve(value, architecture)


def parts(value: Value | int, architecture: Setting) -> tuple[Part, ...]:
    """Where the active channels lie among the largest number of them.

    They are the leading ones, of each part of a concatenation, unless the value itself says where
    they lie; parts that touch are joined.
    """
    if isinstance(value, Placed):
        return value.runs(architecture or {}) or ((0, 0),)
    starts = itertools.accumulate(map(maximum, segments(value)), initial=0)
    lengths = (number_of(segment, architecture) for segment in segments(value))
    return joined(zip(starts, lengths, strict=False)) or ((0, 0),)


def take(tensor: Tensor, dim: int, where: tuple[Part, ...]) -> Tensor:
    """The given parts of a dimension: a view if there is one part, else their concatenation."""
    if len(where) == 1:
        start, length = where[0]
        return tensor if length == tensor.shape[dim] else tensor.narrow(dim, start, length)
    if len(where) > _FEW:
        return tensor.index_select(dim, _indices(where, tensor.device))
    return torch.cat([tensor.narrow(dim, *part) for part in where], dim)


def put(tensor: Tensor, where: tuple[Part, ...], values: Tensor) -> None:
    """Write `values` (n,) to the given parts of the one-dimensional `tensor`, in place."""
    if len(where) > _FEW:
        tensor.index_copy_(0, _indices(where, tensor.device), values.to(tensor.dtype))
        return
    first = 0
    for start, length in where:
        tensor.narrow(0, start, length).copy_(values.narrow(0, first, length))
        first += length


def _indices(where: tuple[Part, ...], device: torch.device) -> Tensor:
    # A tensor of a trace must not outlive it.
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return _listed.__wrapped__(where, device) if tracing else _listed(where, device)


@functools.lru_cache(maxsize=4096)
@torch.inference_mode(False)  # what is kept is there for training, too
def _listed(where: tuple[Part, ...], device: torch.device) -> Tensor:
    indices = [index for start, length in where for index in range(start, start + length)]
    return torch.tensor(indices, device=device)


def memory_format(tensor: Tensor) -> torch.memory_format:
    """Channels-last where a tensor lies in memory like that and not else, or contiguous."""
    last = CHANNELS_LAST.get(tensor.dim(), torch.contiguous_format)
    if tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous():
        return last
    return torch.contiguous_format


def check_channels(layer: nn.Module, given: int, wanted: int) -> None:
    """Raise a ValueError unless an input has the channels that the layer has active."""
    if given != wanted:
        raise ValueError(
            f"{type(layer).__name__} has {wanted} input channels active but was given {given}: "
            "give it the choice of the layer before it, and activate an architecture on the whole "
            "network, not on a part of it"
        )


def fill(layer: _Layer, source: nn.Module, **tensors: Tensor | None) -> _Layer:
    """Give a layer built on the meta device copies of `tensors` and the source's flags."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        tensor = tensor.detach().clone()  # keeps channels-last, and frees from the large storage
        if name in layer._parameters:
            tensor = nn.Parameter(tensor, getattr(source, name).requires_grad)
        setattr(layer, name, tensor)
    layer.training = source.training
    return layer


def extract_module(module: nn.Module, architecture: Setting, copies: Copies = None) -> nn.Module:
    """A copy of `module` with every elastic module in it replaced by its export.

    Hooks of forward and backward passes are not copied; other attributes are, deeply.
    """
    copies = {} if copies is None else copies
    _export_within(module, architecture, copies)
    return copy.deepcopy(module, copies)


def _export_within(module: nn.Module, architecture: Setting, copies: dict[int, Any]) -> None:
    """Fill `copies`, so that `copy.deepcopy` finds what shall not be copied as it is."""
    if id(module) in copies:
        return
    if isinstance(module, ElasticModule):
        copies[id(module)] = module.export(architecture, copies)
        return
    export_parts(module, architecture, copies)


def export_parts(module: nn.Module, architecture: Setting, copies: dict[int, Any]) -> None:
    """Fill `copies` with what a module holds: parameters, buffers, children; no hooks."""
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if id(tensor) not in copies:
            own = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                own = nn.Parameter(own, tensor.requires_grad)
            copies[id(tensor)] = own
    for name, attribute in vars(module).items():
        # A module has a dozen empty dictionaries, which `copy.deepcopy` takes long to copy.
        empty = type(attribute) in (dict, OrderedDict) and not attribute
        hooks = name.startswith(("_forward_", "_backward_")) and isinstance(attribute, dict)
        if empty or hooks:
            copies[id(attribute)] = type(attribute)()
    for child in module.children():
        _export_within(child, architecture, copies)
