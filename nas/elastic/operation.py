"""A choice between modules."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from typing import Any, cast

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..space import Choice
from .base import Condition, Copies, ElasticModule, Setting, extract_module

__all__ = ["ElasticOperation", "Operation"]


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
        copies = {} if copies is None else copies
        return extract_module(self._modules[self.settings(architecture)], architecture, copies)

    def extra_repr(self) -> str:
        """The name of the active candidate."""
        return f"active: {self.active}"


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
