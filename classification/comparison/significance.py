"""Which differences between rows are beyond the scatter of their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import mean, stdev
from typing import Any

from ...common.extras import from_extra

__all__ = ["differences"]

_LEVEL = 0.05


def differences(scores: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Compare every two rows by Welch's t-test.

    It takes the seeds of two rows as independent, with scatters of their own. Of so many pairs
    some would seem to differ by chance, so probabilities are corrected by Holm's method.

    Args:
        scores: row to one score for each seed.

    Returns:
        For each pair the difference of the means, the probability `p` of one as large by chance,
        `corrected`, and whether that is below 0.05 (`beyond`); None where a row has one seed,
        or neither has any scatter.

    Raises:
        ImportError: scipy is not installed.
    """
    stats = from_extra("scipy", "scipy.stats", "a comparison")
    made: list[dict[str, Any]] = []
    for one, other in combinations(scores, 2):
        a, b = scores[one], scores[other]
        difference, p = mean(a) - mean(b), None
        if min(len(a), len(b)) > 1 and len(set(a)) + len(set(b)) > 2:
            figures = (figure(x) for x in (a, b) for figure in (mean, stdev, len))
            p = float(stats.ttest_ind_from_stats(*figures, equal_var=False)[1])
        made.append({"row": one, "other": other, "difference": round(difference, 3), "p": p})
    tested = sorted((d for d in made if d["p"] is not None), key=lambda d: d["p"])
    floor = 0.0
    for place, one_pair in enumerate(tested):
        floor = max(floor, min(1.0, one_pair["p"] * (len(tested) - place)))
        one_pair["corrected"] = floor
    for pair in made:
        corrected = pair.setdefault("corrected", None)
        pair["beyond"] = None if corrected is None else corrected < _LEVEL
        for name in ("p", "corrected"):
            if pair[name] is not None:
                pair[name] = float(f"{pair[name]:.3g}")
    return made
