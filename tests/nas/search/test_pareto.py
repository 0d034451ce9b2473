"""Pareto fronts."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_spaces import growing, rugged, small_space

from vizoo.nas.search import Constraint, each, evolve_pareto, pareto_front
from vizoo.nas.search.evolution import _crowding_distances
from vizoo.nas.space import Choice, SearchSpace

SMALL = {"population": 50, "generations": 12}
coordinates = st.integers(0, 5).map(float) | st.just(math.inf)


@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[coordinates] * n), max_size=20)))
def test_the_front_is_what_no_point_dominates(points):
    def dominated(p):
        return any(all(x <= y for x, y in zip(q, p, strict=True)) and q != p for q in points)

    assert pareto_front(points) == [i for i, p in enumerate(points) if not dominated(p)]


def test_points_that_are_not_numbers_stay_behind():
    assert pareto_front([(math.nan, 0.0), (1.0, 1.0), (0.0, math.nan)]) == [1]
    assert pareto_front([]) == []


def test_crowding():
    points = [(0.0, 4.0), (1.0, 2.0), (4.0, 0.0), (2.0, 1.0)]
    assert _crowding_distances(points) == [math.inf, 2 / 4 + 3 / 4, math.inf, 3 / 4 + 2 / 4]
    assert _crowding_distances([(1.0, 1.0)] * 3)[1] == 0
    assert _crowding_distances([]) == []


def test_the_front_of_a_small_space_is_the_exhaustive_one():
    space = small_space()
    equal = 0
    for seed in range(10):
        error, cost = rugged(space, seed, 0.3), growing(space, seed)
        result = evolve_pareto(
            space, {"error": each(error), "cost": each(cost)}, seed=seed, **SMALL
        )
        assert len(result.evaluated) < space.count() / 2
        everything = [(error(a), cost(a)) for a in space.enumerate()]
        best = sorted(everything[i] for i in pareto_front(everything))
        assert result.names == ("error", "cost")
        equal += [item.scores for item in result.front] == best
    assert equal == 10


@pytest.mark.parametrize("seed", range(4))
def test_all_of_a_small_space_within_a_limit_is_found_in_the_end(seed):
    rng = random.Random(seed)
    space = SearchSpace([Choice(name, range(4)) for name in "abc"])
    cost = {architecture: rng.random() for architecture in space.enumerate()}
    limits = [Constraint("cost", cost.__getitem__, 0.4)]
    settings = {"seed": seed, "population": 8, "generations": 20, "constraints": limits}
    result = evolve_pareto(space, {"error": each(lambda a: a["a"] - a["b"])}, **settings)
    within = {architecture for architecture, value in cost.items() if value <= 0.4}
    assert {item.architecture for item in result.evaluated} == within


def test_three_objectives_within_a_limit():
    space = small_space()
    functions = [rugged(space, 0, 0.3), growing(space, 0), growing(space, 1)]
    limit = Constraint("memory", growing(space, 2), growing(space, 2)(space.largest()) * 0.5)
    result = evolve_pareto(
        space,
        {f"f{i}": each(f) for i, f in enumerate(functions)},
        constraints=[limit],
        seed=0,
        population=60,
        generations=10,
    )
    inside = [a for a in space.enumerate() if limit.satisfied(a)]
    points = [tuple(f(a) for f in functions) for a in inside]
    best = {inside[i] for i in pareto_front(points)}
    assert {item.architecture for item in result.front} == best


def test_a_resumed_search_ends_the_same():
    space, states = small_space(), []
    objectives = {"error": each(rugged(space, 0)), "cost": each(growing(space, 0))}
    whole = evolve_pareto(
        space,
        objectives,
        seed=0,
        on_generation=lambda p: states.append(json.dumps(p.state(), allow_nan=False)),
        **SMALL,
    )
    for state in (states[0], states[5]):
        assert evolve_pareto(space, objectives, seed=0, resume=json.loads(state), **SMALL) == whole


def test_errors():
    with pytest.raises(ValueError, match="at least one objective"):
        evolve_pareto(small_space(), {}, seed=0)
    with pytest.raises(ValueError, match="finite scores"):
        evolve_pareto(small_space(), {"a": each(lambda a: math.inf)}, seed=0, **SMALL)
