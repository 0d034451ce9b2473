"""Logits that learn from scores alone: a search for evaluators that give no gradient."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from ..search.constraints import Constraint, Limits
from ..search.evolution import SearchResult
from ..search.population import Evaluated
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
    batch: int = 1,
    lr: float = 0.2,
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
        batch: architectures between two steps of the logits.
        lr: of the logits' Adam.

    Raises:
        UnreachableError: no architecture keeps to the limits.
        ValueError: a number is less than 1, or no score was finite.
    """
    if evaluations < 1 or batch < 1:
        raise ValueError(f"evaluations {evaluations} and batch {batch} have to be at least 1")
    limits = Limits(space, constraints)
    refuge = limits.refuge()
    rng, logits = random.Random(seed), Logits(space, scale=0.0)
    optimizer = torch.optim.Adam(logits.parameters(), lr=lr, betas=(0.5, 0.99))
    found: dict[Architecture, Evaluated] = {}
    while len(found) < evaluations:
        new = _draw(logits, limits, refuge, rng, found, min(batch, evaluations - len(found)))
        if not new:
            break
        scores = [math.inf if math.isnan(s) else float(s) for s in objective(list(new))]
        step = len(found) // batch
        found |= {a: Evaluated(a, (s,), step) for a, s in zip(new, scores, strict=True)}
        known = [item.scores[0] for item in found.values()]
        terms = (
            _rank(score, known) * logits.log_probability(architecture)
            for architecture, score in zip(new, scores, strict=True)
        )
        optimizer.zero_grad()
        (cast("Tensor", sum(terms)) / len(new)).backward()
        optimizer.step()
    best = min(found.values(), key=lambda item: item.scores)
    if not math.isfinite(best.scores[0]):
        raise ValueError(f"none of {len(found)} architectures had a finite score")
    return SearchResult(best.architecture, best.scores[0], tuple(found.values()))


def _draw(
    logits: Logits,
    limits: Limits,
    refuge: Architecture,
    rng: random.Random,
    seen: dict[Architecture, Evaluated],
    wanted: int,
) -> list[Architecture]:
    """Up to `wanted` architectures that are not known yet."""
    with torch.no_grad():
        shares = {name: row.tolist() for name, row in logits.probabilities().items()}
    new: dict[Architecture, None] = {}
    for _ in range(_DRAWS * wanted):
        drawn = limits.space.build(
            lambda choice: rng.choices(choice.values, shares.get(choice.name))[0]
        )
        if not limits.satisfied(drawn):
            drawn = limits.repaired(drawn, refuge, rng)
        if drawn not in seen:
            new[drawn] = None
        if len(new) == wanted:
            break
    return list(new)


def _rank(score: float, known: list[float]) -> float:
    """The place of a score among all: −1 for the smallest of many, 1 for the largest."""
    below = sum(other < score for other in known)
    equal = sum(other == score for other in known)
    return 2 * (below + equal / 2) / len(known) - 1
