"""Evolution and constraints."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
from search_spaces import easnet_space, growing, printed, rugged, small_space

from vizoo.nas.search import (
    Constraint,
    UnreachableError,
    each,
    evolve,
    evolve_pareto,
    smallest_reachable,
)
from vizoo.nas.space import Choice, SearchSpace

SMALL = {"population": 30, "generations": 8}


def flat_space(choices: int, values: int) -> SearchSpace:
    return SearchSpace([Choice(f"c{i}", range(values)) for i in range(choices)])


@pytest.mark.parametrize(
    ("space", "population", "generations"),
    [(small_space(), 30, 10), (flat_space(6, 4), 60, 15)],
    ids=["conditional", "flat"],
)
def test_finds_the_optimum_of_an_exhaustible_space(space, population, generations):
    found = 0
    for seed in range(10):
        objective = rugged(space, seed)
        result = evolve(
            space, each(objective), seed=seed, population=population, generations=generations
        )
        assert len(result.evaluated) < space.count() / 3
        assert result.score == objective(result.best)
        found += result.score == min(map(objective, space.enumerate()))
    assert found == 10


@pytest.mark.parametrize("share", [0.03, 0.3])
def test_finds_the_optimum_within_a_limit(share):
    space = small_space()
    found = 0
    for seed in range(10):
        objective, cost = rugged(space, seed), growing(space, seed)
        costs = {a: cost(a) for a in space.enumerate()}
        limit = sorted(costs.values())[int(share * len(costs))]
        result = evolve(
            space, each(objective), constraints=[Constraint("c", cost, limit)], seed=seed, **SMALL
        )
        assert all(cost(item.architecture) <= limit for item in result.evaluated)
        found += result.score == min(objective(a) for a in costs if costs[a] <= limit)
    assert found == 10


def test_each_architecture_is_evaluated_once_and_the_last_generation_too():
    space, calls = small_space(), []

    def objective(architectures):
        calls.append(architectures)
        return [rugged(space, 0)(a) for a in architectures]

    told = []
    result = evolve(space, objective, seed=0, on_generation=told.append, **SMALL)
    asked = [a for call in calls for a in call]
    assert len(asked) == len(set(asked)) and all(a in space for a in asked)
    assert [item.architecture for item in result.evaluated] == asked
    assert len(calls) == len(told) == 9 and len(calls[0]) == 30 and len(calls[-1]) == 22
    assert [p.generation for p in told] == list(range(9)) == list(range(told[0].generations + 1))
    assert result.score == min(item.scores[0] for item in result.evaluated)
    assert told[-1].survivors[0].architecture == result.best


def test_a_seed_fixes_the_search():
    space = easnet_space()
    constraints = [Constraint("cost", growing(space, 1), growing(space, 1)(space.smallest()) * 2)]

    def run(seed):
        return evolve(space, each(rugged(space, 1)), constraints=constraints, seed=seed, **SMALL)

    random.seed(0)
    first = run(3)
    random.seed(1)
    assert run(3) == first
    assert run(4).evaluated != first.evaluated


def test_a_seed_fixes_the_search_in_every_process():
    code = (
        "from search_spaces import small_space, rugged\n"
        "from vizoo.nas.search import each, evolve\n"
        "s = small_space()\n"
        "r = evolve(s, each(rugged(s, 0)), seed=0, population=10, generations=3)\n"
        "import sys\n"
        "print([e.architecture.digest for e in r.evaluated], 'torch' in sys.modules)\n"
    )
    assert printed(code).strip().endswith("False")


@pytest.mark.parametrize("stop", [0, 3, 8])
def test_a_resumed_search_ends_the_same(stop):
    space = small_space()
    cost = growing(space, 5)
    limit = Constraint("cost", cost, cost(space.largest()) * 0.8)

    def objective(architectures):
        # Some fail: not a number, which JSON has no word for.
        return [math.nan if a["depth"] == 1 else rugged(space, 5)(a) for a in architectures]

    states = []
    whole = evolve(
        space,
        objective,
        constraints=[limit],
        seed=5,
        on_generation=lambda p: states.append(json.dumps(p.state(), allow_nan=False)),
        **SMALL,
    )
    resumed = evolve(
        space, objective, constraints=[limit], seed=5, resume=json.loads(states[stop]), **SMALL
    )
    assert resumed == whole
    longer = {**SMALL, "generations": 10}
    resumed = evolve(
        space, objective, constraints=[limit], seed=5, resume=json.loads(states[stop]), **longer
    )
    assert resumed == evolve(space, objective, constraints=[limit], seed=5, **longer)


def test_what_cannot_be_resumed():
    space, states = small_space(), []
    objective = each(rugged(space, 0))
    evolve(space, objective, seed=0, on_generation=lambda p: states.append(p.state()), **SMALL)
    state = states[0]
    for other, arguments, words in (
        (space, {"seed": 1}, "another settings"),
        (space.restrict({"depth": [1, 2]}), {"seed": 0}, "another space"),
        (space, {"seed": 0, "constraints": [Constraint("c", len, 99)]}, "another constraints"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            evolve(other, objective, resume=state, **SMALL, **arguments)
        assert "\n" not in str(error.value)
    for damaged in (
        [],
        {},
        {**state, "rng": [3]},
        {**state, "survivors": [10**6]},
        {**state, "evaluated": [{"values": [1], "scores": [0], "generation": 0}]},
    ):
        with pytest.raises(ValueError, match="cannot resume"):
            evolve(space, objective, seed=0, resume=damaged, **SMALL)
    short = {key: value for key, value in state.items() if key != "survivors"}
    with pytest.raises(ValueError, match="is damaged .it lacks 'survivors'"):
        evolve(space, objective, seed=0, resume=short, **SMALL)


def test_a_small_space_is_looked_through_and_left():
    space = flat_space(2, 3)
    result = evolve(space, each(rugged(space, 0)), seed=0)
    assert len(result.evaluated) == 9
    cost = growing(space, 0)
    limit = sorted(map(cost, space.enumerate()))[2]
    few = evolve(space, each(rugged(space, 0)), constraints=[Constraint("c", cost, limit)], seed=0)
    assert len(few.evaluated) == 3
    one = SearchSpace([])
    assert evolve(one, each(lambda a: 1.0), seed=0).best == one.largest()


@pytest.mark.parametrize("space", [small_space(), easnet_space()], ids=["small", "easnet"])
def test_an_impossible_limit_names_what_can_be_reached(space):
    cost = growing(space, 2)
    least = cost(space.smallest())
    with pytest.raises(UnreachableError) as error:
        evolve(
            space,
            each(cost),
            constraints=[Constraint("latency", lambda a: 10 * cost(a), 5 * least, "ms")],
            seed=0,
        )
    assert error.value.architecture == space.smallest()
    assert error.value.smallest == pytest.approx(10 * least)
    assert re.fullmatch(
        rf"no architecture has a latency of at most {5 * least:.4g} ms: the smallest reachable is "
        rf"{10 * least:.4g} ms \(the smallest architecture\)",
        str(error.value),
    )


def test_a_large_cost_has_no_exponent():
    limit = Constraint("number of parameters", len, 2)
    told = [limit.text(value) for value in (2, 9999.6, 125073, 2e6)]
    assert told == ["2", "10,000", "125,073", "2,000,000"]


def test_limits_that_exclude_each_other():
    space = easnet_space()
    cost = growing(space, 2)
    middle = cost(space.largest()) / 2
    with pytest.raises(UnreachableError, match="at most|at once; the nearest found has") as error:
        evolve_pareto(
            space,
            {"cost": each(cost)},
            constraints=[
                Constraint("cost", cost, middle),
                Constraint("opposite", lambda a: -cost(a), -middle - 1),
            ],
            seed=0,
        )
    assert "cost ≤" in str(error.value) and "\n" not in str(error.value)
    assert error.value.smallest is None and error.value.architecture in space


def test_the_smallest_reachable_need_not_be_the_smallest():
    """Where the first values are not the cheapest, in a space too large to look through."""
    space = easnet_space()
    rng = random.Random(0)
    costs = {(c.name, v): rng.random() + 0.1 for c in space for v in c.values}
    constant = {c.name: 0.0 for c in space}

    def cost(a):
        return sum(costs[item] for item in a.items() if item[1] is not None)

    best, value = smallest_reachable(space, cost)
    assert best in space and value == cost(best) < cost(space.smallest())
    for _ in range(200):
        assert value <= cost(space.mutate(best, rng, 0.05))
    limit = Constraint("cost", cost, value)
    # Met by almost none, yet the search begins, and ends.
    result = evolve(
        space,
        each(lambda a: len(constant)),
        constraints=[limit],
        seed=0,
        population=4,
        generations=1,
    )
    assert all(limit.satisfied(item.architecture) for item in result.evaluated)


def test_a_limit_out_of_reach_takes_few_costs():
    """As many as a few dozen architectures have, of a space the size of NAS-Bench-201's."""
    space = SearchSpace([Choice(f"op{number}", tuple("abcde")) for number in range(6)])
    asked = []

    def cost(architecture):
        asked.append(architecture)
        return 1.0 + sum("abcde".index(value) for value in architecture.values())

    assert smallest_reachable(space, cost, enough=0.0) == (space.smallest(), 1.0)
    assert len(asked) == len(set(asked)) < 250


def test_the_smallest_reachable_of_many_choices_takes_few_architectures(monkeypatch):
    """As many for each choice as it has values, not as all choices have."""
    space = SearchSpace([Choice(f"op{number}", (1, 2, 3)) for number in range(60)])
    built, build = [], SearchSpace.build
    monkeypatch.setattr(SearchSpace, "build", lambda *given: built.append(1) or build(*given))
    best, value = smallest_reachable(space, lambda a: float(sum(a.values())))
    assert (best, value) == (space.smallest(), 60.0)
    assert len(built) < 60 * 3 * 10 * 4


def test_a_tight_limit_is_used_up():
    """Candidates are led to the limit, not all to the smallest architecture."""
    space = easnet_space()
    cost = growing(space, 3)
    limit = cost(space.smallest()) * 1.5
    costs = []
    evolve(
        space,
        each(lambda a: costs.append(cost(a)) or -cost(a)),
        constraints=[Constraint("cost", cost, limit)],
        seed=0,
        population=40,
        generations=10,
    )
    assert limit * 0.99 < max(costs) <= limit
    assert sum(costs[:40]) / 40 > limit * 0.8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"population": 1}, "population"),
        ({"generations": -1}, "generations"),
        ({"parents": 1.0}, "parents"),
        ({"mutation": 2}, "mutation"),
    ],
)
def test_wrong_settings(arguments, words):
    with pytest.raises(ValueError, match=words):
        evolve(small_space(), each(len), seed=0, **arguments)


def test_wrong_objectives_and_costs():
    space = small_space()
    with pytest.raises(ValueError, match="gave 1 results for 30"):
        evolve(space, lambda architectures: [1.0], seed=0, **SMALL)
    with pytest.raises(ValueError, match="finite score"):
        evolve(space, each(lambda a: math.nan), seed=0, **SMALL)
    with pytest.raises(ValueError, match="latency of an architecture is NaN"):
        limit = Constraint("latency", lambda a: math.nan, 1.0)
        evolve(space, each(len), constraints=[limit], seed=0, **SMALL)
    with pytest.raises(ValueError, match="limit on latency"):
        Constraint("latency", len, math.inf)


def test_parents_age():
    space = flat_space(6, 4)
    ages = {2: [], None: []}
    for lifetime, seen in ages.items():
        evolve(
            space,
            each(rugged(space, 0)),
            seed=0,
            population=20,
            generations=12,
            lifetime=lifetime,
            on_generation=lambda p, seen=seen: seen.extend(
                p.generation - item.generation for item in p.survivors
            ),
        )
    assert max(ages[2]) == 1 and max(ages[None]) > 2
