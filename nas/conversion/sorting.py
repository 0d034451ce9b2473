"""Sorted channels of converted networks: they change places, and which places stay is as before.

So the plan of the conversion holds on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..elastic.sliced import Sliced, cuts_of
from ..values import Place, Selection
from .importance import class_scores
from .layers import Layer

__all__ = ["sort_selected"]


@torch.no_grad()
def sort_selected(model: nn.Module, scores: Mapping[str, Tensor] | None = None) -> list[str]:
    """Let the most important channels of a converted network be those that narrow subnets keep.

    Args:
        model: changed in place; its largest subnet computes what it did.
        scores: of weights, as for `nas.convert`; by default their magnitudes.

    Returns:
        For each width sorted, the name of the layer, or attention, that it is named after.
    """
    known: dict[int, Place] = {}
    layers = []
    for name, module in model.named_modules():
        if not isinstance(module, Sliced):
            continue
        axes = {}
        for tensor, dim, number in cuts_of(module):
            if isinstance(number, Selection):
                known |= {place.channel: place for place in number.places if place.choice}
                axes[tensor, dim] = torch.tensor([place.channel for place in number.places])
        layers.append(Layer(name, module, axes))
    if not known:
        return []
    order = torch.arange(max(known) + 1)  # which channel comes to the places of each
    each = class_scores(layers, order, scores)
    alike = defaultdict(list)
    for channel, place in sorted(known.items()):
        alike[place.choice, place.kind].append(channel)
    for channels in map(torch.tensor, alike.values()):
        levels = torch.tensor([known[channel].least for channel in channels.tolist()])
        wanted = torch.empty_like(levels)
        ranked = each[channels].argsort(descending=True, stable=True)
        wanted[ranked] = levels.sort().values
        for level in levels.unique():  # channels that have the place they should have keep it
            leaving = channels[(levels == level) & (wanted != level)]
            order[leaving] = channels[(wanted == level) & (levels != level)]
    for layer in layers:
        for (name, dim), channels in layer.axes.items():
            index = torch.empty_like(channels)
            index[order[channels].argsort(stable=True)] = channels.argsort(stable=True)
            tensor = getattr(layer.module, name)
            tensor.copy_(tensor.index_select(dim, index.to(tensor.device)))
    names = dict.fromkeys(choice.name for choice, _ in alike if choice)
    return [name.rpartition(".")[0] for name in names]
