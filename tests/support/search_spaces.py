"""Search spaces that tests of the engine share."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

from vizoo.nas.space import Architecture, Choice, SearchSpace

VALUES = [(3,), (3, 5), (3, 5, 7), (0.5, 1.0), (False, True), ("skip", "conv", "pool")]


def easnet_space() -> SearchSpace:
    """The choices of EASNet: scales, depth of a stage, kernel and expansion of a block."""
    choices = [Choice("s", (2, 3, 4))]
    conditions = {}
    for stage in range(4):
        scales = [s for s in (2, 3, 4) if s > stage]
        depth = Choice(f"d.{stage}", (2, 3, 4))
        choices.append(depth)
        conditions[depth.name] = [{"s": scales}]
        for block in range(4):
            depths = [d for d in depth.values if d > block]
            for name, values in (("ks", (3, 5, 7)), ("e", (2, 4, 6, 8))):
                choices.append(Choice(f"{name}.{stage}.{block}", values))
                conditions[choices[-1].name] = [{"s": scales, depth.name: depths}]
    return SearchSpace(choices, conditions)


def small_space() -> SearchSpace:
    """A depth of 1 to 3, and for each block a kernel and a width: 9 + 9² + 9³ architectures."""
    choices = [Choice("depth", (1, 2, 3))]
    conditions = {}
    for block in range(3):
        for name, values in (("kernel", (3, 5, 7)), ("width", (8, 16, 24))):
            choices.append(Choice(f"blocks.{block}.{name}", values))
            conditions[choices[-1].name] = [{"depth": [d for d in (1, 2, 3) if d > block]}]
    return SearchSpace(choices, conditions)


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Spaces of up to seven choices, whose conditions ask about any of the others in any order."""
    values = draw(st.lists(st.sampled_from(VALUES), max_size=7))
    choices = [Choice(f"c{i}", v) for i, v in enumerate(values)]
    conditions = {}
    for i, choice in enumerate(choices):
        if not i or not draw(st.booleans()):
            continue
        cases = st.dictionaries(st.sampled_from(choices[:i]), st.integers(0, 10**6), max_size=3)
        conditions[choice.name] = [
            {
                # Any non-empty subset of the other choice's values, by the bits of a number.
                other.name: [v for bit, v in enumerate(other.values) if subset >> bit & 1]
                or [other.values[subset % len(other.values)]]
                for other, subset in case.items()
            }
            for case in draw(st.lists(cases, max_size=3))
        ]
    return SearchSpace(draw(st.permutations(choices)), conditions)


def rugged(space: SearchSpace, seed: int, interaction: float = 0.5) -> Callable[..., float]:
    """A random function of an architecture: a number for each value, and for pairs of values."""
    drawn: dict[tuple, float] = {}

    def number(*key: object) -> float:
        if key not in drawn:
            drawn[key] = random.Random(repr((seed, *key))).gauss(0, 1)
        return drawn[key]

    pairs = list(itertools.combinations(space.names, 2))
    pairs = random.Random(seed).sample(pairs, min(len(pairs), 2 * len(space)))

    def score(architecture: Architecture) -> float:
        alone = sum(number(name, value) for name, value in architecture.items())
        return alone + interaction * sum(
            number(a, b, architecture[a], architecture[b]) for a, b in pairs
        )

    return score


def growing(space: SearchSpace, seed: int) -> Callable[[Architecture], float]:
    """A random cost that grows with every choice, and with every choice that matters."""
    rng = random.Random(seed)
    costs = {
        (choice.name, value): cost
        for choice in space
        for value, cost in zip(
            choice.values, sorted(rng.random() for _ in choice.values), strict=True
        )
    }
    return lambda a: sum(costs[item] for item in a.items() if item[1] is not None)


def printed(code: str) -> str:
    """What a program prints, the same in processes in which strings have other hashes."""
    here = str(Path(__file__).parent)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": here},
        ).stdout
        for seed in ("1", "2")
    }
    (output,) = outputs
    return output
