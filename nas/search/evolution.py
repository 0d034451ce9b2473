"""Regularised evolution with one objective: seeded, resumable."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..space import Architecture, SearchSpace
from .constraints import Constraint
from .population import Evaluated, Progress, Settings, search

__all__ = ["SearchResult", "evolve"]


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        best: the best architecture.
        score: its score.
        evaluated: everything looked at, in order.
    """

    best: Architecture
    score: float
    evaluated: tuple[Evaluated, ...]

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
        lambda architectures: [(score,) for score in objective(architectures)],
        lambda scores, number: sorted(range(len(scores)), key=scores.__getitem__)[:number],
        Settings(seed, population, parents, mutation, lifetime),
        generations,
        constraints,
        resume,
        on_generation,
    )
    return SearchResult.of(evaluated)
