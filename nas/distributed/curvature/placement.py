"""Which process decomposes which matrix.

Source: Shi et al., "Accelerating Distributed K-FAC with Smart Parallelism of Computing and
Communication Tasks", ICDCS 2021 (arXiv 2107.06533).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist

from ....common.timing import measure
from ..schedule.link import fit_link
from .factors import decompose

__all__ = ["balanced", "measured_costs", "place_matrices"]

_SIZE = 192
_BYTES = (2**12, 2**20)


def balanced(costs: Sequence[float], processes: int) -> list[int]:
    """A process for each piece of work: the largest first, each to the least loaded process."""
    owners, loads = [0] * len(costs), [0.0] * processes
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owners[index] = min(range(processes), key=loads.__getitem__)
        loads[owners[index]] += costs[index]
    return owners


def place_matrices(
    sizes: Sequence[int],
    processes: int,
    invert: Callable[[int], float],
    send: Callable[[int], float],
) -> list[int | None]:
    """A process for each matrix, or None for those that all invert, as sending takes longer.

    `invert` and `send` give the seconds to invert a matrix of so many rows, and to send its inverse
    to all.
    """
    sent = [i for i, size in enumerate(sizes) if invert(size) > send(size)]
    owner = dict(zip(sent, balanced([invert(sizes[i]) for i in sent], processes), strict=True))
    return [owner.get(index) for index in range(len(sizes))]


def measured_costs(
    form: Literal["eigen", "inverse"], device: torch.device
) -> tuple[Callable[[int], float], Callable[[int], float]]:
    """`invert` and `send` of `place_matrices`, as the first process measures them.

    All processes have to call it. Inverting is taken to grow with the cube of the size.
    """
    x = torch.randn(_SIZE, _SIZE, device=device)
    matrix = x @ x.T / _SIZE
    times = [_seconds(lambda: decompose(matrix, form, 0.1), device)]
    for size in _BYTES:
        message = torch.zeros(size // 4, device=device)
        times.append(_seconds(partial(dist.broadcast, message, 0), device))
    agreed = torch.tensor(times, dtype=torch.float64, device=device)
    dist.broadcast(agreed, 0)
    inverting, *sending = agreed.tolist()
    alpha, beta = fit_link(_BYTES, sending)
    entries = (lambda n: n * n + n) if form == "eigen" else (lambda n: n * (n + 1) // 2)
    return lambda n: inverting * (n / _SIZE) ** 3, lambda n: alpha + beta * 4 * entries(n)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    return 1e-3 * measure(work, device, warmup=1, repetitions=3).median
