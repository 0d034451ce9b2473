"""Collapse: a search that fills the network with candidates that hold no parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..elastic.operation import ElasticOperation
from ..space import Scalar
from ..supernet import elastic_modules

__all__ = ["free_values", "share_of_free"]


def free_values(model: nn.Module) -> dict[str, set[Scalar]]:
    """For each choice between modules the candidates without parameters: skips, pooling, zero."""
    free: dict[str, set[Scalar]] = {}
    for module in elastic_modules(model):
        if isinstance(module, ElasticOperation):
            children = module.named_children()
            bare = {name for name, child in children if not any(True for _ in child.parameters())}
            free[module.choice.name] = free.get(module.choice.name, bare) & bare
    return free


def share_of_free(architecture: Mapping[str, Any], free: Mapping[str, set[Scalar]]) -> float:
    """The share of an architecture's choices between modules that took such a candidate.

    Args:
        architecture: name → value.
        free: of `free_values`.
    """
    chosen = [
        architecture[n] in values for n, values in free.items() if architecture[n] is not None
    ]
    return sum(chosen) / max(1, len(chosen))
