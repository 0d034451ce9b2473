"""Logits that learn from scores alone: a search for evaluators that give no gradient."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from ..search.constraints import Constraint, Limits
from ..search.evolution import SearchResult
from ..search.population import Evaluated, scored
from ..space import Architecture, SearchSpace
from .logits import Logits

__all__ = ["search_by_score"]

_DRAWS = 50


def search_by_score(
    space: SearchSpace,
    objective: Callable[[list[Architecture]], Sequence[float]],
    *,
    evaluations: int,
    constraints: Sequence[Constraint] = (),
    seed: int,
) -> SearchResult:
    """Minimise an objective by REINFORCE on the logits of the space.

    Architectures are drawn from the softmax of the logits, none twice. What counts is the rank of a
    score among all so far, so the objective's unit does not matter. Source: Williams, "Simple
    statistical gradient-following algorithms", 1992.

    Args:
        space: where to search.
        objective: architectures → one score for each, small is good; NaN counts as infinite.
        evaluations: how many architectures are looked at, at most.
        constraints: what all of them keep to; a draw that does not is changed until it does.
        seed: of the draws.

    Raises:
        UnreachableError: no architecture keeps to the limits.
        ValueError: `evaluations` is less than 1, or no score was finite.
    """
    if evaluations < 1:
        raise ValueError(f"evaluations {evaluations} have to be at least 1")
    limits = Limits(space, constraints)
    refuge = limits.refuge()
    if space.count() == 1:  # nothing to learn
        (alone,) = scored([objective], [refuge])
        return SearchResult.of([Evaluated(refuge, alone, 0)])
    rng, logits = random.Random(seed), Logits(space, scale=0.0)
    optimizer = torch.optim.Adam(logits.parameters(), lr=0.2, betas=(0.5, 0.99))
    evaluated: dict[Architecture, Evaluated] = {}
    for step in range(evaluations):
        with torch.no_grad():
            shares = {name: row.tolist() for name, row in logits.probabilities().items()}
        for _ in range(_DRAWS):
            new = space.build(lambda c: rng.choices(c.values, shares.get(c.name))[0])  # noqa: B023
            new = limits.repaired(new, refuge, rng)
            if new not in evaluated:
                break
        else:
            break  # none turned up that is not known yet
        ((score,),) = scored([objective], [new])
        evaluated[new] = Evaluated(new, (score,), step)
        known = [item.scores[0] for item in evaluated.values()]
        below = sum(other < score for other in known) + known.count(score) / 2
        place = 2 * below / len(known) - 1  # −1 for the smallest of many, 1 for the largest
        optimizer.zero_grad()
        (place * logits.log_probability(new)).backward()
        optimizer.step()
    return SearchResult.of(evaluated.values())
