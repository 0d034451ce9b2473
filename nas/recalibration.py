"""Statistics of batch normalisation for one subnet: those that training left fit none.

Method: Cai et al., "Once-for-All", ICLR 2020; the averages are those of its program and EASNet's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..common.layers import evaluating
from .elastic.base import ElasticModule, Part, put

__all__ = ["batch_statistics", "recalibrate", "run_batch", "samples"]


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Callable[[nn.Module, Any], object] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Measure the statistics of every batch normalisation anew, for what is active in `model`.

    Each batch is normalised by its own mean and biased variance. What a layer keeps is the average
    of these over batches, weighted by their sizes; a layer that runs twice on a batch, as in a
    siamese network, has seen two. So the result depends on the weights, the active architecture
    and the batches alone, not on earlier statistics. Entries that are not active, layers that do
    not run, weights, modes and counters stay as they are, and everything does where the forward
    pass raises. One batch is held at a time; a network without such layers runs none. Never give
    it data to evaluate on.

    Args:
        model: a supernet with its architecture active, or any other network.
        batches: arguments of `model`, a tuple or list (or one tensor) each, on its device; size
            is that of the first dimension of what a layer sees.
        forward: called as ``forward(model, batch)`` instead, for batches of any other kind.
        group: processes that have the same weights and architecture and share the batches among
            them, however, so that some may have none: each ends with the statistics of all. By
            default this process has all batches. No layer may run on some processes alone.

    Raises:
        ValueError: there are such layers, and no batch.

    Example:
        >>> recalibrate(net, [(left, right) for left, right in pairs])
    """
    averages = {
        layer: _Average()
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }
    if not averages:
        return
    with evaluating(model), _keeping(averages), _measuring(averages):
        count = 0
        for count, batch in enumerate(batches, start=1):  # noqa: B007
            run_batch(model, batch, forward)
    if group is not None:
        count = _shared(averages, count, group)
    if not count:
        raise ValueError("no batch to recalibrate batch normalisation on")
    for layer, average in averages.items():
        if average.weight:
            _set_statistics(layer, average.mean, average.variance)


def run_batch(
    model: nn.Module, batch: Any, forward: Callable[[nn.Module, Any], object] | None
) -> object:
    """Run a model on a batch, as `recalibrate` says."""
    if forward is not None:
        return forward(model, batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def samples(batch: Any) -> int:
    """How many samples a batch has: the first dimension of its first tensor; 0 without one."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 0
    if not isinstance(batch, (Mapping, list, tuple)):
        return 0
    values = batch.values() if isinstance(batch, Mapping) else batch
    return next((count for count in map(samples, values) if count), 0)


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Within the block every batch is normalised by its own statistics, and all else is evaluated.

    Gradients pass through the statistics. Modes and every layer's own statistics and counters are
    afterwards as before.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    with evaluating(model), _keeping(layers):
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


class _Average:
    """Running averages of a layer's batch statistics, in double precision."""

    weight = 0
    mean: Tensor
    variance: Tensor

    def add(self, mean: Tensor, variance: Tensor, size: int) -> None:
        mean, variance = mean.double(), variance.double()
        if not self.weight:
            self.mean, self.variance = mean.clone(), variance.clone()
        self.weight += size
        share = size / self.weight
        self.mean += (mean - self.mean) * share
        self.variance += (variance - self.variance) * share


def _shared(averages: dict[_BatchNorm, _Average], count: int, group: dist.ProcessGroup) -> int:
    """Let averages be those of all processes, in one message; the number of all batches."""
    rows = []
    for layer, average in averages.items():
        width = sum(length for _, length in _active_parts(layer))
        sums = cast("Tensor", layer.running_mean).new_zeros(2 * width + 1, dtype=torch.float64)
        if average.weight:
            weighted = torch.cat([average.mean, average.variance]) * average.weight
            sums = torch.cat([weighted, weighted.new_full((1,), average.weight)])
        rows.append(sums)
    total = torch.cat([*rows, rows[0].new_full((1,), count)])
    dist.all_reduce(total, group=group)
    parts = total[:-1].split([len(row) for row in rows])
    for average, sums in zip(averages.values(), parts, strict=True):
        average.weight = int(sums[-1])
        if average.weight:
            average.mean, average.variance = (sums[:-1] / sums[-1]).chunk(2)
    return int(total[-1])


def _set_statistics(layer: Any, mean: Tensor, variance: Tensor) -> None:
    put(layer.running_mean, _active_parts(layer), mean)
    put(layer.running_var, _active_parts(layer), variance)


def _active_parts(layer: _BatchNorm) -> tuple[Part, ...]:
    return layer.active.where if isinstance(layer, ElasticModule) else ((0, layer.num_features),)


@contextmanager
def _keeping(layers: Iterable[_BatchNorm]) -> Iterator[None]:
    """Let the layers' statistics and counters be as before after the block."""
    kept = [(own, own.clone()) for layer in layers for own in layer.buffers(recurse=False)]
    try:
        yield
    finally:
        for own, before in kept:
            own.copy_(before)


@contextmanager
def _measuring(averages: dict[_BatchNorm, _Average]) -> Iterator[None]:
    """Before a layer runs, set and count the statistics of what it is about to normalise."""

    def measure(layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        channels = getattr(layer, "channel_dim", 1) % x.dim()
        dims = [dim for dim in range(x.dim()) if dim != channels]
        variance, mean = torch.var_mean(x, dims, correction=0)
        averages[layer].add(mean, variance, len(x))
        _set_statistics(layer, mean, variance)

    with ExitStack() as hooks:
        for layer in averages:
            hooks.enter_context(layer.register_forward_pre_hook(measure))
        yield
