"""Evolution with one objective, or with several: the architectures that no other beats in all.

Seeded and resumable. With one it is regularised evolution, with several NSGA-II (Deb et al. 2002):
survivors by non-dominated sorting, then by crowding distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..space import Architecture, SearchSpace
from .constraints import Constraint
from .population import Evaluated, Progress, Scores, Settings, search

__all__ = ["ParetoResult", "SearchResult", "evolve", "evolve_pareto", "pareto_front"]


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    best: Architecture  #: the best architecture
    score: float  #: its score
    evaluated: tuple[Evaluated, ...]  #: everything looked at, in order

    @classmethod
    def of(cls, evaluated: Collection[Evaluated]) -> SearchResult:
        """The result of all that was evaluated.

        Raises:
            ValueError: no score is finite.
        """
        best = min(evaluated, key=lambda item: item.scores)
        if not math.isfinite(best.scores[0]):
            raise ValueError(f"none of {len(evaluated)} architectures had a finite score")
        return cls(best.architecture, best.scores[0], tuple(evaluated))


def evolve(
    space: SearchSpace,
    objective: Callable[[list[Architecture]], Sequence[float]],
    *,
    constraints: Sequence[Constraint] = (),
    seed: int,
    population: int = 100,
    generations: int = 100,
    parents: float = 0.25,
    mutation: float = 0.1,
    lifetime: int | None = 10,
    resume: dict[str, Any] | None = None,
    on_generation: Callable[[Progress], None] | None = None,
) -> SearchResult:
    """Minimise ``objective`` over the space, within the constraints.

    The best quarter survives and is bred from: half of the children are mutants, half uniform
    crossovers (as once-for-all searches do, Cai et al., ICLR 2020, arXiv 1908.09791). Parents age
    and go, however good (Real et al., "Regularized Evolution for Image Classifier Architecture
    Search", AAAI 2019), so that one lucky measurement does not rule the search. Every architecture
    is evaluated once, those of the last generation too.

    Args:
        space: where to search.
        objective: architectures → one score for each, small is good; called once a generation.
            For a function of one architecture: ``each(function)``. NaN counts as infinite.
        constraints: what the result has to meet.
        seed: fixes the search, as far as objective and costs are pure functions.
        population: architectures of the first generation; each later one replaces all but
            ``parents`` of them.
        generations: how many follow the first.
        parents: share of the population that survives.
        mutation: probability for each choice of a mutant to change; one changes at least.
        lifetime: generations that an architecture may be a parent; None for ever.
        resume: ``Progress.state()`` of an interrupted search with the same arguments
            (``generations`` may differ); the result is as if there had been no interruption.
        on_generation: told about each generation, for a progress bar and for saving the state.

    Raises:
        UnreachableError: the constraints cannot be met; the message has the smallest reachable
            value and the architecture with it.
        ValueError: a setting is out of range, ``resume`` belongs to another search, or not one
            architecture had a finite score.

    Example:
        >>> result = evolve(space, each(lambda a: -a["depth"]), seed=0, generations=10)
        >>> result.best["depth"]
        4
    """
    evaluated = search(
        space,
        [objective],
        lambda scores, number: sorted(range(len(scores)), key=scores.__getitem__)[:number],
        Settings(seed, population, parents, mutation, lifetime),
        generations,
        constraints,
        resume,
        on_generation,
    )
    return SearchResult.of(evaluated)


@dataclass(frozen=True)
class ParetoResult:
    """What a search found."""

    names: tuple[str, ...]  #: of the objectives, in the order of the scores
    #: the architectures that none evaluated dominates, by the first score
    front: tuple[Evaluated, ...]
    evaluated: tuple[Evaluated, ...]  #: everything looked at, in order

    @classmethod
    def of(cls, names: Iterable[str], evaluated: Collection[Evaluated]) -> ParetoResult:
        """The result of all that was evaluated.

        Raises:
            ValueError: no scores are finite.
        """
        finite = [item for item in evaluated if all(map(math.isfinite, item.scores))]
        if not finite:
            raise ValueError(f"none of {len(evaluated)} architectures had finite scores")
        front = [finite[i] for i in pareto_front([item.scores for item in finite])]
        front.sort(key=lambda item: item.scores)
        return cls(tuple(names), tuple(front), tuple(evaluated))


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """The indices of the points that no other dominates, in ascending order.

    A point dominates another if it is at most as large in everything and smaller in something;
    so equal points stay together. A point with a NaN is never on the front.
    """
    order = sorted(
        (i for i, point in enumerate(points) if not any(map(math.isnan, point))),
        key=lambda i: tuple(points[i]),
    )
    front: list[int] = []
    for i in order:
        # In this order whatever dominates a point comes before it.
        if not any(_dominates(points[j], points[i]) for j in front):
            front.append(i)
    return sorted(front)


def _crowding_distances(points: Sequence[Sequence[float]]) -> list[float]:
    """How far each point's neighbours are apart, summed over scaled coordinates; ends infinite."""
    distances = [0.0] * len(points)
    for axis in zip(*points, strict=True):
        order = sorted(range(len(points)), key=axis.__getitem__)
        span = axis[order[-1]] - axis[order[0]]
        distances[order[0]] = distances[order[-1]] = math.inf
        if 0 < span < math.inf:
            for before, i, after in zip(order, order[1:], order[2:], strict=False):
                distances[i] += (axis[after] - axis[before]) / span
    return distances


def evolve_pareto(
    space: SearchSpace,
    objectives: Mapping[str, Callable[[list[Architecture]], Sequence[float]]],
    *,
    constraints: Sequence[Constraint] = (),
    seed: int,
    population: int = 100,
    generations: int = 100,
    parents: float = 0.5,
    mutation: float = 0.1,
    resume: dict[str, Any] | None = None,
    on_generation: Callable[[Progress], None] | None = None,
) -> ParetoResult:
    """Minimise several objectives at once, within the constraints.

    Args as of `evolve`, but for:
        objectives: name → architectures → one score for each, small is good. Each is called once
            a generation.

    Returns:
        The front of everything evaluated, not only of the last population.

    Raises:
        UnreachableError: the constraints cannot be met.
        ValueError: there is no objective, a setting is out of range, ``resume`` belongs to another
            search, or not one architecture had finite scores.
    """
    if not objectives:
        raise ValueError("a Pareto search needs at least one objective")
    evaluated = search(
        space,
        list(objectives.values()),
        _least_dominated,
        Settings(seed, population, parents, mutation),
        generations,
        constraints,
        resume,
        on_generation,
    )
    return ParetoResult.of(objectives, evaluated)


def _least_dominated(scores: list[Scores], number: int) -> list[int]:
    left = list(range(len(scores)))
    kept: list[int] = []
    while left and len(kept) < number:
        front = [left[i] for i in pareto_front([scores[i] for i in left])]
        if len(kept) + len(front) > number:
            distances = _crowding_distances([scores[i] for i in front])
            apart = sorted(range(len(front)), key=lambda k: -distances[k])
            front = [front[k] for k in apart[: number - len(kept)]]
        kept += front
        taken = set(front)
        left = [i for i in left if i not in taken]
    return kept


def _dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)
