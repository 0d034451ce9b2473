"""How important channels are: by the weights that write, keep and read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..architecture import near
from .layers import Layer

__all__ = ["check_scores", "class_scores", "taylor_scores"]


def check_scores(net: nn.Module, scores: Mapping[str, Tensor]) -> None:
    """Raise a ValueError where scores are of other parameters than the network's."""
    weights = dict(net.named_parameters())
    for name, score in scores.items():
        if name not in weights:
            raise ValueError(f"scores of {name!r}: no such parameter{near(name, weights)}")
        if score.shape != weights[name].shape:
            shapes = [tuple(tensor.shape) for tensor in (weights[name], score)]
            raise ValueError(f"scores of {name!r}: of shape {shapes[1]} instead of {shapes[0]}")


def class_scores(
    layers: Iterable[Layer], classes: Tensor, scores: Mapping[str, Tensor] | None = None
) -> Tensor:
    """(classes,) how important each class of channels is.

    Args:
        layers: all of them.
        classes: (labels,) the class of each label.
        scores: of each weight by its name, 0 of one that is left out; by default its magnitude,
            over the mean of its layer's.
    """
    total = torch.zeros(len(classes), dtype=torch.float64)
    for layer in layers:
        for (name, dim), labels in layer.axes.items():
            parameter = layer.module._parameters.get(name)
            if parameter is None or name == "bias":
                continue
            full = f"{layer.name}.{name}" if layer.name else name
            if scores is not None and full not in scores:
                continue
            score = parameter.detach().abs() if scores is None else scores[full]
            each = score.double().cpu().movedim(dim, 0).reshape(len(labels), -1).sum(1)
            if scores is None:
                each = each / each.mean().clamp(min=1e-12)
            total.index_add_(0, classes[labels], each)
    return total


def taylor_scores(
    net: nn.Module, batches: Iterable[Any], loss: Callable[[nn.Module, Any], Tensor]
) -> dict[str, Tensor]:
    """How much the loss changes without each weight, to first order: |gradient * weight|.

    Molchanov et al. (CVPR 2019, arXiv 1906.10771) sum it over a channel's weights. Modes and
    gradients stay as they are.

    Args:
        net: the network that will be converted, or the supernet, its largest subnet active.
        batches: some training batches.
        loss: network, batch → scalar.

    Returns:
        For `scores` of `nas.convert` and `nas.sort_channels`: parameter's name → a score for each
        of its entries.

    Raises:
        ValueError: there is no batch.
    """
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    scores = {name: torch.zeros_like(p) for name, p in named.items()}
    batch = None
    for batch in batches:
        gradients = torch.autograd.grad(
            loss(net, batch), list(named.values()), allow_unused=True, materialize_grads=True
        )
        for (name, parameter), gradient in zip(named.items(), gradients, strict=True):
            scores[name] += (gradient * parameter.detach()).abs()
    if batch is None:
        raise ValueError("no batches: nothing tells how much the loss changes without a weight")
    return scores
