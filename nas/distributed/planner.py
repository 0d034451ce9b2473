"""How gradients should be merged into messages, and what a step would then take.

Sources: Shi et al., "MG-WFBP: Merging Gradients Wisely for Efficient Communication in Distributed
Deep Learning", TPDS 2021 (arXiv 1912.09268), whose greedy rule an exact dynamic programme replaces
here. Gradients are in the order in which the backward pass has them ready; messages go one after
the other, and one of n bytes takes alpha + beta n seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

__all__ = ["LINKS", "bucket_groups", "finish_time", "fit_link", "plan_groups", "predict"]

LINKS = {
    "10gbe-8": (5.2e-4, 8.6e-10),
    "10gbe-16": (9.1e-4, 7.4e-10),
    "56gbib-8": (9.8e-5, 3.1e-10),
    "56gbib-16": (2.4e-4, 4.1e-10),
}
"""Published alpha and beta of an all-reduce: 10 Gb/s Ethernet and 56 Gb/s InfiniBand, by the
number of processes."""


def plan_groups(
    ready: Sequence[float], sizes: Sequence[float], alpha: float, beta: float
) -> list[int]:
    """How many gradients each message takes so that the last one ends first; exact, O(L^2).

    Args:
        ready: seconds at which gradients are ready, ascending.
        sizes: bytes of each.
        alpha: seconds a message.
        beta: seconds a byte.

    Raises:
        ValueError: lengths differ, or times do not ascend.
    """
    _check(ready, sizes)
    starts = [0.0, *itertools.accumulate(sizes)]
    ends, before = [0.0], [0]
    for j in range(1, len(ready) + 1):
        whole = alpha + beta * starts[j]
        found = [max(ends[i], ready[j - 1]) + whole - beta * starts[i] for i in range(j)]
        # Of equal ends the one with the fewest messages.
        before.append(min(range(j), key=lambda i: (found[i], i)))
        ends.append(found[before[-1]])
    groups, last = [], len(ready)
    while last:
        groups.append(last - before[last])
        last = before[last]
    return groups[::-1]


def finish_time(
    ready: Sequence[float],
    sizes: Sequence[float],
    groups: Sequence[int],
    alpha: float,
    beta: float,
) -> float:
    """When the last message of a plan ends; arguments as for `plan_groups`.

    Raises:
        ValueError: the groups do not take every gradient once.
    """
    _check(ready, sizes)
    if sum(groups) != len(sizes):
        raise ValueError(f"groups of {sum(groups)} gradients, where there are {len(sizes)}")
    end, first = 0.0, 0
    for count in groups:
        last = first + count
        end = max(end, ready[last - 1]) + alpha + beta * sum(sizes[first:last])
        first = last
    return end


def bucket_groups(sizes: Sequence[float], cap: float, first: float | None = None) -> list[int]:
    """The groups of buckets that close once they hold `cap` bytes; the first one may be smaller."""
    groups, held, count = [], 0.0, 0
    for size in sizes:
        held, count = held + size, count + 1
        if held >= (first if not groups and first is not None else cap):
            groups.append(count)
            held, count = 0.0, 0
    return [*groups, count] if count else groups


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Alpha and beta of measured messages, by least squares of relative errors.

    Raises:
        ValueError: there are fewer than two sizes.
    """
    if len(set(sizes)) < 2 or len(sizes) != len(seconds):
        raise ValueError("alpha and beta need messages of at least two sizes, a time for each")
    times = np.asarray(seconds, dtype=float)
    rows = np.stack([1 / times, np.asarray(sizes, dtype=float) / times], axis=1)
    alpha, beta = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0]
    return max(0.0, float(alpha)), max(0.0, float(beta))


def predict(
    ready: Sequence[float],
    shapes: Sequence[Sequence[int]],
    processes: int,
    alpha: float,
    beta: float,
    density: float = 0.001,
    rank: int = 4,
) -> dict[str, float]:
    """When the gradients of a backward pass would be there, by the way in which they travel.

    What compressing computes is left out, so these are the least times that compressors can take.

    Args:
        ready: seconds at which each gradient is ready, ascending.
        shapes: of the gradients, float32.
        processes: how many.
        alpha: seconds a message of an all-reduce among these processes takes.
        beta: seconds a byte of it.
        density: of `topk` and `gtopk`.
        rank: of `acpsgd`.

    Returns:
        Seconds for `plain` (PyTorch's buckets), `tensors` (a message each), `single`, `merged`
        (the best messages), `fp16`, `topk`, `gtopk`, `acpsgd`.
    """
    sizes = [4.0 * math.prod(shape) for shape in shapes]
    buckets = bucket_groups(sizes, 25 * 2**20, 2**20)
    # An all-reduce moves each byte 2 (P - 1) / P times.
    wire = beta * processes / (2 * (processes - 1))
    rounds = math.log2(processes)
    kept = [8 * math.ceil(density * size / 4) for size in sizes]
    factors = [_factor_bytes(shape, rank) for shape in shapes]

    def ends(sizes: Sequence[float], alpha: float, beta: float) -> float:
        return finish_time(ready, sizes, buckets, alpha, beta)

    return {
        "plain": ends(sizes, alpha, beta),
        "tensors": finish_time(ready, sizes, [1] * len(sizes), alpha, beta),
        "single": finish_time(ready, sizes, [len(sizes)], alpha, beta),
        "merged": finish_time(ready, sizes, plan_groups(ready, sizes, alpha, beta), alpha, beta),
        "fp16": ends([size / 2 for size in sizes], alpha, beta),
        "topk": ends(kept, alpha, wire * (processes - 1)),
        "gtopk": ends(kept, alpha, wire * rounds),
        "acpsgd": ends(factors, alpha, beta),
    }


def _factor_bytes(shape: Sequence[int], rank: int) -> float:
    n, m = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
    used = min(rank, n, m)
    if len(shape) < 2 or used * (n + m) * 2 >= n * m:
        return 4.0 * n * m
    return 4.0 * used * (n + m) / 2  # one factor in turns


def _check(ready: Sequence[float], sizes: Sequence[float]) -> None:
    if len(ready) != len(sizes) or list(ready) != sorted(ready):
        raise ValueError("gradients need as many sizes as times, and times in ascending order")
