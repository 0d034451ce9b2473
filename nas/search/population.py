"""The loop that single-objective and Pareto searches share: breed, evaluate, select, again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

from ..space import Architecture, SearchSpace
from .constraints import EXHAUSTIBLE, Constraint, Limits

__all__ = [
    "Evaluated",
    "Progress",
    "Settings",
    "bred",
    "each",
    "identity",
    "restored",
    "scored",
    "search",
]

_VERSION = 1
_DRAWS = 8
"""Candidates drawn for each child wanted, as many were seen before when a search comes to its end;
then the parents' neighbours are looked through, and a small space as a whole."""

Scores = tuple[float, ...]
Objective = Callable[[list[Architecture]], Sequence[float]]


class Evaluated(NamedTuple):
    """An architecture that was looked at, its scores, and the generation it is from."""

    architecture: Architecture
    scores: Scores
    generation: int


@dataclass(frozen=True)
class Settings:
    """How to search, as `vizoo.nas.search.evolve` says; checked."""

    seed: int
    population: int
    parents: float
    mutation: float
    lifetime: int | None = None

    def __post_init__(self) -> None:
        if self.population < 2:
            raise ValueError(f"a population is 2 or more, not {self.population}")
        if not 0 < self.parents < 1:
            raise ValueError(f"parents are a share between 0 and 1, not {self.parents}")
        if not 0 <= self.mutation <= 1:
            raise ValueError(f"mutation is a probability, not {self.mutation}")
        if self.lifetime is not None and self.lifetime < 1:
            raise ValueError(f"a lifetime is 1 generation or more, not {self.lifetime}")

    @property
    def survivors(self) -> int:
        """How many are bred from: at least one, and fewer than all."""
        return max(1, min(self.population - 1, round(self.population * self.parents)))


@dataclass(frozen=True)
class Progress:
    """What a search says of itself after each generation."""

    generation: int  #: the one just evaluated; 0 is the random one
    generations: int  #: the last one
    survivors: tuple[Evaluated, ...]  #: the best so far, the parents of the next generation
    evaluated: tuple[Evaluated, ...]  #: everything looked at so far, in order
    _identity: dict[str, Any]
    _rng: tuple[Any, ...]

    def state(self) -> dict[str, Any]:
        """What is needed to go on from here in another process (``resume=``), as JSON."""
        place = {item.architecture: i for i, item in enumerate(self.evaluated)}
        version, numbers, gauss = self._rng
        return {
            **self._identity,
            "generation": self.generation,
            "rng": [version, list(numbers), gauss],
            "evaluated": [
                {
                    "values": list(item.architecture.values()),
                    # JSON knows no infinity.
                    "scores": [v if math.isfinite(v) else None for v in item.scores],
                    "generation": item.generation,
                }
                for item in self.evaluated
            ],
            "survivors": [place[item.architecture] for item in self.survivors],
        }


def each(objective: Callable[[Architecture], float]) -> Callable[[list[Architecture]], list[float]]:
    """An objective for one architecture as one for a list, which the searches take."""
    return lambda architectures: list(map(objective, architectures))


def search(
    space: SearchSpace,
    objectives: Sequence[Objective],
    select: Callable[[list[Scores], int], list[int]],
    settings: Settings,
    generations: int,
    constraints: Sequence[Constraint] = (),
    resume: dict[str, Any] | None = None,
    on_generation: Callable[[Progress], None] | None = None,
) -> list[Evaluated]:
    """Breed, evaluate and select for a number of generations.

    Survivors are chosen from the last survivors, unless they are past their lifetime, and their
    children, of which half are mutants and half uniform crossovers. No architecture is evaluated
    twice; a child seen before is drawn anew. Children over a limit are changed towards their parent
    until they meet it. The search ends early if nothing new turns up.

    Args as of `vizoo.nas.search.evolve`, but for:
        objectives: each called once a generation, with its new architectures.
        select: (scores, number) → the indices of those that survive.

    Returns:
        All that was evaluated, in order.

    Raises:
        UnreachableError: no architecture meets the constraints.
        ValueError: ``resume`` is the state of another search.
    """
    if generations < 0:
        raise ValueError(f"the number of generations is 0 or more, not {generations}")
    limits = Limits(space, constraints)
    refuge = limits.refuge()
    rng = random.Random(settings.seed)
    same = identity(space, settings, constraints)
    generation = -1
    evaluated: list[Evaluated] = []
    survivors: list[Evaluated] = []
    if resume is not None:
        generation, evaluated, survivors = restored(resume, same, space, rng)
    seen = {item.architecture for item in evaluated}
    count = space.count()
    while generation < generations and len(seen) < count:
        generation += 1
        wanted = settings.population - len(survivors)
        parents = [item.architecture for item in survivors]
        new = bred(parents, wanted, seen, limits, refuge, settings, rng)
        seen.update(new)
        if not new:
            break
        scores = scored(objectives, new)
        born = [Evaluated(a, s, generation) for a, s in zip(new, scores, strict=True)]
        evaluated += born
        oldest = generation - (settings.lifetime or math.inf)
        pool = [item for item in survivors + born if item.generation > oldest]
        survivors = [pool[i] for i in select([p.scores for p in pool], settings.survivors)]
        if on_generation is not None:
            known = tuple(survivors), tuple(evaluated)
            on_generation(Progress(generation, generations, *known, same, rng.getstate()))
    return evaluated


def bred(
    parents: list[Architecture],
    wanted: int,
    seen: set[Architecture],
    limits: Limits,
    refuge: Architecture,
    settings: Settings,
    rng: random.Random,
) -> list[Architecture]:
    """Up to ``wanted`` architectures that were not seen before and meet the limits."""
    space = limits.space
    new: dict[Architecture, None] = {}
    for draw in range(_DRAWS * wanted):
        anchor = refuge
        if not parents or draw >= _DRAWS * wanted // 2:
            child = space.sample(rng)
        else:
            anchor = rng.choice(parents)
            if rng.random() < 0.5:
                child = space.crossover(anchor, rng.choice(parents), rng)
            else:
                child = space.mutate(anchor, rng, settings.mutation)
        if child in seen or child in new:
            continue
        child = limits.repaired(child, anchor, rng)
        if child not in seen:
            new[child] = None
        if len(new) == wanted:
            return list(new)
    near = [neighbour for parent in parents for neighbour in space.neighbours(parent)]
    rng.shuffle(near)
    for child in chain(near, space.enumerate() if space.count() <= EXHAUSTIBLE else ()):
        if len(new) == wanted:
            break
        if child not in seen and limits.satisfied(child):
            new[child] = None
    return list(new)


def scored(objectives: Iterable[Objective], architectures: list[Architecture]) -> list[Scores]:
    """What objectives say, a score of each for each architecture; NaN as infinite."""
    columns = []
    for objective in objectives:
        results: Any = objective(list(architectures))
        if not isinstance(results, Iterable):
            raise ValueError(
                f"the objective gave {results!r} for {len(architectures)} architectures: it takes "
                "a list of them and gives one result for each"
            )
        columns.append([float(value) for value in results])
        if len(columns[-1]) != len(architectures):
            raise ValueError(
                f"the objective gave {len(columns[-1])} results for {len(architectures)} "
                "architectures"
            )
    rows = zip(*columns, strict=True)
    return [tuple(math.inf if math.isnan(v) else v for v in row) for row in rows]


def identity(
    space: SearchSpace, settings: Settings, constraints: Sequence[Constraint]
) -> dict[str, Any]:
    """What a state says of its search, which only the same one resumes; as JSON."""
    return {
        "version": _VERSION,
        "space": space.digest,
        "settings": asdict(settings),
        "constraints": [[c.name, c.limit] for c in constraints],
    }


def restored(
    state: dict[str, Any], same: dict[str, Any], space: SearchSpace, rng: random.Random
) -> tuple[int, list[Evaluated], list[Evaluated]]:
    """Generation, everything evaluated and the survivors of a state; `rng` goes on as it did.

    `same` is the `identity` of the search that resumes it.

    Raises:
        ValueError: it is the state of another search, or damaged.
    """
    if not isinstance(state, dict):
        raise ValueError("cannot resume: this is not the state of a search")
    for key, wanted in same.items():
        if state.get(key) != wanted:
            raise ValueError(
                f"cannot resume: the state is of a search with another {key} "
                f"({state.get(key)!r}, now {wanted!r})"
            )
    try:
        version, numbers, gauss = state["rng"]
        rng.setstate((version, tuple(numbers), gauss))
        evaluated = [
            Evaluated(
                space.validate(dict(zip(space.names, item["values"], strict=True))),
                tuple(math.inf if v is None else float(v) for v in item["scores"]),
                item["generation"],
            )
            for item in state["evaluated"]
        ]
        survivors = [evaluated[i] for i in state["survivors"]]
        return int(state["generation"]), evaluated, survivors
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"cannot resume: the state of the search is damaged ({reason})") from error
