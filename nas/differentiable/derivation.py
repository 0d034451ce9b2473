"""From probabilities to one architecture: the most likely one, or the best of many drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from ..search.constraints import Constraint, Limits
from ..search.population import Evaluated, scored
from ..space import Architecture, Scalar, SearchSpace

__all__ = ["derive", "draw_architectures", "most_likely"]

_Probabilities = Mapping[str, Sequence[float]]
"""Choice's name → a number for each of its values, as `Logits.probabilities`; others are even."""

_DRAWS = 20


def most_likely(
    space: SearchSpace, probabilities: _Probabilities, constraints: Sequence[Constraint] = ()
) -> Architecture:
    """The architecture of each choice's most likely value; within limits, one near it.

    Where it breaks a limit, choices are changed one by one, each time the one that costs the least
    probability for what it saves.

    Raises:
        UnreachableError: no architecture keeps to the limits.
        ValueError: probabilities do not fit the space, or are not finite.
    """
    limits = Limits(space, constraints)
    refuge = limits.refuge()
    shares = _shares(space, probabilities)

    def logarithm(architecture: Architecture) -> float:
        used = ((name, value) for name, value in architecture.items() if value is not None)
        return sum(math.log(max(shares[name][value], 1e-300)) for name, value in used)

    nearest = space.build(lambda c: max(c.values, key=shares[c.name].__getitem__))
    while not limits.satisfied(nearest):
        over, here = limits.excess(nearest), logarithm(nearest)
        prices = {
            other: max(here - logarithm(other), 1e-9) / (over - limits.excess(other))
            for other in space.neighbours(nearest)
            if limits.excess(other) < over
        }
        if not prices:
            return limits.repaired(nearest, refuge, random.Random(0))
        nearest = min(prices, key=prices.__getitem__)
    return nearest


def draw_architectures(
    space: SearchSpace,
    probabilities: _Probabilities,
    count: int,
    rng: random.Random,
    constraints: Sequence[Constraint] = (),
) -> list[Architecture]:
    """The most likely architecture, and others drawn by their probabilities, all different.

    They are `count` at most, fewer where probability is concentrated on fewer. A draw that does
    not keep to the constraints is changed until it does.

    Raises:
        UnreachableError: no architecture keeps to the limits.
    """
    limits, shares = Limits(space, constraints), _shares(space, probabilities)
    first = most_likely(space, probabilities, constraints)
    kept = {first: None}
    for _ in range(_DRAWS * count):
        if len(kept) >= count:
            break
        drawn = space.build(lambda c: rng.choices(c.values, list(shares[c.name].values()))[0])
        kept[limits.repaired(drawn, first, rng)] = None
    return list(kept)[:count]


def derive(
    space: SearchSpace,
    probabilities: _Probabilities,
    evaluate: Callable[[list[Architecture]], Sequence[float]],
    *,
    samples: int,
    constraints: Sequence[Constraint] = (),
    seed: int = 0,
) -> list[Evaluated]:
    """Draw architectures, evaluate them, and rank them.

    For a network that is trained without Lightning; `DifferentiableSearch` ranks what it validates.

    Args:
        space: of the choices.
        probabilities: of their values.
        constraints: what all architectures keep to.
        evaluate: architectures → one score for each, small is good; such as the error with
            inherited weights after `recalibrate`.
        samples: how many, the most likely one among them.
        seed: of the draws.

    Returns:
        The architectures and their scores, the best first; NaN counts as infinite.

    Raises:
        UnreachableError: no architecture keeps to the limits.
        ValueError: `samples` is less than 1.
    """
    if samples < 1:
        raise ValueError(f"to derive an architecture takes at least one sample, not {samples}")
    drawn = draw_architectures(space, probabilities, samples, random.Random(seed), constraints)
    scores = scored([evaluate], drawn)
    items = [Evaluated(a, s, 0) for a, s in zip(drawn, scores, strict=True)]
    return sorted(items, key=lambda item: item.scores)


def _shares(space: SearchSpace, probabilities: _Probabilities) -> dict[str, dict[Scalar, float]]:
    """Choice's name → each of its values → its probability, as a plain number."""
    shares = {}
    for choice in space:
        even = [1 / len(choice.values)] * len(choice.values)
        own = [float(share) for share in probabilities.get(choice.name, even)]
        if len(own) != len(choice.values):
            raise ValueError(
                f"choice {choice.name!r} has {len(choice.values)} values, but "
                f"{len(own)} probabilities are given"
            )
        if not all(map(math.isfinite, own)):
            raise ValueError(
                f"choice {choice.name!r} has probabilities that are not finite; if a search "
                "gave them, it has diverged: take smaller learning rates"
            )
        shares[choice.name] = dict(zip(choice.values, own, strict=True))
    return shares
