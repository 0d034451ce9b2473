"""What a training step would take among many processes, by the way in which gradients travel.

One link, one message after the other: a message begins when its gradients are ready and the one
before has ended, and takes what the link says. What compressing computes is added where it has
been measured.

Sources: Shi et al., MG-WFBP (arXiv 1912.09268); Zhang et al., ICDCS 2023 (arXiv 2306.08881).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .link import Link

__all__ = ["EXACT", "WAYS", "Step", "plan_groups", "simulate"]

WAYS = {
    "plain": "PyTorch's buckets of 25 MB",
    "tensors": "a message for each parameter",
    "single": "one message",
    "merged": "the best messages (MG-WFBP)",
    "fp16": "half precision",
    "powersgd": "PowerSGD",
    "acpsgd": "ACP-SGD",
    "topk": "top-k",
    "gtopk": "gTop-k",
    "subnet": "what the step's subnet uses",
}
"""How gradients may travel."""

EXACT = ("plain", "tensors", "single", "merged", "subnet")  #: the ways that change no gradient

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes at which DistributedDataParallel closes its first bucket and the others."""


@dataclass(frozen=True)
class Step:
    """A training step of one process alone."""

    around: float  #: seconds outside the backward pass: the forward pass, and what follows
    backward: float  #: seconds of the backward pass
    #: when each gradient is ready, seconds from the start of the backward pass, ascending; 0 for
    #: parameters that the step does not use
    ready: Sequence[float]
    shapes: Sequence[Sequence[int]]  #: of the gradients, in that order, float32
    #: entries of each that the step uses; empty where it is all of them
    active: Sequence[int] = ()

    @property
    def sizes(self) -> list[float]:
        """Bytes of each gradient."""
        return [4.0 * math.prod(shape) for shape in self.shapes]


def simulate(
    step: Step,
    link: Link,
    density: float = 0.001,
    rank: int = 4,
    computing: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Seconds of a step, by the way in which gradients travel.

    Args:
        step: of one process.
        link: between the processes.
        density: share of entries that `topk` and `gtopk` send.
        rank: of `powersgd` and `acpsgd`.
        computing: by way, what compressing and unpacking computes in a step, seconds.

    Returns:
        For each of `WAYS`: `subnet` only for a supernet's step, `powersgd` only for others.
    """
    sizes = step.sizes
    ready = list(itertools.accumulate(step.ready, max))
    whole = _bucket_groups(sizes, BUCKET, FIRST_BUCKET)
    plan = plan_groups(ready, sizes, link.alpha, link.beta)
    entries: Sequence[float] = step.active or [size / 4 for size in sizes]
    used = [4.0 * count for count in entries]
    rounds = math.floor(math.log2(link.processes))
    folded = 0 if link.processes == 1 << rounds else 2
    others = link.processes - 1

    def all_reduce(size: float) -> float:
        return link.alpha + link.beta * size if size else 0.0

    def ends(groups: Sequence[int], seconds: Sequence[float], way: str) -> float:
        """When the last group is there; `seconds` are those of the groups' messages."""
        work, end, first = (computing or {}).get(way, 0.0), 0.0, 0
        for count, message in zip(groups, seconds, strict=True):
            share = sum(sizes[first : first + count]) / sum(sizes)
            first += count
            end = max(end, ready[first - 1]) + work * share + message
        return step.around + max(end, step.backward)

    def in_buckets(groups: Sequence[int], values: Sequence[float]) -> list[float]:
        rest = iter(values)
        return [sum(itertools.islice(rest, count)) for count in groups]

    kept = [8 * math.ceil(density * size / 4) for size in in_buckets(whole, used)]
    splits = [_factors(shape, rank) for shape in step.shapes]
    # One factor in turns, of whole matrices: how many rows a supernet uses is not known.
    one = [
        min(rest, size) + (p + q) / 2 if size else 0.0
        for (p, q, rest), size in zip(splits, used, strict=True)
    ]
    power = sum(all_reduce(sum(parts)) for parts in zip(*splits, strict=True))
    reduced = {
        "plain": (whole, sizes),
        "tensors": ([1] * len(sizes), sizes),
        "single": ([len(sizes)], sizes),
        "merged": (plan, sizes),
        "fp16": (whole, [size / 2 for size in sizes]),
        "acpsgd": (whole, one),
        "subnet": (whole, used),
    }
    messages = {
        way: (groups, [all_reduce(size) for size in in_buckets(groups, values)])
        for way, (groups, values) in reduced.items()
    }
    messages["powersgd"] = [len(sizes)], [power]
    messages["topk"] = whole, [link.alpha / 2 + others * size * link.byte for size in kept]
    messages["gtopk"] = whole, [(rounds + folded) * (link.hop + size * link.byte) for size in kept]
    left_out = "powersgd" if step.active else "subnet"
    return {way: ends(*messages[way], way) for way in WAYS if way != left_out}


def plan_groups(
    ready: Sequence[float], sizes: Sequence[float], alpha: float, beta: float
) -> list[int]:
    """How many gradients each message takes so that the last one ends first; exact, O(L^2).

    A dynamic programme in place of the greedy rule of MG-WFBP. Gradients are ready at ascending
    seconds, sizes are bytes; a message takes `alpha` seconds and `beta` seconds a byte.

    Raises:
        ValueError: lengths differ, or times do not ascend.
    """
    if len(ready) != len(sizes) or list(ready) != sorted(ready):
        raise ValueError("gradients need as many sizes as times, and times in ascending order")
    starts = [0.0, *itertools.accumulate(sizes)]
    ends, before = [0.0], [0]
    for j in range(1, len(ready) + 1):
        whole = alpha + beta * starts[j]
        choices = [max(ends[i], ready[j - 1]) + whole - beta * starts[i] for i in range(j)]
        ends.append(min(choices))
        before.append(choices.index(ends[-1]))  # of equal ends the one with the fewest messages
    groups, last = [], len(ready)
    while last:
        groups.append(last - before[last])
        last = before[last]
    return groups[::-1]


def _bucket_groups(sizes: Sequence[float], cap: float, first: float | None = None) -> list[int]:
    """The groups of buckets that close once they hold `cap` bytes; the first one may be smaller."""
    groups: list[int] = []
    held, count = 0.0, 0
    for size in sizes:
        held, count = held + size, count + 1
        if held >= (first if not groups and first is not None else cap):
            groups.append(count)
            held, count = 0.0, 0
    return [*groups, count] if count else groups


def _factors(shape: Sequence[int], rank: int) -> tuple[float, float, float]:
    """Bytes of a gradient's two factors, and of the gradient where it travels whole."""
    n, m = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
    used = min(rank, n, m)
    if len(shape) < 2 or used * (n + m) * 2 >= n * m:
        return 0.0, 0.0, 4.0 * n * m
    return 4.0 * used * n, 4.0 * used * m, 0.0
