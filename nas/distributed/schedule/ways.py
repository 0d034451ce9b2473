"""Which way the gradients of a network should travel: measured here, computed for a link."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ....common.counts import count_parameters
from ...supernet import activate, elastic_modules, extract, search_space
from ...training import UniformSampler
from ..compression.lowrank import ACPSGD, PowerSGD
from ..compression.sparse import GTopK, TopK
from ..gradients.hooks import AllReduce, CommHook
from ..gradients.regions import Region, active_regions
from .link import Link
from .simulator import EXACT, Step, plan_groups, simulate
from .timing import alone, measure_hook, measure_step, scalar

__all__ = ["Ways", "compare_ways"]


@dataclass(frozen=True)
class Ways:
    """What a training step takes by each way."""

    step: Step  #: measured in this process alone
    computing: Mapping[str, float]  #: seconds that compressing computes, by way, measured too
    seconds: Mapping[str, float]  #: of a step among all processes, by the names of `simulator.WAYS`
    messages: Sequence[int]  #: how many gradients each message of `merged` takes

    @property
    def best(self) -> str:
        """The fastest way."""
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def best_exact(self) -> str:
        """The fastest of those that change no gradient."""
        return min(filter(EXACT.__contains__, self.seconds), key=self.seconds.__getitem__)


def compare_ways(
    net: nn.Module,
    inputs: Sequence[Tensor],
    link: Link,
    *,
    density: float = 0.001,
    rank: int = 4,
    steps: int = 5,
    report: Callable[[int, int], Any] = lambda *_: None,
) -> Ways:
    """Measure a step of this process alone; compute what it would take among many.

    Args:
        net: measured in training mode, of a supernet a subnet of middle size; it stays as it is.
        inputs: of `net`, on its device.
        link: between the processes.
        density: of top-k and gTop-k.
        rank: of PowerSGD and ACP-SGD.
        steps: number of steps that are measured.
        report: called with how many measurements are done and of how many.

    Raises:
        ValueError: `density` or `rank` out of range.
    """
    net = copy.deepcopy(net).train()
    regions = _middle_subnet(net)
    makers: dict[str, Callable[[], CommHook]] = {
        "fp16": lambda: AllReduce("float16"),
        "acpsgd": lambda: ACPSGD(rank, start_step=0),
        "topk": lambda: TopK(density, warmup=()),
        "gtopk": lambda: GTopK(density, warmup=()),
    }
    if regions is None:
        makers["powersgd"] = lambda: PowerSGD(rank, start_step=2)

    def loss(model: nn.Module) -> Tensor:
        return scalar(model(*inputs))

    computing = {}
    with alone(inputs[0].device):
        step = measure_step(net, lambda: loss(net), steps, min(steps, 5), regions)
        for number, (way, make) in enumerate(makers.items()):
            report(number + 1, len(makers) + 1)
            computing[way] = measure_hook(
                make(), net, loss, min(steps, 5), find_unused_parameters=regions is not None
            )
    messages = plan_groups(step.ready, step.sizes, link.alpha, link.beta)
    return Ways(step, computing, simulate(step, link, density, rank, computing), messages)


def _middle_subnet(net: nn.Module) -> dict[int, list[Region]] | None:
    """Of a supernet, activate a subnet of middle size; what it uses, or None."""
    if not any(True for _ in elastic_modules(net)):
        return None
    drawn = UniformSampler(9).subnets(search_space(net), 0)
    middle = sorted(drawn, key=lambda one: count_parameters(extract(net, one)))[len(drawn) // 2]
    activate(net, middle)
    return active_regions(net, [middle])
