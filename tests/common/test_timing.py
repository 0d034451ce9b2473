"""Timing, provenance and counts of plain networks."""

import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vizoo.common.counts import count, follow, on_meta
from vizoo.common.timing import Timing, measure, measure_against, measure_in_turns
from vizoo.nas.efficiency.operators import add_operators, line, operators_of
from vizoo.nas.efficiency.provenance import Conditions, device_name, software
from vizoo.nas.efficiency.regressor import CostRegressor
from vizoo.nas.search import agreement
from vizoo.nas.space import Choice, SearchSpace


class Clock:
    """A clock that calls move, so that timing is exact."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def call(self, *seconds):
        """A call that takes so long, one after the other, then from the start again."""
        state = {"at": 0}

        def call():
            self.now += seconds[state["at"] % len(seconds)]
            state["at"] += 1

        return call


def test_summary():
    timing = Timing.of([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (timing.median, timing.repetitions) == (3.0, 5)
    assert timing.p10 == pytest.approx(1.4) and timing.p90 == pytest.approx(4.6)
    assert Timing.of([7.0]) == Timing(7.0, 7.0, 7.0, 1)
    with pytest.raises(ValueError, match="no repetitions"):
        Timing.of([])


def test_measure_counts_after_the_warm_up(monkeypatch):
    clock = Clock(monkeypatch)
    timing = measure(clock.call(9.0, 9.0, *[0.01] * 50), warmup=2, repetitions=5)
    assert timing.median == pytest.approx(10.0) and timing.p90 == pytest.approx(10.0)
    assert timing.repetitions == 5
    assert measure(clock.call(0.01), repetitions=2, seconds=0.995).repetitions == 100
    with pytest.raises(ValueError, match="repetitions 0"):
        measure(clock.call(0.01), repetitions=0)


def test_the_ratio_forgets_drift(monkeypatch):
    clock = Clock(monkeypatch)
    slowdown = [1 + step / 10 for step in range(12)]
    mine = clock.call(*(0.03 * factor for factor in slowdown))
    reference = clock.call(*(0.01 * factor for factor in slowdown))
    timing, beside, ratio = measure_against(mine, reference, warmup=2, repetitions=10)
    assert ratio == pytest.approx(3.0)
    assert timing.p90 > 1.4 * timing.p10 and beside.median == pytest.approx(timing.median / 3)
    both = measure_in_turns([clock.call(0.02), clock.call(0.04)], repetitions=3)
    assert [timing.median for timing in both] == pytest.approx([20.0, 40.0])


def test_calls_run_without_gradients():
    seen = []
    measure(lambda: seen.append(torch.is_inference_mode_enabled()), repetitions=1, warmup=0)
    assert seen == [True]


def test_conditions():
    here = Conditions.here("cpu", torch.bfloat16, 32, 64)
    assert here.device_name == device_name("cpu") != ""
    assert Conditions.from_json(here.to_json()) == here and here.difference(here) == ""
    assert "cpu (" in str(here) and "bfloat16" in str(here) and "32x64" in str(here)
    other = Conditions("cpu", here.device_name, "float32", here.threads + 1, 32, 128)
    assert here.difference(other) == (
        "dtype bfloat16 instead of float32, input 32x64 instead of 32x128, "
        f"threads {here.threads} instead of {here.threads + 1}"
    )
    gpus = [Conditions("cuda", "H200", "float32", threads, 32, 64) for threads in (1, 2)]
    assert gpus[0].difference(gpus[1]) == ""
    assert gpus[0].difference(here).startswith("device cuda (H200) instead of cpu (")
    with pytest.raises(ValueError, match="conditions of a measurement"):
        Conditions.from_json({"device": "cpu"})
    assert {"date", "torch", "python"} <= software().keys()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 4, 4, 2, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.up(F.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


def test_counts():
    net, x = Net(), torch.rand(1, 3, 8, 16)
    counts = count(net, x)
    assert counts.parameters == sum(p.numel() for p in net.parameters())
    assert counts.macs == 8 * 16 * (3 * 8 * 9 + 8 * 4 * 16) + 8
    # At the worst the output of `up` stands beside its input, the image having never gone.
    assert counts.memory == 4 * 8 * 16 * (3 + 8 + 4 * 4)
    assert net.training and net.conv.weight.device.type == "cpu"


class Awkward(nn.Module):
    """Calls alike but for a number's type or a stride, and some that change or make something."""

    def forward(self, x):
        x = (
            torch.cat([x, x.transpose(2, 3).transpose(2, 3).contiguous() * True], 1) * 1
            + x.sum() * 1.0
        )
        parts = [part.mul_(2).add(1) for part in x.split(2, 1)]
        values, places = torch.cat(parts, 1).max(1)
        steps = torch.arange(4, device=x.device)
        known = torch.arange(3)  # on the CPU, with its values
        return values[..., : int(known[-1])], places.float() + steps[0], (x > 0).half()


def test_counts_are_those_without_what_is_remembered(monkeypatch):
    wide = torch.rand(1, 2, 8, 16).contiguous(memory_format=torch.channels_last)
    cases = [
        (Awkward(), torch.rand(1, 2, 8, 8)),
        (Awkward(), wide),
        (Net(), torch.rand(1, 3, 8, 16)),
    ]
    first, again = ([(count(*case), keys(*case)) for case in cases] for _ in range(2))
    monkeypatch.setattr("vizoo.common.counts._is_functional", lambda function: False)
    assert first == again == [(count(*case), keys(*case)) for case in cases]


def keys(net, x):
    return [operator.key for operator in follow(on_meta(net), x.to("meta"))[0]]


def test_what_is_remembered_is_of_one_default_type():
    class Line(nn.Module):
        def forward(self, x):
            return torch.arange(0.0, 64.0, device=x.device)

    x = torch.rand(1)
    single = count(Line(), x).memory
    torch.set_default_dtype(torch.float64)
    try:
        assert count(Line(), x).memory == single + 64 * 4
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_remembered_has_an_end(monkeypatch):
    known = {}
    monkeypatch.setattr("vizoo.common.counts._known", known)
    monkeypatch.setattr("vizoo.common.counts._MOST", 3)
    sizes = [len(known) for side in range(4, 12) if count(Net(), torch.rand(1, 3, side, side))]
    assert 0 < max(sizes) <= 3


def test_operators():
    net = on_meta(Net())
    x = torch.rand(1, 3, 8, 16, device="meta")
    names = [operator.key.split()[0] for operator in follow(net, x)[0]]
    assert names[:3] == ["aten.convolution", "aten.native_batch_norm", "aten.relu"]
    assert not any(name in names for name in ("aten.t", "aten.view"))
    operators, _ = operators_of(net, [x])
    assert operators[0].key == (
        "aten.convolution 1x3x8x16 8x3x3x3 None [1, 1] [1, 1] [1, 1] False [0, 0] 1"
    )
    assert not any("batch_norm" in operator.key for operator in operators)
    assert operators[0].args[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_are_measured_once(dtype):
    operators, _ = operators_of(Net(), [torch.rand(1, 3, 8, 16)])
    entries = {}
    add_operators(entries, operators, "cpu", dtype)
    measured = dict(entries)
    add_operators(entries, operators, "cpu", dtype)
    assert entries == measured
    assert all(value > 0 for value in entries.values())


def test_line():
    assert line([1.0, 2.0, 4.0], [5.0, 7.0, 11.0])(10) == pytest.approx(23)
    assert line([2.0], [3.0])(4.0) == pytest.approx(6.0)
    assert line([1.0, 2.0], [1.0, 3.0])(0.0) == 0


@pytest.fixture(scope="module")
def made_up():
    """A space whose cost has products of choices, and a cost."""
    kernels = [Choice(f"kernel{i}", (3, 5, 7)) for i in range(8)]
    widths = [Choice(f"width{i}", (8, 16, 32)) for i in range(8)]
    depth, repeats = Choice("depth", (2, 5, 8)), Choice("repeats", (1, 2, 3, 4))
    late = {
        f"{name}{i}": [{"depth": (8,) if i > 4 else (5, 8)}]
        for name in ("kernel", "width")
        for i in range(2, 8)
    }

    def cost(a):
        layers = sum(a[f"width{i}"] * (1 + a[f"kernel{i}"] ** 2 / 20) for i in range(a["depth"]))
        return 20 + layers + 30 * a["repeats"] * a["depth"] ** 0.5

    return SearchSpace([depth, repeats, *kernels, *widths], late), cost


def test_regressor(made_up):
    space, cost = made_up
    rng = random.Random(0)
    drawn = [space.sample(rng) for _ in range(160)]
    costs = [cost(architecture) * (1 + rng.gauss(0, 0.02)) for architecture in drawn]
    fitted = CostRegressor.fit(space, drawn[:120], costs[:120])
    found = agreement(fitted.predict(drawn[120:]).tolist(), costs[120:])
    assert found.spearman > 0.95 and found.median_relative_error < 0.06
    assert fitted(drawn[0]) == pytest.approx(costs[0], rel=0.1)
    again = CostRegressor.fit(space, drawn[:120], costs[:120])
    assert np.array_equal(again.predict(drawn), fitted.predict(drawn))


def test_regressor_refuses(made_up):
    space, cost = made_up
    few = [space.smallest(), space.largest()]
    with pytest.raises(ValueError, match="at least three"):
        CostRegressor.fit(space, few, [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        CostRegressor.fit(space, [*few, few[0]], [1.0, 2.0, float("nan")])


def test_regressor_of_a_constant(made_up):
    space, _ = made_up
    rng = random.Random(0)
    drawn = [space.sample(rng) for _ in range(10)]
    fitted = CostRegressor.fit(space, drawn, [5.0] * 10)
    assert fitted.predict(drawn) == pytest.approx([5.0] * 10, rel=0.01)
