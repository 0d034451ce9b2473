"""Channel sorting: the most important channels first, so that smaller widths keep them.

Once-for-all networks (Cai et al., ICLR 2020) do so before widths become elastic: a channel is as
important as the sum of the magnitudes of the weights that read it; or as scores of the weights say.
Producers, normalisations and readers are permuted together, so the largest network computes what
it did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..common.layers import SqueezeExcitation
from .conversion.importance import check_scores
from .conversion.sorting import sort_selected
from .elastic.base import Axis, ElasticModule
from .elastic.sliced import Sliced
from .values import Choice, Value, cases, choices_of, segments

__all__ = ["sort_channels"]

_MOST_CASES = 4096


@dataclass
class _Group:
    """Channels that change places together: everything whose number is the same value."""

    axes: list[tuple[str, nn.Module, Axis]] = field(default_factory=list)
    readers: list[tuple[str, nn.Module, Axis]] = field(default_factory=list)
    producers: list[str] = field(default_factory=list)
    fixed: bool = False

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(choice for _, _, axis in self.axes[:1] for choice in choices_of(axis.number))

    def importance(self, scores: Mapping[str, Tensor] | None) -> Tensor:
        """(channels,) float64: sum of |w| of what the readers multiply each channel with.

        With scores it is the sum of those of all weights of a channel.
        """
        if scores is None:
            rated = [(getattr(module, axis.tensor), axis) for _, module, axis in self.readers]
        else:
            weights = [(name, axis) for name, _, axis in self.axes if axis.tensor != "bias"]
            rated = [(scores[name], axis) for name, axis in weights if name in scores]
        _, module, axis = self.axes[0]
        total = torch.zeros(getattr(module, axis.tensor).shape[axis.dim], dtype=torch.float64)
        for weight, axis in rated:
            each = weight.detach().double().cpu().abs().movedim(axis.dim, 0)
            total += each.reshape(len(total), -1).sum(1)
        return total

    @torch.no_grad()
    def permute(self, order: Tensor) -> None:
        tensors = ((getattr(module, axis.tensor), axis.dim) for _, module, axis in self.axes)
        # Once each, where layers share a weight.
        for tensor, dim in {(id(tensor), dim): (tensor, dim) for tensor, dim in tensors}.values():
            tensor.copy_(tensor.index_select(dim, order.to(tensor.device)))


def sort_channels(model: nn.Module, scores: Mapping[str, Tensor] | None = None) -> list[str]:
    """Sort the channels of a supernet, the most important ones first, in place.

    Layers that were given the same value as their number of channels share their channels. Sorted
    are widths with one producer, such as those inside a bottleneck; those that somebody else
    depends on stay: parts of a concatenation, channels of group normalisations or grouped
    convolutions, or of a weight that layers of other channels share, and of a choice whose channels
    are flattened or split between layers. In a converted network all widths are sorted: the
    important channels come to the places that smaller subnets keep, so that the plan of its
    conversion holds on.

    Only elastic layers are seen: a parameter of your own for each channel, outside of them, is not
    permuted, and the network then computes something else.

    Without scores the gate of a squeeze-excite does not count as a reader of the channels that it
    scales; its own reduced channels are sorted too. An optimiser's moments are not permuted: make
    a new one.

    Args:
        model: the supernet.
        scores: of weights by their names, as `taylor_scores` gives them, say how important a
            channel is, 0 of one that is left out; by default the magnitudes of the weights that
            read it, in a converted network of all its weights.

    Returns:
        For each width sorted, the name of its producer, of a converted one the choice's layer.

    Raises:
        ValueError: scores are of other parameters.
    """
    check_scores(model, scores or {})
    groups = [g for g in _groups(model) if g.readers and len(g.producers) == 1 and not g.fixed]
    for group in groups:
        group.permute(group.importance(scores).argsort(descending=True, stable=True))
    return [group.producers[0] for group in groups] + sort_selected(model, scores)


def _groups(model: nn.Module) -> list[_Group]:
    """The channels that occur in the model, in the order in which its layers meet them."""
    # What layers of squeeze-excites do that does not count for the channels that they scale.
    gates: dict[nn.Module, str] = {}
    for module in model.modules():
        if isinstance(module, SqueezeExcitation):
            gates |= {module.fc1: "reads", module.fc2: "writes"}
    groups: dict[Any, _Group] = {}
    for name, module in model.named_modules():
        if not isinstance(module, ElasticModule) or isinstance(module, Sliced):
            continue
        axes = module.axes()
        covered = {_key(axis.number) for axis in axes}
        for value in module.values():
            if _key(value) not in covered:
                groups.setdefault(_key(value), _Group()).fixed = True
            for part in segments(value) if len(segments(value)) > 1 else ():
                groups.setdefault(_key(part), _Group()).fixed = True
        for axis in axes:
            if not isinstance(axis.number, Value):
                continue
            group = groups.setdefault(_key(axis.number), _Group())
            place = (f"{name}.{axis.tensor}" if name else axis.tensor, module, axis)
            group.axes.append(place)
            group.fixed |= len(segments(axis.number)) > 1
            if axis.role == "reads" and gates.get(module) != "reads":
                group.readers.append(place)
            if axis.role == "writes" and axis.tensor == "weight" and gates.get(module) != "writes":
                group.producers.append(name)
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(False))
    for group in groups.values():
        weights = [(id(getattr(module, axis.tensor)), axis.dim) for _, module, axis in group.axes]
        # A weight that another layer has too, which reads or writes other channels.
        group.fixed |= any(count < owners[key] for (key, _), count in Counter(weights).items())
    # What is only read or only written is, flattened or split in between, channels of another.
    loose = [g for g in groups.values() if not g.fixed and bool(g.readers) != bool(g.producers)]
    broken = {choice for group in loose for choice in group.choices}
    for group in groups.values():
        group.fixed |= not broken.isdisjoint(group.choices)
    return list(groups.values())


def _key(value: Value | int) -> Any:
    """Equal for values that depend on the same choices in the same way."""
    if not isinstance(value, Value) or len(segments(value)) > 1:
        return value
    if math.prod(len(choice.values) for choice in value.choices) > _MOST_CASES:
        return value
    return tuple(choice.name for choice in value.choices), tuple(cases(value))
