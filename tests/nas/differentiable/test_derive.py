"""Costs of candidates, and architectures derived from probabilities."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from torch import nn
from toy_mixture import Chain

from vizoo.common.counts import Counts, count
from vizoo.common.timing import Timing
from vizoo.nas import Choice, SearchSpace, extract, search_space
from vizoo.nas.differentiable import (
    Cost,
    GumbelSoftmax,
    Logits,
    Softmax,
    derive,
    draw_architectures,
    most_likely,
)
from vizoo.nas.differentiable.logits import drop_free, free_values, share_of_free
from vizoo.nas.efficiency.candidates import CostTable
from vizoo.nas.efficiency.provenance import Conditions
from vizoo.nas.efficiency.table import LatencyTable, Sample
from vizoo.nas.elastic import Operation
from vizoo.nas.search import Constraint, UnreachableError

X = torch.zeros(2, 4, 8, 8)


@pytest.fixture
def net():
    return Chain(2).eval()


@pytest.mark.parametrize("quantity", ["parameters", "macs"])
def test_counted_tables_are_exact(net, quantity):
    table = CostTable.counted(net, (X,), quantity)
    for architecture in search_space(net).enumerate():
        wanted = getattr(count(extract(net, architecture), X), quantity)
        assert table(architecture) == wanted
    assert table.lookup("blocks.0.kind", "noise") == 0
    assert net.blocks[0].active == "large"  # as it was


def test_a_shared_choice_costs_what_all_its_uses_cost():
    kind = Choice("kind", ("a", "b"))
    cells = [Operation({"a": nn.Identity(), "b": nn.Conv2d(4, 4, 3)}, kind) for _ in range(2)]
    net = nn.Sequential(cells[0], cells[1], cells[0])
    for quantity in ("parameters", "macs"):
        table = CostTable.counted(net, (X,), quantity)
        large = extract(net, {"kind": "b"})
        if quantity == "parameters":  # one of the cells stands there twice
            assert table({"kind": "b"}) == sum(p.numel() for p in large.parameters())
        else:
            assert table({"kind": "b"}) == pytest.approx(count(large, X).macs, rel=1e-6)


def test_measured_tables_time_equal_candidates_once(net, monkeypatch):
    calls = []

    def measure(call, device, **settings):
        calls.append(call())
        return Timing(float(len(calls)), 0, 0, 1)

    monkeypatch.setattr("vizoo.nas.efficiency.candidates.measure", measure)
    table = CostTable.measured(net, (X,), conditions={"device": "cpu"})
    assert len(calls) == 4  # three candidates and the whole
    assert table.costs["blocks.0.kind"] == table.costs["blocks.1.kind"] == (1, 2, 3)
    assert table(search_space(net).largest()) == 4 and table.conditions == {"device": "cpu"}
    assert CostTable.measured(net, (X,)).quantity == "latency"


def test_the_expected_cost_is_the_mean_over_draws(net):
    table, logits = CostTable.counted(net, (X,), "macs"), Logits(search_space(net), scale=1.0)
    found = table.expected(logits.probabilities())
    shares = logits.probabilities()
    mean = 0.0
    for architecture in logits.space.enumerate():
        likely = 1.0
        for name, value in architecture.items():
            likely *= shares[name][logits.space.choices[name].find(value)]
        mean += likely * table(architecture)
    torch.testing.assert_close(found, mean)
    found.backward()
    assert all(vector.grad.abs().min() > 0 for vector in logits.vectors.values())


def _latency_table(space, cost):
    conditions = Conditions("cpu", "test", "float32", 1, 8, 8)
    samples = []
    for architecture in space.enumerate():
        value = cost(architecture)
        timing = Timing(value, value, value, 1)
        samples.append(Sample(architecture, timing, value, 1.0, Counts(1, 1, 1), 1.0))
    return LatencyTable({"name": "x"}, space, conditions, {}, samples)


def test_fitted_tables_know_choices_that_do_not_always_matter():
    conditions = {"kernel": [{"depth": (2,)}]}
    space = SearchSpace([Choice("depth", (1, 2)), Choice("kernel", (3, 5))], conditions)
    costs = {(1, None): 2.0, (2, 3): 3.0, (2, 5): 7.0}
    table = CostTable.fitted(_latency_table(space, lambda a: costs[a["depth"], a["kernel"]]))
    for architecture in space.enumerate():
        wanted = costs[architecture["depth"], architecture["kernel"]]
        assert table(architecture) == pytest.approx(wanted, rel=1e-3)
    shares = {"depth": torch.tensor([0.25, 0.75]), "kernel": torch.tensor([0.5, 0.5])}
    wanted = 0.25 * 2 + 0.75 * (0.5 * 3 + 0.5 * 7)
    assert table.expected(shares).item() == pytest.approx(wanted, rel=1e-3)


def test_tables_round_trip_and_fit_their_space(net, tmp_path):
    table = CostTable.counted(net, (X,), "macs")
    table.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == table
    part = search_space(net).restrict({"blocks.0.kind": ["large"]})
    within = table.within(part)
    assert within(part.largest()) == table(search_space(net).largest())
    content = table.to_json()
    for damage in ({**content, "version": 9}, {**content, "costs": {}}, []):
        (tmp_path / "bad.json").write_text(json.dumps(damage))
        with pytest.raises(ValueError, match="bad.json: ") as error:
            CostTable.load(tmp_path / "bad.json")
        assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError):
        CostTable.load(tmp_path / "none.json")


def test_what_has_no_candidates_is_not_counted():
    with pytest.raises(ValueError, match="choice 'width' is a number.*CostTable.fitted"):
        CostTable.counted(Chain(1, Choice("width", (2, 6))), (X,), "macs")
    inner = Operation({"a": nn.Identity(), "b": nn.Identity()}, Choice("in", ("a", "b")))
    net = Operation({"skip": nn.Identity(), "deep": inner}, Choice("out", ("skip", "deep")))
    with pytest.raises(ValueError, match="choice 'out' stands within|choice 'in'"):
        CostTable.counted(net, (X,), "macs")


def test_costs_that_do_not_add_up_are_refused():
    kinds = {"skip": nn.Identity(), "conv": nn.Conv2d(4, 4, 3, padding=1)}
    shared = nn.Sequential(*(Operation(kinds, Choice(name, ("skip", "conv"))) for name in "ab"))
    with pytest.raises(ValueError, match="parameters of candidates do not add up.*-148 instead of"):
        CostTable.counted(shared, (X,), "parameters")
    assert CostTable.counted(shared, (X,), "macs").fixed == 0
    sizes = Operation(
        {"skip": nn.Identity(), "pool": nn.MaxPool2d(2)}, Choice("a", ("skip", "pool"))
    )
    with pytest.raises(ValueError, match="change the size of what follows"):
        CostTable.counted(nn.Sequential(sizes, nn.Conv2d(4, 4, 3)), (X,), "macs")


def test_forms_of_cost_aware_losses(net):
    loss = torch.tensor(2.0)
    low, high = torch.tensor(50.0), torch.tensor(200.0)
    assert Cost(100)(loss, low) == 2 and Cost(100, weight=3)(loss, high) == 5
    assert Cost(100, form="linear")(loss, low) == 2.5
    assert Cost(100, form="power", weight=2)(loss, high) == 8
    wanted = 2 * 0.2 * math.log(200) ** 0.6
    assert Cost(100, form="log", weight=0.2)(loss, high).item() == pytest.approx(wanted)
    for arguments in ({"target": 0}, {"target": 1, "weight": -1}, {"target": 1, "form": "hing"}):
        with pytest.raises(ValueError):
            Cost(**arguments)
    with pytest.raises(ValueError, match="latency needs a table"):
        Cost(3.0, "latency")


def test_a_logarithmic_cost_refuses_costs_that_are_not_above_one(net, tmp_path):
    space = search_space(net)
    macs = CostTable.counted(net, (X,), "macs")
    assert macs.floor == macs(space.smallest())
    for factor, fits in ((1.01, True), (0.99, False)):
        scale = factor / macs.floor
        costs = {name: tuple(scale * x for x in row) for name, row in macs.costs.items()}
        table = CostTable(space, "latency", scale * macs.fixed, costs)
        table.save(tmp_path / "ms.json")
        cost = Cost(1.5, "latency", str(tmp_path / "ms.json"), form="log")
        if fits:
            cost.prepare(net, (), space)
            assert cost(torch.tensor(1.0), cost.expected({})).isfinite()
            continue
        with pytest.raises(ValueError, match="as low as 0.99: take the form hinge"):
            cost.prepare(net, (), space)


def test_a_latency_table_is_a_cost(net, tmp_path):
    space = search_space(net)
    costs = CostTable.counted(net, (X,), "macs")
    table = _latency_table(space, costs)
    table.save(tmp_path / "table.json")
    with pytest.raises(ValueError, match="table.json: .*unfinished latency table: 9 of 0"):
        CostTable.load(tmp_path / "table.json")
    table.planned = len(table.samples)
    table.save(tmp_path / "table.json")
    cost = Cost(1e4, "latency", str(tmp_path / "table.json"))
    cost.prepare(net, (), space)
    for architecture in space.enumerate():
        assert cost.table(architecture) == pytest.approx(costs(architecture), rel=1e-3)


def test_dropout_spares_candidates_with_parameters(net):
    logits, generator = Logits(search_space(net)), torch.Generator().manual_seed(0)
    draw = logits.draw(Softmax(), generator)
    free, values = free_values(net), []
    for _ in range(200):
        dropped = drop_free(draw, free, 0.25, generator)
        for name, weights in dropped.weights.items():
            whole = draw.weights[name].values
            assert torch.equal(weights.values[1:], whole[1:])
            values.append((weights.values[0] / whole[0]).item())
    assert {round(value, 4) for value in values} == {0.0, round(1 / 0.75, 4)}
    assert sum(values) / len(values) == pytest.approx(1, abs=0.1)
    assert all(
        torch.equal(v.values, draw.weights[n].values)
        for n, v in drop_free(draw, {}, 0.25, generator).weights.items()
    )


def test_a_cost_reads_its_table(net, tmp_path):
    space = search_space(net)
    CostTable.counted(net, (X,), "macs").save(tmp_path / "macs.json")
    cost = Cost(1e4, "macs", str(tmp_path / "macs.json"))
    with pytest.raises(ValueError, match="call prepare first"):
        cost.constraint.satisfied(space.largest())
    cost.prepare(net, (), space)
    assert not cost.constraint.satisfied(space.largest())
    with pytest.raises(ValueError, match="no inputs on which macs could be counted: give the task"):
        Cost(1e4, "macs").prepare(net, (), space)
    other = Cost(1e4, "parameters", str(tmp_path / "macs.json"))
    with pytest.raises(ValueError, match="macs.json: a table of macs, and .* cost is parameters"):
        other.prepare(net, (), space)
    CostTable(SPACE, "macs", 0.0, {c.name: (1.0, 2.0, 3.0) for c in SPACE}).save(
        tmp_path / "macs.json"
    )
    with pytest.raises(ValueError, match="macs.json: a table for another search space"):
        Cost(1e4, "macs", str(tmp_path / "macs.json")).prepare(net, (), space)
    below = CostTable(space, "macs", -9.0, CostTable.counted(net, (X,), "macs").costs)
    below.save(tmp_path / "macs.json")
    with pytest.raises(ValueError, match="form power takes costs above 0"):
        Cost(1e4, "macs", str(tmp_path / "macs.json"), form="power").prepare(net, (), space)


PROBABILITIES = {"a": [0.1, 0.2, 0.7], "b": [0.25, 0.35, 0.4], "c": [0.05, 0.9, 0.05]}
SPACE = SearchSpace([Choice(name, (0, 1, 2)) for name in "abc"])
LIMIT = Constraint("size", lambda a: sum(a.values()), 4)


def test_most_likely_within_a_limit():
    assert dict(most_likely(SPACE, PROBABILITIES)) == {"a": 2, "b": 2, "c": 1}
    assert dict(most_likely(SPACE, PROBABILITIES, [LIMIT])) == {"a": 2, "b": 1, "c": 1}
    never = Constraint("size", lambda a: 1, 0)
    with pytest.raises(UnreachableError):
        most_likely(SPACE, PROBABILITIES, [never])
    with pytest.raises(ValueError, match="choice 'a' has 3 values, but 2 probabilities"):
        most_likely(SPACE, {"a": [0.5, 0.5]})
    with pytest.raises(ValueError, match="choice 'a' has .* not finite; if a search"):
        most_likely(SPACE, {"a": [math.nan] * 3})


def test_drawn_architectures_follow_the_probabilities():
    rng = random.Random(0)
    drawn = draw_architectures(SPACE, PROBABILITIES, 12, rng, [LIMIT])
    assert len(set(drawn)) == len(drawn) == 12 and all(map(LIMIT.satisfied, drawn))
    assert drawn[0] == most_likely(SPACE, PROBABILITIES, [LIMIT])
    sure = {"a": [0, 0, 1], "b": [0, 0, 1], "c": [0, 1, 0]}
    assert len(draw_architectures(SPACE, sure, 5, rng)) == 1
    counts = [
        draw_architectures(SPACE, PROBABILITIES, 2, random.Random(s))[1]["c"] for s in range(99)
    ]
    assert counts.count(1) > 60


def test_derived_architectures_are_ranked():
    objective = lambda found: [abs(sum(a.values()) - 3) for a in found]  # noqa: E731
    ranked = derive(SPACE, PROBABILITIES, objective, samples=8, constraints=[LIMIT])
    scores = [item.scores[0] for item in ranked]
    assert scores == sorted(scores) and scores[0] == 0 and len(ranked) == 8
    with pytest.raises(ValueError, match="at least one sample, not 0"):
        derive(SPACE, PROBABILITIES, objective, samples=0)


def test_what_holds_no_parameters(net):
    free = free_values(net)
    assert free == {"blocks.0.kind": {"noise"}, "blocks.1.kind": {"noise"}}
    space = search_space(net)
    assert share_of_free(space.smallest(), free) == 1 and share_of_free(space.largest(), free) == 0
    half = space.largest().replace({"blocks.1.kind": "noise"})
    assert share_of_free(half, free) == 0.5


def test_hard_draws_and_costs_meet_in_one_loss(net):
    logits = Logits(search_space(net))
    draw = logits.draw(GumbelSoftmax(), torch.Generator())
    cost = Cost(10.0)
    cost.prepare(net, (X,), logits.space)
    values = sum(weights.values.max() for weights in draw.weights.values())
    cost(values, cost.expected(logits.probabilities())).backward()
    assert all(vector.grad is not None for vector in logits.vectors.values())
