"""How well scores of architectures rank them, against what they reach when trained alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..search.predictor import agreement

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """Scores against the truth.

    Attributes:
        count: architectures.
        kendall: Kendall's tau-b; NaN where either side is constant.
        spearman: Spearman's rho; likewise.
        precision: k → the share of the k best by score that are among the k best in truth.
    """

    count: int
    kendall: float
    spearman: float
    precision: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are NaN become None."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def compare(
    scores: Sequence[float], truth: Sequence[float], top: Sequence[int] = (5, 10, 50)
) -> Comparison:
    """Compare a ranking with the true one; large is good in both.

    Args:
        scores: of architectures.
        truth: of the same ones.
        top: numbers k of precision@k; those that are not below the count are left out.

    Raises:
        ValueError: the numbers of both differ, or are below 2.
    """
    agrees = agreement(scores, truth)
    by_score, by_truth = (np.argsort(-np.asarray(v, float), kind="stable") for v in (scores, truth))
    precision = {
        k: len(set(by_score[:k]) & set(by_truth[:k])) / k for k in top if k < len(by_score)
    }
    return Comparison(agrees.count, agrees.kendall, agrees.spearman, precision)
