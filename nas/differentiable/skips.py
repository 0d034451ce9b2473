"""Collapse: a search that fills the network with candidates that hold no parameters.

Here are their share of an architecture, by which a search can be watched and ended, and dropout on
them. `samplers.Sigmoid` is a further remedy, since by it they do not compete with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..elastic.operation import ElasticOperation
from ..space import Scalar
from ..supernet import elastic_modules
from .logits import Draw

__all__ = ["drop_free", "free_values", "share_of_free"]


def free_values(model: nn.Module) -> dict[str, set[Scalar]]:
    """For each choice between modules the candidates without parameters: skips, pooling, zero."""
    free: dict[str, set[Scalar]] = {}
    for module in elastic_modules(model):
        if isinstance(module, ElasticOperation):
            children = module.named_children()
            bare: set[Scalar] = {name for name, child in children if not list(child.parameters())}
            free[module.choice.name] = free.get(module.choice.name, bare) & bare
    return free


def share_of_free(architecture: Mapping[str, Any], free: Mapping[str, set[Scalar]]) -> float:
    """The share of an architecture's choices between modules that took one of `free_values`."""
    chosen = [
        architecture[n] in values for n, values in free.items() if architecture[n] is not None
    ]
    return sum(chosen) / max(1, len(chosen))


def drop_free(
    draw: Draw, free: Mapping[str, set[Scalar]], rate: float, generator: torch.Generator
) -> Draw:
    """Leave candidates without parameters out of a draw at random, so that the others learn.

    The weights of those that stay are divided by 1 - `rate`, as dropout does; the draw is of a
    sampler by which all candidates run. Source: Chen et al., "Progressive Differentiable
    Architecture Search", ICCV 2019, section 3.3, which drops parts of an output instead of the
    whole.
    """
    weights = dict(draw.weights)
    for name, drawn in draw.weights.items():
        values = draw.values[name]
        kept = torch.rand(len(values), generator=generator) >= rate
        bare = torch.tensor([value in free.get(name, ()) for value in values])
        factors = torch.where(bare, kept / (1 - rate), 1.0).to(drawn.values.device)
        weights[name] = drawn._replace(values=drawn.values * factors)
    return replace(draw, weights=weights)
