"""How gradients should be merged into messages.

Sources: Shi et al., "MG-WFBP: Merging Gradients Wisely for Efficient Communication in Distributed
Deep Learning", TPDS 2021 (arXiv 1912.09268), whose greedy rule an exact dynamic programme replaces
here. Gradients are in the order in which the backward pass has them ready; messages go one after
the other, and one of n bytes takes alpha + beta n seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["BUCKET", "FIRST_BUCKET", "bucket_groups", "plan_groups"]

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes at which DistributedDataParallel closes its first bucket and the others."""


def plan_groups(
    ready: Sequence[float], sizes: Sequence[float], alpha: float, beta: float
) -> list[int]:
    """How many gradients each message takes so that the last one ends first; exact, O(L^2).

    Gradients are ready at ascending seconds, sizes are bytes; `alpha` and `beta` as above.

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


def bucket_groups(sizes: Sequence[float], cap: float, first: float | None = None) -> list[int]:
    """The groups of buckets that close once they hold `cap` bytes; the first one may be smaller."""
    groups: list[int] = []
    held, count = 0.0, 0
    for size in sizes:
        held, count = held + size, count + 1
        if held >= (first if not groups and first is not None else cap):
            groups.append(count)
            held, count = 0.0, 0
    return [*groups, count] if count else groups
