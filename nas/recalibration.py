"""Statistics of batch normalisation for one subnet: those that training left fit none.

Method: Cai et al., "Once-for-All", ICLR 2020; the averages are those of its program and EASNet's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .elastic.base import ElasticModule, Part, put

__all__ = ["recalibrate"]


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Callable[[nn.Module, Any], object] | None = None,
) -> None:
    """Measure the statistics of every batch normalisation anew, for what is active in `model`.

    Each batch is normalised by its own mean and biased variance. What a layer keeps is the average
    of these over batches, weighted by their sizes; a layer that runs twice on a batch, as in a
    siamese network, has seen two. So the result depends on the weights, the active architecture
    and the batches alone, not on earlier statistics. Entries that are not active, layers that do
    not run, weights, modes and counters stay as they are, and everything does where the forward
    pass raises. One batch is held at a time. Never give it data to evaluate on.

    Args:
        model: a supernet with its architecture active, or any other network.
        batches: arguments of `model`, a tuple or list (or one tensor) each, on its device; size
            is that of the first dimension of what a layer sees.
        forward: called as ``forward(model, batch)`` instead, for batches of any other kind.

    Raises:
        ValueError: there is no batch.

    Example:
        >>> recalibrate(net, [(left, right) for left, right in pairs])
    """
    averages = {
        layer: _Average()
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }
    with torch.no_grad(), _evaluating(model), _keeping(averages), _measuring(averages):
        count = 0
        for count, batch in enumerate(batches, start=1):  # noqa: B007
            if forward is not None:
                forward(model, batch)
            elif isinstance(batch, (tuple, list)):
                model(*batch)
            else:
                model(batch)
    if not count:
        raise ValueError("no batch to recalibrate batch normalisation on")
    with torch.no_grad():
        for layer, average in averages.items():
            if average.weight:
                _set_statistics(layer, average.mean, average.variance)


class _Average:
    """Running averages of a layer's batch statistics."""

    weight = 0
    mean: Tensor
    variance: Tensor

    def add(self, mean: Tensor, variance: Tensor, size: int) -> None:
        if not self.weight:
            self.mean, self.variance = mean.clone(), variance.clone()
        self.weight += size
        share = size / self.weight
        self.mean += (mean - self.mean) * share
        self.variance += (variance - self.variance) * share


def _set_statistics(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    where = _active_parts(layer)
    put(layer.running_mean, where, mean)
    put(layer.running_var, where, variance)


def _active_parts(layer: _BatchNorm) -> tuple[Part, ...]:
    return layer.active.where if isinstance(layer, ElasticModule) else ((0, layer.num_features),)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, in which layers normalise by the statistics that `_measuring` sets."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _keeping(layers: Iterable[_BatchNorm]) -> Iterator[None]:
    kept = [(layer, layer.running_mean.clone(), layer.running_var.clone()) for layer in layers]
    try:
        yield
    finally:
        for layer, mean, variance in kept:
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)


@contextmanager
def _measuring(averages: dict[_BatchNorm, _Average]) -> Iterator[None]:
    """Before a layer runs, set and count the statistics of what it is about to normalise."""

    def measure(layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].float()
        dims = [dim for dim in range(x.dim()) if dim != 1]
        variance, mean = torch.var_mean(x, dims, correction=0)
        averages[layer].add(mean, variance, len(x))
        _set_statistics(layer, mean, variance)

    handles = [layer.register_forward_pre_hook(measure) for layer in averages]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
