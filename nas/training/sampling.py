"""Which subnets a training step trains: functions of the space, the step and a seed.

Nothing is remembered between steps, so a resumed run draws what the interrupted one would have
drawn, and all processes of a distributed run draw alike.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from ..space import Architecture, SearchSpace

__all__ = ["LargestSampler", "Sampler", "SandwichSampler", "UniformSampler"]


class Sampler(ABC):
    """Draws the subnets of a step."""

    @abstractmethod
    def subnets(self, space: SearchSpace, step: int) -> list[Architecture]:
        """The subnets that training step `step` trains, in order.

        Args:
            space: what to draw from; for a stage of progressive shrinking the part it opens.
            step: counted from the start of training.
        """


class UniformSampler(Sampler):
    """Every choice that matters drawn uniformly and independently.

    Args:
        count: subnets a step.
        seed: another one gives other subnets.

    Raises:
        ValueError: `count` is less than 1.
    """

    def __init__(self, count: int = 1, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"a step needs at least one subnet, not {count}")
        self.count = count
        self.seed = seed

    def subnets(self, space: SearchSpace, step: int) -> list[Architecture]:
        """As many as `count` says, which may repeat."""
        return _drawn(space, step, self.count, self.seed)


class SandwichSampler(Sampler):
    """The largest subnet, the smallest, and some drawn uniformly between them.

    Source: Yu et al., "BigNAS", ECCV 2020. The largest is the first, so that the others can learn
    from it in the same step.

    Args:
        between: subnets drawn a step, besides the two.
        seed: another one gives other subnets.

    Raises:
        ValueError: `between` is negative.
    """

    def __init__(self, between: int = 2, seed: int = 0) -> None:
        if between < 0:
            raise ValueError(f"the number of subnets drawn cannot be {between}")
        self.between = between
        self.seed = seed

    def subnets(self, space: SearchSpace, step: int) -> list[Architecture]:
        """The two ends first, then those drawn between them."""
        ends = dict.fromkeys((space.largest(), space.smallest()))  # one, if the space holds one
        return [*ends, *_drawn(space, step, self.between, self.seed)]


class LargestSampler(Sampler):
    """The largest subnet alone: how progressive shrinking begins."""

    def subnets(self, space: SearchSpace, step: int) -> list[Architecture]:
        """The largest of the space, whatever the step."""
        return [space.largest()]


def _drawn(space: SearchSpace, step: int, count: int, seed: int) -> list[Architecture]:
    # Text seeds are hashed whole; numbers would have to be combined without collisions.
    return [space.sample(random.Random(f"{seed}:{step}:{index}")) for index in range(count)]
