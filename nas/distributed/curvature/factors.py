"""Kronecker factors of a layer's curvature: how they travel, what is computed, and by whom.

Source: Shi et al., "Accelerating Distributed K-FAC with Smart Parallelism of Computing and
Communication Tasks", ICDCS 2021 (arXiv 2107.06533).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ....common.timing import measure
from ..schedule.link import fit_link

__all__ = ["balanced", "decompose", "eigen_gradient", "measured_costs", "pack", "pi_damping"]
__all__ += ["place_matrices", "unpack"]

_SIZE = 192
_BYTES = (2**12, 2**20)


def pack(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix (n, n) as a vector (n (n + 1) / 2,)."""
    return matrix[torch.ones_like(matrix, dtype=torch.bool).triu()]


def unpack(triangle: Tensor) -> Tensor:
    """The symmetric matrix (n, n) whose upper triangle was packed."""
    size = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    matrix = triangle.new_zeros(size, size)
    matrix[torch.ones_like(matrix, dtype=torch.bool).triu()] = triangle
    return matrix + matrix.triu(1).T


def pi_damping(a: Tensor, g: Tensor, damping: float) -> tuple[float, float]:
    """What to add to A and to G so that their product is damped by about `damping`.

    pi sqrt(damping) and sqrt(damping) / pi, with pi the root of the ratio of mean eigenvalues.
    """
    ratio = float(a.diagonal().mean() / g.diagonal().mean())
    pi = math.sqrt(ratio) if 0 < ratio < math.inf else 1.0
    return pi * math.sqrt(damping), math.sqrt(damping) / pi


def decompose(matrix: Tensor, form: Literal["eigen", "inverse"], damping: float) -> list[Tensor]:
    """The eigenvectors (n, n) and eigenvalues (n,) of a factor, or its inverse (n, n).

    Where it fails, a thousandth and then a tenth of the mean eigenvalue is added. Results lie in
    memory as copies of them do, since products round by where their factors lie.

    Args:
        matrix: symmetric, at least in single precision; it stays as it is.
        form: which form of the matrix is returned.
        damping: added to the diagonal before it is inverted; eigenvalues do not contain it.

    Raises:
        ValueError: it fails all the same.
    """
    one = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    mean = matrix.diagonal().mean()
    for more in (0.0, 1e-3, 1e-1):
        shifted = matrix + (more * mean + (damping if form == "inverse" else 0.0)) * one
        try:
            if form == "inverse":
                return [torch.cholesky_inverse(torch.linalg.cholesky(shifted)).contiguous()]
            values, vectors = torch.linalg.eigh(shifted)
        except torch.linalg.LinAlgError:
            continue
        if vectors.isfinite().all():
            return [vectors.contiguous(), values.clamp(min=0)]
    raise ValueError(
        f"a factor of the curvature, {len(matrix)} x {len(matrix)} with the mean eigenvalue "
        f"{float(mean):.3g}, cannot be decomposed: take a smaller learning rate or more damping"
    )


def eigen_gradient(
    gradient: Tensor, a: Sequence[Tensor], g: Sequence[Tensor], damping: float
) -> Tensor:
    """(G (x) A + damping I)^-1 applied to a gradient (outputs, inputs).

    Of A (inputs, inputs) and G (outputs, outputs) eigenvectors and eigenvalues are given.
    """
    rotated = g[0].T @ gradient @ a[0]
    return g[0] @ (rotated / (torch.outer(g[1], a[1]) + damping)) @ a[0].T


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
