"""Layers whose weights are a frozen one plus a product of two thin matrices: the product, merged.

Beside a layer's `weight` a state dict then has `lora_a`, (groups * rank, inputs of a group, ...) in
the form of a weight with that many outputs, and `lora_b`, (outputs, rank, 1, ...).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["A", "B", "is_part", "merged", "merged_state", "product"]

A, B = "lora_a", "lora_b"


def product(a: Tensor, b: Tensor) -> Tensor:
    """What the two add to a weight, in its form: (outputs, inputs of a group, ...)."""
    rank = b.shape[1]
    groups = len(a) // rank
    rows, columns = a.reshape(groups, rank, -1), b.reshape(groups, -1, rank)
    return (columns @ rows).reshape(len(b), *a.shape[1:])


def merged(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The weight with its product added, rounded once."""
    total = weight.double() + product(a.double(), b.double())
    return total.to(weight.dtype, memory_format=torch.preserve_format)


def is_part(name: str) -> bool:
    """Whether a tensor's name is that of an A or a B."""
    return name.rpartition(".")[2] in (A, B)


def merged_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of the plain network; one without such layers comes back as it is."""
    plain = {name: tensor for name, tensor in state.items() if not is_part(name)}
    for name, b in state.items():
        if name.rpartition(".")[2] == B:
            layer = name.removesuffix(B)
            plain[f"{layer}weight"] = merged(state[f"{layer}weight"], state[layer + A], b)
    return plain
