"""Sequences whose length is a choice, choices between modules, and numbers.

What does not run keeps its weights.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, cast

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...common.layers import Number
from ..values import Choice, Value, outcomes
from .base import Condition, Copies, ElasticModule, Setting, extract_module, number_of

__all__ = ["ElasticModuleList", "ElasticNumber", "ElasticOperation", "ElasticSequential"]
__all__ += ["ModuleList", "Operation", "Sequential"]


class ElasticNumber(ElasticModule):
    """A `Number` that depends on a choice; `value` is what is active of it."""

    plain: type[Number] = Number

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.set_numbers(value=value)

    @property
    def value(self) -> int:
        """What is active."""
        return self.active

    def settings(self, architecture: Setting) -> int:
        """What is active under an architecture."""
        return number_of(self.numbers["value"], architecture)

    def export(self, architecture: Setting, copies: Copies = None) -> Number:
        """A plain number."""
        return self.plain(self.settings(architecture)).train(self.training)


class _ElasticSequence(ElasticModule):
    """Iteration, length and indices show the active modules only; the state dict has all."""

    plain: type[nn.Module]

    def set_length(self, length: Value) -> None:
        if len(length.choices) != 1:
            names = ", ".join(repr(choice.name) for choice in length.choices)
            raise ValueError(f"the length of a sequence must depend on one choice, not on {names}")
        lengths = outcomes(length)
        if lengths[0] < 0 or lengths[-1] != len(self._modules):
            raise ValueError(
                f"a sequence of {len(self._modules)} modules needs a length from 0 to "
                f"{len(self._modules)}, not {', '.join(map(str, lengths))}"
            )
        self.set_numbers(length=length)

    def settings(self, architecture: Setting) -> int:
        return number_of(self.numbers["length"], architecture)

    def conditions(self) -> Mapping[str, Condition]:
        length = cast("Value", self.numbers["length"])
        (choice,) = length.choices
        lengths = {value: length.at({choice.name: value}) for value in choice.values}
        return {
            name: {choice.name: tuple(value for value, n in lengths.items() if n > index)}
            for index, name in enumerate(self._modules)
            if min(lengths.values()) <= index  # else it is always in use
        }

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Module:
        copies = {} if copies is None else copies
        layer = self.plain()
        for name, module in list(self._modules.items())[: self.settings(architecture)]:
            layer.add_module(name, extract_module(module, architecture, copies))
        layer.training = self.training
        return layer

    def __len__(self) -> int:
        return len(self._modules) if self.active is None else self.active

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(list(self._modules.values())[: len(self)])

    def __getitem__(self, index: int | slice) -> Any:
        part: Any = list(self)[index]
        if not isinstance(index, slice):
            return part
        return nn.Sequential(*part) if isinstance(self, nn.Sequential) else nn.ModuleList(part)

    def extra_repr(self) -> str:
        return f"active: {len(self)} of {len(self._modules)}"


class ElasticSequential(_ElasticSequence, nn.Sequential):
    """What `Sequential` returns where its length depends on a choice."""

    plain = nn.Sequential

    def __init__(self, *modules: Any, length: Value) -> None:
        super().__init__(*modules)
        self.set_length(length)

    def forward(self, x: Any) -> Any:
        """The input through the active modules, in order."""
        # Where it finds torch's own forward pass, torch's compiler may run all of `_modules`.
        for module in self:
            x = module(x)
        return x


class ElasticModuleList(_ElasticSequence, nn.ModuleList):
    """What `ModuleList` returns where its length depends on a choice."""

    plain = nn.ModuleList

    def __init__(self, modules: Iterable[nn.Module], *, length: Value) -> None:
        super().__init__(modules)
        self.set_length(length)


class ElasticOperation(ElasticModule):
    """What `Operation` returns where the candidate is a choice. Each candidate is a child.

    Its export is the candidate's, so that of `conv.deformable.weight` remains `conv.weight`.
    """

    #: candidates to run instead of the active one and the scalars by which their outputs are
    #: multiplied before they are summed; None for none
    mixture: Mapping[str, Tensor] | None = None

    def __init__(self, candidates: Mapping[str, nn.Module], choice: Choice) -> None:
        super().__init__()
        if set(candidates) != set(choice.values):
            raise ValueError(
                f"the candidates of choice {choice.name!r} are to be {list(choice.values)}, "
                f"not {list(candidates)}"
            )
        for name in cast("tuple[str, ...]", choice.values):
            self.add_module(name, candidates[name])
        self.set_numbers(choice=choice)

    def settings(self, architecture: Setting) -> str:
        """The name of the active candidate; the largest's where the choice does not matter."""
        choice = self.choice
        value = None if architecture is None else architecture[choice.name]
        return cast("str", choice.largest) if value is None else value

    def conditions(self) -> Mapping[str, Condition]:
        """Each candidate is in use under its own name."""
        choice = self.choice
        if len(choice.values) == 1:
            return {}
        return {str(name): {choice.name: (name,)} for name in choice.values}

    @property
    def choice(self) -> Choice:
        """What it depends on."""
        return cast("Choice", self.numbers["choice"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the active candidate returns, or the weighted sum of a mixture's."""
        if self.mixture is None:
            return self._modules[self.active](*args, **kwargs)
        weights = self.mixture.values()
        outputs = [self._modules[name](*args, **kwargs) for name in self.mixture]
        return tree_map(lambda *ys: reduce(operator.add, map(operator.mul, weights, ys)), *outputs)

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Module:
        """The export of the active candidate alone."""
        return extract_module(self._modules[self.settings(architecture)], architecture, copies)

    def extra_repr(self) -> str:
        """The name of the active candidate."""
        return f"active: {self.active}"


def Sequential(*modules: Any, length: Value | int | None = None) -> nn.Sequential:
    """`nn.Sequential` that runs its first `length` modules.

    Args:
        *modules: the modules, or one OrderedDict of them, as in torch.
        length: an int, or a value that depends on one choice and reaches the number of modules;
            None runs all.

    Raises:
        ValueError: the length does not fit the modules.
    """
    if isinstance(length, Value):
        return ElasticSequential(*modules, length=length)
    return _first(nn.Sequential(*modules), length)


def ModuleList(modules: Iterable[nn.Module], *, length: Value | int | None = None) -> nn.ModuleList:
    """`nn.ModuleList` of the first `length` modules; see `Sequential`."""
    if isinstance(length, Value):
        return ElasticModuleList(modules, length=length)
    return _first(nn.ModuleList(modules), length)


def Operation(candidates: Mapping[str, nn.Module], choice: Choice | str) -> nn.Module:
    """The candidate that the choice names; with a plain name that candidate itself.

    Candidates are modules with the same call, by name; the names are the values of the choice,
    smallest network first.

    Raises:
        ValueError: names and values differ.
    """
    if isinstance(choice, Choice):
        return ElasticOperation(candidates, choice)
    if choice not in candidates:
        raise ValueError(f"{choice!r} is not among the candidates {list(candidates)}")
    return candidates[choice]


def _first(layer: Any, length: int | None) -> Any:
    if length is None:
        return layer
    if not 0 <= length <= len(layer):
        raise ValueError(f"a sequence of {len(layer)} modules cannot have a length of {length}")
    return layer[:length]
