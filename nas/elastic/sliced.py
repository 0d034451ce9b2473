"""Any layer made elastic as it is: its own forward pass runs with slices of its tensors.

`nas.convert` makes such layers of trained ones. The class is a subclass of the layer's, made on the
spot, so that layers with a forward pass of their own stay what they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..values import Placed, Value
from .base import (
    Copies,
    ElasticModule,
    Part,
    Setting,
    export_parts,
    memory_format,
    parts,
    put,
    take,
)

__all__ = ["Sliced", "cuts_of", "restored", "sliced"]

_OWN = {"numbers", "active", "_names", "_values", "_known", "_cuts", "_attributes"}


class _Slices(NamedTuple):
    tensors: dict[str, tuple[tuple[int, tuple[Part, ...]], ...]]  #: name → dimension, where
    attributes: dict[str, Any]

    @property
    def where(self) -> tuple[Part, ...]:
        """Along the first dimension of the first tensor: the channels of a normalisation."""
        return next(iter(self.tensors.values()))[0][1]


class Sliced(ElasticModule):
    """A layer that runs slices of its tensors, and has attributes that fit them meanwhile."""

    plain: type[nn.Module]  #: the layer's class
    _cuts: Mapping[str, Mapping[int, Placed]]
    _attributes: Mapping[str, Value]

    def settings(self, architecture: Setting) -> _Slices:
        """Where the active slices lie, and what the attributes are."""
        given = {} if architecture is None else architecture
        choices = {choice.name: choice for value in self.values() for choice in value.choices}
        values = {
            name: choice.largest if given.get(name) is None else given[name]
            for name, choice in choices.items()
        }
        tensors = {
            name: tuple((dim, parts(value, values)) for dim, value in cuts.items())
            for name, cuts in self._cuts.items()
        }
        return _Slices(tensors, {name: v.at(values) for name, v in self._attributes.items()})

    def _in_use(self, active: _Slices) -> dict[str, Tensor]:
        """The active slices, in the memory format of the tensors that they are of."""
        used = {}
        for name, cuts in active.tensors.items():
            own = used[name] = getattr(self, name)
            for dim, where in cuts:
                used[name] = take(used[name], dim, where)
            if used[name] is not own:
                used[name] = used[name].contiguous(memory_format=memory_format(own))
        return used

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer's own class computes of the active slices."""
        active, own = self.active, vars(self)
        used = self._in_use(active)
        kept = {name: own[name] for name in active.attributes}
        # What an instance holds itself is found before its parameters and buffers.
        own.update(used, **active.attributes)
        try:
            output = super().forward(*args, **kwargs)
        finally:
            for name in used:
                own.pop(name, None)
            own.update(kept)
        if self.training:
            for name in used.keys() & self._buffers.keys():
                buffer, ((_, where),) = getattr(self, name), active.tensors[name]
                if len(where) > 1:  # one part is a view, and updated already
                    put(buffer, where, used[name])
        return output

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Module:
        """A layer of the plain class with copies of the active slices."""
        copies = {} if copies is None else copies
        active = self.settings(architecture)
        for name, used in self._in_use(active).items():
            own, tensor = getattr(self, name), used.detach().clone()
            if isinstance(own, nn.Parameter):
                tensor = nn.Parameter(tensor, own.requires_grad)
            copies[id(own)] = tensor
        export_parts(self, architecture, copies)
        layer = copies[id(self)] = self.plain.__new__(self.plain)
        held = {name: value for name, value in vars(self).items() if name not in _OWN}
        vars(layer).update(copy.deepcopy({**held, **active.attributes}, copies))
        return layer

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _blank, (self.plain,), vars(self).copy()


_KINDS: dict[type[nn.Module], type[Sliced]] = {}


def _elastic(plain: type[nn.Module]) -> type[Sliced]:
    """The one elastic subclass of a layer's class."""
    if plain not in _KINDS:
        named = {"plain": plain, "__module__": plain.__module__, "__doc__": plain.__doc__}
        _KINDS[plain] = type(f"Elastic{plain.__name__}", (Sliced, plain), named)
    return _KINDS[plain]


def _blank(plain: type[nn.Module]) -> Sliced:
    """What an elastic layer is unpickled into."""
    kind = _elastic(plain)
    return kind.__new__(kind)


def sliced(
    layer: nn.Module, cuts: Mapping[str, Mapping[int, Placed]], attributes: Mapping[str, Value]
) -> None:
    """Make a layer elastic in place.

    Args:
        layer: of any class; its forward pass is to read tensors and attributes from itself.
        cuts: name of a parameter or buffer → dimension → which of its positions are active.
        attributes: name → what it is meanwhile, such as the number of channels.
    """
    layer.__class__ = _elastic(type(layer))
    # Past nn.Module's own, which would look for parameters in them.
    vars(layer).update(_cuts=cuts, _attributes=attributes)
    values = {f"{name}.{dim}": value for name, dim, value in cuts_of(layer)}  # type: ignore[arg-type]
    layer.set_numbers(**values, **{f".{name}": value for name, value in attributes.items()})  # type: ignore[operator]


def cuts_of(layer: Sliced) -> Iterator[tuple[str, int, Placed]]:
    """Each tensor's name and dimension of which a part is active, and which part."""
    for name, cuts in layer._cuts.items():
        for dim, value in cuts.items():
            yield name, dim, value


def restored(module: ElasticModule) -> None:
    """Make what `sliced` or `set_length` made elastic, in place, what it was."""
    module.__class__ = module.plain  # type: ignore[assignment]
    for name in _OWN & vars(module).keys():
        del vars(module)[name]
