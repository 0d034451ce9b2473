"""Simulated steps: by hand where that is easy, and in the order in which links favour them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vizoo.nas.distributed.compression.lowrank import ACPSGD
from vizoo.nas.distributed.schedule.link import LINKS, Link
from vizoo.nas.distributed.schedule.simulator import WAYS, Step, simulate
from vizoo.nas.distributed.schedule.timing import alone, measure_hook, measure_step
from vizoo.nas.distributed.schedule.ways import compare_ways

STEP = Step(0.1, 0.2, [0.01 * i for i in range(1, 21)], [(256, 256, 3, 3)] * 20)


def test_a_step_by_hand():
    # 2.4 MB fill the first bucket, twelve of them the second; the rest is the last.
    size, counts, link = 4 * 256 * 256 * 9, (1, 12, 7), Link(8, 1e-3, 1e-7)
    found = simulate(STEP, link)
    plain = [1e-3 + 1e-7 * size * count for count in counts]
    assert found["plain"] == pytest.approx(0.1 + 0.01 + sum(plain))
    assert found["single"] == pytest.approx(0.1 + 0.2 + 1e-3 + 1e-7 * 20 * size)
    # In half precision the first message has gone when the second's gradients are ready.
    assert found["fp16"] == pytest.approx(0.1 + 0.13 + (2e-3 + 1e-7 * 19 * size / 2))
    # A thousandth is gone before the last gradients are ready.
    kept = 8 * -(-7 * size // 4000)
    assert found["topk"] == pytest.approx(0.1 + 0.2 + 5e-4 + 7 * link.byte * kept)
    assert found["gtopk"] == pytest.approx(0.1 + 0.2 + 3 * (link.hop + link.byte * kept))
    # Of 256 x 2304 one factor in turns, of four columns.
    factors = [1e-3 + 1e-7 * count * 4 * 4 * (256 + 2304) / 2 for count in counts]
    assert found["acpsgd"] == pytest.approx(0.1 + 0.2 + factors[-1])


def test_compression_pays_on_slow_links_only():
    slow = simulate(STEP, Link(8, 1e-3, 1e-7))
    assert slow["acpsgd"] < slow["plain"] / 5 and slow["gtopk"] < slow["topk"] < slow["fp16"]
    assert slow["fp16"] < slow["merged"] <= min(slow["plain"], slow["tensors"], slow["single"])
    fast = simulate(STEP, Link(8, 1e-6, 1e-12))
    assert fast["merged"] == pytest.approx(fast["acpsgd"], rel=0.01)
    # What compressing computes counts.
    computed = simulate(STEP, Link(8, 1e-6, 1e-12), computing={"acpsgd": 0.5})
    assert computed["acpsgd"] > fast["acpsgd"] + 0.3 and computed["plain"] == fast["plain"]


@pytest.mark.parametrize("processes", [2, 3, 64, 1024])
def test_any_number_of_processes(processes):
    found = simulate(STEP, LINKS["10gbe-8"].at(processes))
    assert found.keys() == WAYS.keys() - {"subnet"}
    assert all(seconds >= STEP.around + STEP.backward for seconds in found.values())


def test_more_processes_take_longer():
    steps = [simulate(STEP, LINKS["10gbe-8"].at(2**power)) for power in range(1, 11)]
    for way in ("plain", "merged", "topk", "gtopk"):
        times = [step[way] for step in steps]
        assert times == sorted(times), way


def test_supernets_send_what_subnets_use():
    active = [0] * 10 + [256 * 9] * 10
    step = Step(0.1, 0.2, [0.0] * 10 + [0.02 * i for i in range(1, 11)], STEP.shapes, active)
    found = simulate(step, Link(8, 0.0, 1e-7))
    assert found["subnet"] == pytest.approx(0.3 + 1e-7 * 4 * 256 * 9, rel=0.02)
    assert found["subnet"] < found["plain"] / 5 and "powersgd" not in found


def test_of_a_supernet_compressors_send_what_subnets_use():
    active, link = [0] * 13 + [256 * 9] * 7, Link(8, 0.0, 1e-7)
    found = simulate(Step(0.1, 0.2, [0.0] * 13 + [0.2] * 7, STEP.shapes, active), link)
    kept = 8 * -(-7 * 256 * 9 // 1000)
    assert found["topk"] == pytest.approx(0.1 + 0.2 + 7 * link.byte * kept, rel=1e-9)
    assert found["gtopk"] == pytest.approx(0.1 + 0.2 + 3 * link.byte * kept, rel=1e-9)
    # Of matrices factors of all rows and columns; nothing of those that are not used.
    factors = 7 * 4 * 4 * (256 + 2304) / 2
    assert found["acpsgd"] == pytest.approx(0.1 + 0.2 + 1e-7 * factors, rel=1e-9)


def test_a_network_whose_ways_are_compared_stays_as_it_is():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    ways = compare_ways(net, (torch.randn(2, 3, 8, 8),), LINKS["10gbe-8"], steps=2)
    assert ways.best in WAYS and not net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_a_step_and_its_hooks_are_measured():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.Linear(8, 8))
    used = net[:3]
    x = torch.randn(16, 64)

    step = measure_step(net, lambda: used(x).square().mean(), steps=3, warmup=1)
    assert [tuple(shape) for shape in step.shapes[:2]] == [(8, 8), (8,)]  # not used
    assert sorted(step.shapes[2:4]) == [(32,), (32, 64)]  # the last layer is ready first
    assert step.ready[:2] == [0.0, 0.0] and list(step.ready) == sorted(step.ready)
    assert 0 < step.ready[2] < step.ready[-1] < step.backward and step.around > 0
    assert not any(parameter._post_accumulate_grad_hooks for parameter in net.parameters())
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with alone():
        seconds = measure_hook(
            ACPSGD(4, start_step=0), used, lambda model: model(x).square().mean(), steps=2
        )
    assert seconds > 0 and all(map(torch.equal, before, net.parameters()))
