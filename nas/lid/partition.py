"""Parting candidates into two groups by their similarity, and which of several choices to part.

Source: NAS-LID (He et al., AAAI 2023, arXiv 2211.12759), whose released program takes the choice
with the largest similarity *across* groups, where candidates are most alike; here that rule is one
of four.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Method", "Partition", "Rule", "choose_edge", "partition", "rate"]

Method = Literal["best", "exact", "spectral", "random"]
Rule = Literal["largest_mean_gap", "largest_intra", "smallest_inter", "released_code"]

_EXACT = 12


@dataclass(frozen=True)
class Partition:
    """Two groups of candidates and how well they part.

    Attributes:
        groups: indices of the candidates, each group ascending, the smaller first (of two equally
            large ones that of candidate 0).
        intra: sum of the similarities of pairs inside the groups.
        inter: the same of pairs across.
        gap: mean similarity inside minus mean across; two lone candidates count as 1 inside, like
            anything to itself.
    """

    groups: tuple[tuple[int, ...], tuple[int, ...]]
    intra: float
    inter: float
    gap: float


def rate(similarity: Tensor, groups: Sequence[Sequence[int]]) -> Partition:
    """How well two groups part.

    Args:
        similarity: (n, n), symmetric.
        groups: two, which hold every candidate once.

    Raises:
        ValueError: they do not.
    """
    count = _check(similarity)
    if len(groups) != 2 or sorted(itertools.chain(*groups)) != list(range(count)):
        raise ValueError(f"{groups} are not two groups that hold each of {count} candidates once")
    first, second = sorted((tuple(sorted(group)) for group in groups), key=lambda g: (len(g), g))
    if not first:
        raise ValueError("a group is empty")
    values = similarity.tolist()
    inside = [values[a][b] for g in (first, second) for a, b in itertools.combinations(g, 2)]
    across = [values[a][b] for a in first for b in second]
    mean = math.fsum(inside) / len(inside) if inside else 1.0
    gap = mean - math.fsum(across) / len(across)
    return Partition((first, second), math.fsum(inside), math.fsum(across), gap)


def partition(
    similarity: Tensor,
    method: Method = "best",
    *,
    min_group: int | None = None,
    rng: random.Random | None = None,
) -> Partition:
    """Part candidates into two groups.

    Args:
        similarity: (n, n), symmetric, of two candidates or more.
        method: `exact`: of all bipartitions the one with the largest sum of similarities inside;
            `spectral`: along the second eigenvector of the normalised Laplacian of similarity + 1,
            where two means fit best; `best`: exact up to 12 candidates, spectral above;
            `random`: groups as equal as can be, drawn.
        min_group: members of a group at least; half of the candidates, rounded down, by default.
            (More pairs have a larger sum, so that `exact` tends to groups as unequal as it may.)
        rng: draws `random` groups.

    Raises:
        ValueError: similarities are no such matrix, or `min_group` leaves no partition.
    """
    count = _check(similarity)
    least = count // 2 if min_group is None else min_group
    if not 1 <= least <= count // 2:
        raise ValueError(f"min_group {least}: {count} candidates allow 1 to {count // 2}")
    if method == "random":
        order = list(range(count))
        (rng or random.Random(0)).shuffle(order)
        return rate(similarity, (order[: count // 2], order[count // 2 :]))
    if method == "best":
        method = "exact" if count <= _EXACT else "spectral"
    if method == "exact":
        return _exact(similarity, least)
    if method == "spectral":
        return _spectral(similarity, least)
    raise ValueError(f"method {method!r} is unknown: choose best, exact, spectral or random")


def choose_edge(found: Mapping[str, Partition], rule: Rule = "largest_mean_gap") -> str:
    """The choice to part, of several whose candidates have been parted; the first of equals.

    Args:
        found: name to partition.
        rule: `largest_mean_gap`; `largest_intra`, as the paper words it, which also favours
            choices whose candidates are all alike; `smallest_inter`; `released_code`, the largest
            similarity across, for comparison with published figures alone.

    Raises:
        ValueError: another rule, or nothing to choose from.
    """
    rules = {
        "largest_mean_gap": lambda p: p.gap,
        "largest_intra": lambda p: p.intra,
        "smallest_inter": lambda p: -p.inter,
        "released_code": lambda p: p.inter,
    }
    if rule not in rules:
        raise ValueError(f"rule {rule!r} is unknown: choose {', '.join(rules)}")
    if not found:
        raise ValueError("no choice is left whose candidates could be parted")
    return max(found, key=lambda name: rules[rule](found[name]))


def _check(similarity: Tensor) -> int:
    count = len(similarity)
    if similarity.shape != (count, count) or count < 2:
        raise ValueError(
            f"wanted similarities (n, n) of two candidates or more, not the shape "
            f"{tuple(similarity.shape)}"
        )
    if not similarity.isfinite().all() or not torch.allclose(similarity, similarity.T):
        raise ValueError("similarities have to be finite and symmetric")
    return count


def _exact(similarity: Tensor, least: int) -> Partition:
    count = len(similarity)
    if count > 2 * _EXACT:
        raise ValueError(f"{count} candidates have too many bipartitions to try: take spectral")
    # Candidate 0 is in the first group, so that no bipartition is tried twice.
    parted = (
        rate(similarity, ((0, *rest), [i for i in range(1, count) if i not in rest]))
        for size in range(least, count - least + 1)
        for rest in itertools.combinations(range(1, count), size - 1)
    )
    return max(parted, key=lambda p: p.intra)


def _spectral(similarity: Tensor, least: int) -> Partition:
    affinity = similarity.double() + 1
    if (affinity < 0).any():
        raise ValueError("spectral clustering takes similarities of −1 or more")
    scale = affinity.fill_diagonal_(0).sum(1).rsqrt()
    vectors = torch.linalg.eigh(scale[:, None] * affinity * scale).eigenvectors
    places = vectors[:, -2] * scale
    order = places.argsort()
    ordered = places[order]

    def spread(cut: int) -> float:
        parts = (ordered[:cut], ordered[cut:])
        return sum(float((part - part.mean()).square().sum()) for part in parts)

    cut = min(range(least, len(order) - least + 1), key=spread)
    return rate(similarity, (order[:cut].tolist(), order[cut:].tolist()))
