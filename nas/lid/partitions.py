"""How alike candidates are, two groups of them by that, and which of several choices to part.

Source: NAS-LID (He et al., AAAI 2023, arXiv 2211.12759), whose released program takes the choice
with the largest similarity *across* groups, where candidates are most alike; here that rule is one
of four.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "Measure",
    "Method",
    "Partition",
    "Rule",
    "choose_edge",
    "mean_gaps",
    "method_for",
    "partition",
    "rate",
    "similarity",
]

Measure = Literal["euclidean", "cosine", "pearson"]
Method = Literal["best", "exact", "spectral", "random"]
Rule = Literal["largest_mean_gap", "largest_intra", "smallest_inter", "released_code"]

EXACT = 12  #: candidates at most whose bipartitions are all tried

_LEAST = 1e-9


@dataclass(frozen=True)
class Partition:
    """Two groups of candidates and how well they part."""

    #: indices of the candidates, each group ascending, the smaller first (of two equally large ones
    #: that of candidate 0)
    groups: tuple[tuple[int, ...], tuple[int, ...]]
    intra: float  #: sum of the similarities of pairs inside the groups
    inter: float  #: the same of pairs across

    @property
    def inside(self) -> float | None:
        """Mean similarity of pairs inside the groups; None of two lone candidates, without one."""
        pairs = sum(math.comb(len(group), 2) for group in self.groups)
        return self.intra / pairs if pairs else None

    @property
    def across(self) -> float:
        """Mean similarity of pairs across the groups."""
        return self.inter / (len(self.groups[0]) * len(self.groups[1]))


def similarity(vectors: Tensor, measure: Measure = "euclidean") -> Tensor:
    """Similarities of all pairs of vectors; large is alike.

    NAS-LID's vectors, which hold the dimension of each layer, are best told apart by `euclidean`:
    their cosines hardly differ, and Pearson's correlation takes no notice of their size.

    Args:
        vectors: (n, d), one for each candidate.
        measure: `euclidean`: 1 / (1 + 1e−6 + distance); `cosine`; `pearson`, the cosine of what is
            left without the mean. A vector of zeros is like one of zeros and no other.

    Returns:
        (n, n), float64.

    Raises:
        ValueError: another measure, no vectors, or values that are not finite.
    """
    if vectors.dim() != 2 or not vectors.numel():
        raise ValueError(f"wanted vectors (n, d), not the shape {tuple(vectors.shape)}")
    vectors = vectors.double()
    if not vectors.isfinite().all():
        raise ValueError("a vector to compare is not finite")
    if measure == "euclidean":
        exact = "donot_use_mm_for_euclid_dist"
        return 1 / (1 + 1e-6 + torch.cdist(vectors, vectors, compute_mode=exact))
    if measure == "pearson":
        # Of equal entries rounding would leave something, and with it a direction.
        equal = vectors.amin(1, keepdim=True) == vectors.amax(1, keepdim=True)
        vectors = (vectors - vectors.mean(1, keepdim=True)).masked_fill(equal, 0)
    elif measure != "cosine":
        raise ValueError(f"measure {measure!r} is unknown: choose euclidean, cosine or pearson")
    lengths = vectors.norm(dim=1, keepdim=True)
    units = torch.where(lengths > 0, vectors / lengths, 0)
    empty = (lengths == 0).double()
    return units @ units.T + empty @ empty.T


def rate(similarity: Tensor, groups: Sequence[Sequence[int]]) -> Partition:
    """How well two groups part which hold every candidate once; similarities are (n, n), symmetric.

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
    return Partition((first, second), math.fsum(inside), math.fsum(across))


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
            for 12 candidates at most; `spectral`: along the second eigenvector of the normalised
            Laplacian of similarity + 1, where two means fit best, for similarities of −1 or more;
            `best`: exact up to 12 candidates, spectral above; `random`: groups as equal as can be,
            drawn.
        min_group: members of a group at least. By default half of the candidates, rounded down,
            for `exact` (more pairs have a larger sum, so that it tends to groups as unequal as it
            may), and 1 for `spectral`, which has no such tendency.
        rng: draws `random` groups.

    Raises:
        ValueError: similarities are no such matrix, `min_group` leaves no partition, or the method
            is unknown or not for so many candidates.
    """
    count = _check(similarity)
    method = method_for(count, method)
    by_itself = 1 if method == "spectral" else count // 2
    least = by_itself if min_group is None else min_group
    if not 1 <= least <= count // 2:
        raise ValueError(f"min_group {least}: {count} candidates allow 1 to {count // 2}")
    if method == "random":
        order = list(range(count))
        (rng or random.Random(0)).shuffle(order)
        return rate(similarity, (order[: count // 2], order[count // 2 :]))
    if method == "exact":
        return _exact(similarity, least)
    if method == "spectral":
        return _spectral(similarity, least)
    raise ValueError(f"method {method!r} is unknown: choose best, exact, spectral or random")


def method_for(count: int, method: Method = "best") -> Method:
    """The method that parts so many candidates: of `best` the one that it stands for."""
    if method == "best":
        return "exact" if count <= EXACT else "spectral"
    return method


def choose_edge(partitions: Mapping[str, Partition], rule: Rule = "largest_mean_gap") -> str:
    """The choice to part, of several whose candidates have been parted; the first of equals.

    Args:
        partitions: name to partition.
        rule: `largest_mean_gap`, see `mean_gaps`; `largest_intra`, as the paper words it, which
            also favours choices whose candidates are all alike; `smallest_inter`; `released_code`,
            the largest similarity across, for comparison with published figures alone. Only the
            first compares choices of different numbers of candidates: the others are sums of pairs.

    Raises:
        ValueError: another rule, or nothing to choose from.
    """
    rules = {
        "largest_mean_gap": mean_gaps(partitions),
        "largest_intra": {name: p.intra for name, p in partitions.items()},
        "smallest_inter": {name: -p.inter for name, p in partitions.items()},
        "released_code": {name: p.inter for name, p in partitions.items()},
    }
    if rule not in rules:
        raise ValueError(f"rule {rule!r} is unknown: choose {', '.join(rules)}")
    if not partitions:
        raise ValueError("no choice is left whose candidates could be parted")
    return max(partitions, key=rules[rule].__getitem__)


def mean_gaps(partitions: Mapping[str, Partition]) -> dict[str, float]:
    """How well the candidates of several choices part: mean similarity inside minus mean across.

    A choice of two candidates has no pair inside, and nothing to say how alike like ones would be.
    The median of the other choices' means inside says it for them (the lower median, so that a dead
    choice, whose candidates are all alike, does not count in few); 1 where all are such pairs. So a
    pair wins where it is less alike than groups elsewhere are by more than any gap there. What it
    cannot tell: two groups from two members of one wide group, or from any two candidates where
    most other choices are dead.
    """
    inside = [p.inside for p in partitions.values() if p.inside is not None]
    usual = statistics.median_low(inside) if inside else 1.0
    return {
        name: (usual if p.inside is None else p.inside) - p.across for name, p in partitions.items()
    }


def _check(similarity: Tensor) -> int:
    count = len(similarity)
    if similarity.shape != (count, count) or count < 2:
        raise ValueError(
            f"wanted similarities (n, n) of two candidates or more, not the shape "
            f"{tuple(similarity.shape)}"
        )
    # In float32 both halves are rounded, which matters beside values near 0.
    if not similarity.isfinite().all() or not torch.allclose(similarity, similarity.T, atol=1e-6):
        raise ValueError("similarities have to be finite and symmetric")
    return count


def _exact(similarity: Tensor, least: int) -> Partition:
    count = len(similarity)
    if count > EXACT:
        raise ValueError(
            f"{count} candidates have too many bipartitions to try: the method `exact` is for "
            f"{EXACT} at most; take `best` or `spectral`"
        )
    # Candidate 0 is in the first group, so that no bipartition is tried twice.
    firsts = [
        (0, *rest)
        for size in range(least, count - least + 1)
        for rest in itertools.combinations(range(1, count), size - 1)
    ]
    sides = similarity.new_full((len(firsts), count), -1, dtype=torch.float64)
    for side, first in zip(sides, firsts, strict=True):
        side[list(first)] = 1
    scores = (sides @ similarity.double() * sides).sum(1).tolist()  # inside minus across
    first = firsts[scores.index(max(scores))]
    return rate(similarity, (first, [i for i in range(count) if i not in first]))


def _spectral(similarity: Tensor, least: int) -> Partition:
    affinity = similarity.double() + 1
    if (affinity < -_LEAST).any():
        raise ValueError("spectral clustering takes similarities of −1 or more")
    # A candidate unlike all others would have no edge, and its degree no inverse.
    affinity = affinity.clamp(min=_LEAST)
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
