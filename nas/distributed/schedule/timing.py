"""When gradients are ready in a backward pass, and what hooks compute, measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from ....common.timing import now
from ..gradients.hooks import CommHook
from ..gradients.regions import Region, views
from .simulator import Step

__all__ = ["ReadyTimes", "alone", "measure_hook", "measure_step", "scalar"]


class ReadyTimes:
    """Notes when each gradient is ready, by hooks on the parameters.

    Args:
        model: its parameters have gradients in the order of their first backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.times: dict[str, list[float]] = {}
        self.skip = False
        self._begin: float | None = None
        self._first: str | None = None
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._note, name))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]

    def begin(self) -> None:
        """A backward pass begins; without this, it begins with its first gradient."""
        self._begin, self._first = now(), None

    def end(self) -> None:
        """A backward pass has ended."""
        self._begin = None

    def medians(self) -> dict[str, float]:
        """Seconds for each parameter that has had a gradient, ascending."""
        medians = {name: median(times) for name, times in self.times.items()}
        return dict(sorted(medians.items(), key=lambda item: item[1]))

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _note(self, name: str, parameter: Tensor) -> None:
        if self.skip:
            return
        moment = now(parameter.device)
        if self._begin is None or name == self._first:
            self._begin, self._first = moment, name
        self.times.setdefault(name, []).append(moment - self._begin)


def measure_step(
    net: nn.Module,
    loss: Callable[[], Tensor],
    steps: int = 50,
    warmup: int = 5,
    regions: dict[int, list[Region]] | None = None,
    update: Callable[[], object] = lambda: None,
) -> Step:
    """Run some steps of this process alone, after a warm-up; medians.

    `loss` is a forward pass, `update` what follows the backward pass. Of a supernet `regions` are
    what its active subnet uses, by `active_regions`.
    """
    times, passes = ReadyTimes(net), []
    device = next(net.parameters()).device
    for number in range(warmup + steps):
        times.skip = number < warmup
        net.zero_grad()
        start = now(device)
        value = loss()
        middle = now(device)
        times.begin()
        value.backward()
        end = now(device)
        times.end()
        update()
        if not times.skip:
            passes.append((middle - start + now(device) - end, end - middle))
    times.close()
    around, backward = map(median, zip(*passes, strict=True))
    ready, parameters = times.medians(), dict(net.named_parameters())
    order = [n for n, p in parameters.items() if p.requires_grad and n not in ready] + [*ready]
    active: list[int] = []
    if regions is not None:
        for name in order:
            used = views(parameters[name], regions.get(id(parameters[name])))
            active.append(sum(view.numel() for view in used) if name in ready else 0)
    shapes = [tuple(parameters[name].shape) for name in order]
    return Step(around, backward, [ready.get(name, 0.0) for name in order], shapes, active)


def measure_hook(
    hook: CommHook,
    net: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    steps: int = 5,
    warmup: int = 3,
    find_unused_parameters: bool = False,
) -> float:
    """Seconds that a new hook works in a step, where this process is alone: what it computes.

    `loss` is a forward pass of the copy of `net` that it is given. Buckets are made anew after the
    first step, which belongs to the warm-up. Supernets need `find_unused_parameters`.
    """
    device = next(net.parameters()).device
    model = DistributedDataParallel(
        copy.deepcopy(net),
        find_unused_parameters=find_unused_parameters or hook.needs_unused,
        bucket_cap_mb=1 << 20 if hook.single_bucket else None,
    )
    hook.setup(model.module, device)
    spent: list[float] = []

    def run(state, bucket):  # noqa: ANN001, ANN202 - as text they would be refused
        start = now(device)
        future = hook.reduce(bucket)
        future.wait()
        spent[-1] += now(device) - start
        return future

    model.register_comm_hook(None, run)
    for _ in range(warmup + steps):
        spent.append(0.0)
        model.zero_grad()
        loss(model).backward()
    hook.close()
    return median(spent[warmup:])


@contextmanager
def alone(device: torch.device | str = "cpu") -> Iterator[None]:
    """A process group of this process, where there is none yet."""
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def scalar(outputs: Any) -> Tensor:
    """A number that depends on all outputs of a network, in any nesting."""
    tensors = (leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))
    return cast("Tensor", sum(leaf.float().mean() for leaf in tensors if leaf.requires_grad))
