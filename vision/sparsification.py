"""How well a confidence ranks errors: sparsification curves.

Pixels are taken away, the least confident first, and the mean error of those that are left is
watched. An order by the errors themselves, the oracle, makes it fall fastest; a random order
leaves it where it is (Ilg et al., "Uncertainty Estimates and Multi-Hypotheses Networks for Optical
Flow", ECCV 2018, section 4.2).
"""

from __future__ import annotations

from math import nan

import torch
from torch import Tensor

__all__ = ["ause", "sparsification"]

_STEPS = 20


def sparsification(error: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
    """Mean errors of what is left when ever more of the least sure pixels are taken away.

    Args:
        error: (N,), not negative; of the pixels whose truth is known.
        confidence: (N,), in any unit; where it is equal, the given order stands.

    Returns:
        Of 20 shares kept, 1, .95, ... .05, the mean error relative to that of all pixels, (20,):
        by `confidence`, and by the errors themselves.

    Raises:
        ValueError: the shapes differ or there are fewer than 20 pixels.
    """
    if error.shape != confidence.shape or error.dim() != 1 or len(error) < _STEPS:
        raise ValueError(
            f"errors {tuple(error.shape)} and confidence {tuple(confidence.shape)}: want two "
            f"vectors of one length from {_STEPS} on"
        )
    error = error.double()
    counts = [len(error) * step // _STEPS for step in range(_STEPS, 0, -1)]
    total = error.mean().clamp(min=torch.finfo(error.dtype).tiny)

    def curve(order: Tensor) -> Tensor:
        sums = error[order].cumsum(0)
        return torch.stack([sums[count - 1] / count for count in counts]) / total

    return curve(confidence.argsort(descending=True, stable=True)), curve(error.argsort())


def ause(error: Tensor, confidence: Tensor) -> float:
    """Area under the sparsification error, as a share of a random order's.

    Arguments and errors as of `sparsification`.

    Returns:
        0 if confidence ranks as the errors do, 1 if it says nothing, above 1 if it misleads; NaN
        where all errors are equal, so that there is nothing to rank.
    """
    by_confidence, by_error = sparsification(error, confidence)
    worth = (1 - by_error).sum()
    return float((by_confidence - by_error).sum() / worth) if error.any() and worth > 0 else nan
