"""Limits on latency, parameters, multiply-adds or memory, and whether they can be met at all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ...common.files import few
from ..space import Architecture, SearchSpace

__all__ = ["EXHAUSTIBLE", "Constraint", "Limits", "UnreachableError", "smallest_reachable"]

EXHAUSTIBLE = 1000
"""Spaces up to this size are looked through, for the smallest cost and for what no search met."""

_DESCENTS = 8


@dataclass(frozen=True)
class Constraint:
    """``cost(architecture) <= limit``."""

    name: str  #: what is limited, such as "latency"
    #: a pure function of the architecture; a search asks it once for each
    cost: Callable[[Architecture], float]
    limit: float  #: the largest allowed cost
    unit: str = ""  #: for messages, such as "ms"

    def __post_init__(self) -> None:
        if not math.isfinite(self.limit):
            raise ValueError(f"the limit on {self.name} has to be a number, not {self.limit}")

    def satisfied(self, architecture: Architecture) -> bool:
        """Whether the cost is at most the limit."""
        return self.excess(architecture) == 0

    def excess(self, architecture: Architecture) -> float:
        """By how much of the limit the cost is over it; 0 if it is not.

        Raises:
            ValueError: the cost is NaN.
        """
        cost = self.cost(architecture)
        if math.isnan(cost):
            raise ValueError(f"the {self.name} of an architecture is NaN ({architecture.digest})")
        return max(0.0, cost - self.limit) / (abs(self.limit) or 1.0)

    def text(self, value: float) -> str:
        """``value`` with the unit, short."""
        return f"{value:{',.0f' if abs(value) >= 9999.5 else '.4g'}} {self.unit}".rstrip()


class UnreachableError(ValueError):
    """No architecture meets the limits."""

    def __init__(self, message: str, architecture: Architecture, smallest: float | None) -> None:
        super().__init__(message)
        self.architecture = architecture  #: the one that comes nearest
        #: the smallest reachable cost, where one limit alone is out of reach; else None
        self.smallest = smallest


class Limits:
    """All constraints of a search, each cost asked for once."""

    def __init__(self, space: SearchSpace, constraints: Sequence[Constraint]) -> None:
        self.space = space
        self.constraints = tuple(constraints)
        #: the sum over the constraints of what is over their limits, relative to them
        self.excess: Callable[[Architecture], float] = cache(
            lambda architecture: sum(c.excess(architecture) for c in self.constraints)
        )

    def satisfied(self, architecture: Architecture) -> bool:
        """Whether all costs are at most their limits."""
        return self.excess(architecture) == 0

    def refuge(self) -> Architecture:
        """An architecture that meets all limits: the smallest one if that does.

        Raises:
            UnreachableError: none was found; the message says what the smallest reachable is.
        """
        nearest, over = smallest_reachable(self.space, self.excess, enough=0.0)
        if over == 0:
            return nearest
        for constraint in self.constraints:
            if constraint.satisfied(nearest):
                continue
            alone, cost = smallest_reachable(self.space, constraint.cost, enough=constraint.limit)
            if cost > constraint.limit:
                raise UnreachableError(
                    f"no architecture has a {constraint.name} of at most "
                    f"{constraint.text(constraint.limit)}: the smallest reachable is "
                    f"{constraint.text(cost)} ({_described(self.space, alone)})",
                    alone,
                    cost,
                )
        limits = " and ".join(f"{c.name} ≤ {c.text(c.limit)}" for c in self.constraints)
        costs = ", ".join(f"{c.name} {c.text(c.cost(nearest))}" for c in self.constraints)
        raise UnreachableError(
            f"no architecture meets {limits} at once; the nearest found has {costs} "
            f"({_described(self.space, nearest)})",
            nearest,
            None,
        )

    def repaired(
        self, architecture: Architecture, anchor: Architecture, rng: random.Random
    ) -> Architecture:
        """The architecture, changed towards ``anchor``, which meets the limits, until it does too.

        Choices take the anchor's values in random order, about as few as needed. So drawing a
        candidate ends however tight the limits are.
        """
        if self.satisfied(architecture):
            return architecture
        base = {choice.name: choice.smallest for choice in self.space}
        base |= {n: v for n, v in anchor.items() if v is not None}
        start = base | {n: v for n, v in architecture.items() if v is not None}
        order = [name for name in start if start[name] != base[name]]
        rng.shuffle(order)

        def after(steps: int) -> Architecture:
            values = start | {name: base[name] for name in order[:steps]}
            return self.space.build(lambda choice: values[choice.name])

        outside, inside, repaired = 0, len(order), anchor
        while inside - outside > 1:
            middle = (outside + inside) // 2
            candidate = after(middle)
            if self.satisfied(candidate):
                inside, repaired = middle, candidate
            else:
                outside = middle
        return repaired


def smallest_reachable(
    space: SearchSpace, cost: Callable[[Architecture], float], *, enough: float = -math.inf
) -> tuple[Architecture, float]:
    """The architecture of smallest cost, and its cost.

    Exact for spaces of up to 1,000 architectures. For larger ones the best end of several
    descents, each step to the best value of one choice: from the smallest, the largest and some
    random architectures. Ends as soon as a cost is `enough`; none is asked for twice.
    """
    ask = cache(cost)
    best = space.smallest()
    if ask(best) <= enough:
        return best, ask(best)
    if space.count() <= EXHAUSTIBLE:
        for architecture in space.enumerate():
            if ask(architecture) < ask(best):
                best = architecture
            if ask(best) <= enough:
                break
        return best, ask(best)
    rng = random.Random(0)
    starts = [best, space.largest(), *(space.sample(rng) for _ in range(_DESCENTS - 2))]
    for current in starts:
        before = None
        while before is None or ask(current) < before:
            before = ask(current)
            # What a depth leaves out comes after it, and is settled before it is chosen.
            for choice in reversed(space.names):
                current = min([current, *space.neighbours(current, choice)], key=ask)
                if ask(current) < ask(best):
                    best = current
                if ask(best) <= enough:
                    return best, ask(best)
    return best, ask(best)


def _described(space: SearchSpace, architecture: Architecture) -> str:
    smallest = space.smallest()
    if architecture == smallest:
        return "the smallest architecture"
    other = [f"{n}={v!r}" for n, v in architecture.items() if v is not None and v != smallest[n]]
    return f"the smallest architecture but for {few(other, 8)}"
