"""Kronecker factors of a layer's curvature: how they travel, what is computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["decompose", "eigen_gradient", "pack", "pi_damping", "unpack"]


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
        form: which.
        damping: added to the diagonal before it is inverted; eigenvalues do not contain it.

    Raises:
        ValueError: it fails all the same.
    """
    one = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    mean = matrix.diagonal().mean()
    for more in (0.0, 1e-3, 1e-1):
        shifted = matrix + (more * mean + (damping if form == "inverse" else 0.0)) * one
        if form == "inverse":
            lower, failed = torch.linalg.cholesky_ex(shifted)
            if not failed:
                return [torch.cholesky_inverse(lower).contiguous()]
            continue
        try:
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
