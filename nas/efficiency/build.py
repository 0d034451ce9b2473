"""Building a latency table: which subnets, in which order, and how each is measured."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...common.counts import Counts, count_parameters
from ...common.energy import joules
from ...common.timing import measure_against
from ..space import Architecture, SearchSpace
from .operators import add_operators, operators_of
from .table import LatencyTable, Sample

__all__ = ["build", "plan"]

_SAVE_EVERY = 5
_REPETITIONS = 5  # of each subnet, at least


def _spread_sample(space: SearchSpace, rng: random.Random) -> Architecture:
    """An architecture from anywhere between the smallest and the largest.

    Uniform draws of many choices all cost about as much as the average. Here a size between 0 and
    1 is drawn first, and every choice then leans towards it.
    """
    size = rng.random()
    return space.validate(
        {
            choice.name: choice.values[sum(rng.random() < size for _ in choice.values[1:])]
            for choice in space
        }
    )


def plan(
    space: SearchSpace, samples: int, held_out: int, seed: int
) -> list[tuple[Architecture, bool]]:
    """Which subnets to measure: the smallest, the largest, then drawn ones, every other uniform.

    Held-out subnets are drawn alike and stand among the others, so that they are measured at the
    same times. A space with fewer architectures than that is measured whole.

    Returns:
        Architectures, each once, and whether each is held out. The same arguments give the same.
    """
    rng = random.Random(seed)
    wanted, there = samples + held_out, space.count()
    if there <= wanted:
        chosen = list(space.enumerate())
        rng.shuffle(chosen)
    else:
        drawn = dict.fromkeys((space.smallest(), space.largest()))
        while len(drawn) < wanted:
            # Once most of a small space is known, only uniform draws find the rest soon.
            lean = len(drawn) % 2 and 2 * wanted < there
            drawn[_spread_sample(space, rng) if lean else space.sample(rng)] = None
        chosen = list(drawn)
    held_out = min(held_out, max(0, len(chosen) - 3))
    inner = [a for a in chosen if a not in (space.smallest(), space.largest())]
    left = set(rng.sample(inner, min(held_out, len(inner))))
    return [(architecture, architecture in left) for architecture in chosen]


def build(
    table: LatencyTable,
    network: Callable[[Architecture], nn.Module],
    prepare: Callable[[nn.Module, Architecture], Callable[..., Any]],
    inputs: Sequence[Tensor],
    dtype: torch.dtype | None,
    *,
    path: str | os.PathLike[str] | None,
    samples: int,
    held_out: int = 20,
    seed: int = 0,
    seconds: float = 0.5,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LatencyTable:
    """Measure until the table is complete; what it holds already stays.

    The smallest subnet is the reference: every other is measured in turns with it.

    Args:
        table: new, or read from `path` after an interruption.
        network: the ordinary network of an architecture.
        prepare: brings the network of an architecture into the form it is used in, on the device of
            `inputs`.
        inputs: what networks are called with.
        dtype: of the computation, for operators measured alone; None measures none alone.
        path: written again every few subnets; None writes nothing.
        samples: how many subnets predictors learn from.
        held_out: how many more tell their error.
        seed: of the plan.
        seconds: for each subnet, at least.
        progress: told how many of how many subnets are done.

    Returns:
        The table, complete.
    """
    todo = plan(table.space, samples, held_out, seed)
    known = {sample.architecture for sample in table.samples}
    table.planned = len(known.union(architecture for architecture, _ in todo))
    left = {architecture for architecture, left_out in todo if left_out}
    # Another number of samples holds out others.
    table.samples = [replace(s, held_out=s.architecture in left) for s in table.samples]
    progress(sum(architecture in known for architecture, _ in todo), len(todo))
    device = inputs[0].device
    smallest = table.space.smallest()
    beside = prepare(network(smallest), smallest)
    for done, (architecture, left_out) in enumerate(todo, start=1):
        if architecture in known:
            continue
        net = network(architecture)
        parameters = count_parameters(net)  # before `prepare`, which may fuse or quantise it
        operators, memory = operators_of(net, inputs)
        summed = 0.0
        if dtype is not None:
            add_operators(table.entries, operators, device, dtype)
            for operator in operators:
                summed += table.entries[operator.key] or 0.0
        ready = prepare(net, architecture)
        timing, reference, ratio = measure_against(
            partial(ready, *inputs),
            lambda: beside(*inputs),
            device,
            repetitions=_REPETITIONS,
            seconds=seconds,
        )
        energy = joules(partial(ready, *inputs), device)
        table.energy = energy.source
        counts = Counts(parameters, sum(operator.macs for operator in operators), memory)
        facts = (counts, summed, left_out, energy.joules)
        table.samples.append(Sample(architecture, timing, ratio, reference.median, *facts))
        if path is not None and done % _SAVE_EVERY == 0:
            table.save(path)
        progress(done, len(todo))
    if path is not None:
        table.save(path)
    return table
