"""Compressed gradients: nothing is lost, replicas stay equal, bytes are what formulas say."""

from __future__ import annotations

import math
from pathlib import Path

import distributed_gradients as remote
import distributed_training as training
import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import Strategy
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from toy_mixture import Fit

from vizoo.common.timing import now
from vizoo.nas.differentiable import DifferentiableSearch
from vizoo.nas.distributed import HookDDPStrategy
from vizoo.nas.distributed.compression.lowrank import ACPSGD, PowerSGD
from vizoo.nas.distributed.compression.signs import _pack_signs, _unpack_signs
from vizoo.nas.distributed.compression.sparse import (
    GTopK,
    TopK,
    _gaussian,
    _largest,
    _merged,
    _pack,
    _unpack,
    lags_densities,
)
from vizoo.nas.distributed.gradients.strategy import HOOKS, _run
from vizoo.nas.distributed.schedule import timing
from vizoo.nas.distributed.schedule.timing import ReadyTimes, alone

CONFIGS = Path(__file__).resolve().parents[4] / "configs" / "distributed"
SIZES = {"0.weight": 1280, "0.bias": 64, "2.weight": 4096, "2.bias": 64, "4.weight": 320}
SIZES["4.bias"] = 5


def _slow(processes):
    return pytest.param(processes, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "processes",
    [2, 3, _slow(4), pytest.param(8, marks=pytest.mark.slow)],
)
def test_nothing_is_lost_and_all_processes_have_the_same(processes):
    names = [*remote.HOOKS, 1]  # the last is the paper's rule of gTop-k
    found = run_ranks(processes, remote.conservation, names)
    for name in remote.HOOKS:
        for missing, same, _ in (values[name] for values in found):
            assert missing <= 1e-6 and same, name
    lost = found[0]["1"][0]
    assert lost < 1e-6 if processes == 2 else lost > 1e-3
    share = (processes - 1) / processes
    total = sum(SIZES.values())
    # After the first step buckets are smaller: each rounds the number of its entries up.
    entries = found[0]["topk"][2][0] / 8 / (processes - 1)
    assert entries == math.ceil(0.05 * total)
    assert found[0]["gaussian"][2][0] == 8 * math.ceil(4 * entries / 3) * (processes - 1)
    layers = [math.ceil((0.01 if n == "2.weight" else 0.05) * size) for n, size in SIZES.items()]
    layers[-1] = 5
    whole = 2 * 4 * layers.pop() * (processes - 1) // processes  # by an all-reduce
    assert set(found[0]["lags"][2]) == {8 * sum(layers) * (processes - 1) + whole}
    if processes in (2, 4, 8):
        assert found[0]["gtopk"][2][0] == 8 * entries * math.log2(processes)
    factors = [[4 * 64, 4 * 20], [4 * 64, 4 * 64]]  # of the layers that shrink
    whole = total - SIZES["0.weight"] - SIZES["2.weight"]
    for turn, numbers in enumerate(zip(*factors, strict=True)):
        sizes = found[0]["acpsgd"][2][turn]
        assert sizes == pytest.approx(2 * 4 * (sum(numbers) + whole) * share, abs=8)
    assert found[0]["efsign"][2][0] == (math.ceil(total / 8) + 4 * 6) * (processes - 1)


def test_what_subnets_do_not_use_keeps_what_was_left_out():
    told, untold = run_ranks(2, remote.subnets_conservation)[0]
    for name, (missing, unused, sent, outside, own) in told.items():
        assert missing <= 1e-6 and unused > 8 and outside == 0 and own, name
        assert sent < untold[name][2] and untold[name][0] <= 1e-6, name
    assert max(outside for _, _, _, outside, _ in untold.values()) > 0


@pytest.mark.parametrize("name", sorted(remote.HOOKS))
def test_what_was_left_out_long_ago_is_forgotten(name):
    for others, forget_after, kept in ((2, 3, True), (3, 3, False), (9, 0, True)):
        with alone():
            before, gradient, mean, after = remote.returned(name, others, forget_after)
        assert before.abs().max() > 1e-3
        expected = gradient + before if kept else gradient
        torch.testing.assert_close(mean + after, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("processes", [2, _slow(4)])
def test_everything_sent_is_dense_training(processes):
    steps = 150 if processes == 4 else 10
    for found, same in run_ranks(processes, remote.whole_density, steps):
        assert max(found.values()) <= 1e-5
        assert same or processes > 2  # a sum of two is one, in any order


@pytest.mark.parametrize("processes", [2, 3, _slow(5)])
def test_gtopk_is_the_merge_of_one_process(processes):
    for same, entries in run_ranks(processes, remote.merges):
        assert same and entries == math.ceil(0.02 * sum(SIZES.values()))


def test_full_rank_is_exact_where_it_can_be():
    square, tall, wide = run_ranks(2, remote.full_rank)[0]
    assert max(square) < 1e-6
    assert tall[0] < 1e-6 and wide[1] < 1e-6  # one factor spans the whole space
    assert wide[0] > 1e-2


def test_steps_that_are_not_finite_change_nothing_kept():
    for found in run_ranks(2, remote.not_finite):
        for name, (same, finite, kept) in found.items():
            assert same and not finite and kept, name


@pytest.mark.parametrize("processes", [2, 3])
def test_half_precision_holds_what_is_finite(processes):
    for found in run_ranks(processes, remote.half):
        assert found["1000000000.0", 1.0] == pytest.approx(60_000 / processes, rel=0.01)
        for factor, scale in (("inf", 1.0), ("nan", 1.0), ("1000000000.0", 2.0)):
            assert not math.isfinite(found[factor, scale])


def test_scaled_losses_and_kept_states():
    for scaled, resumed in run_ranks(2, remote.scaled_and_resumed):
        assert max(scaled.values()) < 1e-6, scaled
        assert all(resumed.values()), resumed


def test_many_buckets_do_not_hang():
    for found in run_ranks(3, remote.many_buckets):
        assert len(found) == 4 + len(remote.HOOKS)
        assert all(indices == [*range(20)] for indices in found.values()), found


@pytest.mark.slow
def test_training_gets_near_dense():
    for found in run_ranks(2, remote.losses, 150):
        dense, _, whole, share = found["dense"]
        assert all(same for _, same, _, _ in found.values()), found
        for name, (loss, _, sent, right) in found.items():
            bound = {"dense": 1, "fp16": 1.01, "bf16": 1.02, "acpsgd": 1.1, "powersgd": 1.1}
            assert loss <= bound.get(name, 2) * dense, name
            assert sent < whole / 1.9 or name == "dense", name
            assert right >= share - 0.05, (name, right, share)


def test_places_beyond_floats_survive():
    index = torch.tensor([0, 2**24 + 1, 2**31 - 1])
    values = torch.tensor([1.5, -2.0, 0.0])
    found = _unpack(_pack(index, values))
    assert torch.equal(found[0], index) and torch.equal(found[1], values)


def test_signs_survive():
    values = torch.randn(1003)
    values[5] = 0.0
    packed = _pack_signs(values)
    assert packed.dtype == torch.uint8 and len(packed) == 126
    assert torch.equal(_unpack_signs(packed, 1003), torch.where(values < 0, -1.0, 1.0))


def test_merges_keep_the_largest_of_the_sum():
    one = torch.tensor([1, 4, 9]), torch.tensor([1.0, -5.0, 2.0])
    other = torch.tensor([0, 4, 8]), torch.tensor([2.0, 4.5, -7.0])
    (places, values), (dropped, rest) = _merged(one, other)
    assert places.tolist() == [0, 8, 9] and values.tolist() == [2.0, -7.0, 2.0]
    assert dropped.tolist() == [1, 4] and rest.tolist() == [1.0, -0.5]


@pytest.mark.parametrize("count", [1, 100, 5000])
@pytest.mark.parametrize("kind", ["normal", "one in 64 is large", "few are not zero"])
def test_exact_selection_is_of_the_largest(kind, count):
    u = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    if kind == "one in 64 is large":
        u[::64] *= 1e3  # all that a sample might look at
    elif kind == "few are not zero":
        u[50:] = 0.0
    places = _largest(u, count)
    assert len(set(places.tolist())) == count
    wanted = u.abs().sort(descending=True).values[:count]
    assert torch.equal(u[places].abs().sort(descending=True).values, wanted)


@pytest.mark.parametrize("kind", ["normal", "laplace", "shifted", "constant", "one"])
def test_gaussian_selection_is_about_what_was_asked_for(kind):
    count, size = 100, 20000
    u = {
        "normal": torch.randn(size),
        "laplace": torch.distributions.Laplace(0.0, 1.0).sample((size,)),
        "shifted": torch.randn(size) + 0.5,
        "constant": torch.ones(size),
        "one": torch.randn(1),
    }[kind]
    places = _gaussian(u, min(count, len(u)))
    assert len(places) == min(len(u), 134)
    chosen = places.unique()
    if kind in ("normal", "laplace", "shifted"):
        assert len(chosen) > (10 if kind == "shifted" else 60)  # three steps may not do
        left = u.clone()
        left[chosen] = 0
        assert left.abs().max() <= u[chosen[1:]].abs().min()


def test_densities_that_hide_behind_the_backward_pass():
    sizes = {"last": 1_000_000, "middle": 1000, "first": 1000}
    times = {"last": 0.1, "middle": 0.05, "first": 0.01}
    link = {"alpha": 1e-4, "beta": 1e-8, "processes": 4}
    found = lags_densities(sizes, times, **link)
    spare = 0.05 - 2e-9 * 1e6 - 2e-4
    assert found["last"] == pytest.approx(spare / (8 * 3 * 1e-8 * 1e6))
    assert found["middle"] == 1.0 and found["first"] == 0.001  # nothing follows the first layer
    assert lags_densities(sizes, times, **{**link, "beta": 1e-5})["last"] == 0.001


def test_densities_are_measured_and_agreed_on():
    one, other = run_ranks(2, remote.automatic)
    assert one[0] == other[0] and one[0].keys() == SIZES.keys()
    assert all(0.001 <= density <= 1 for density in one[0].values())
    for densities, sent, missing, resumed in (one, other):
        # A bucket's message has what is chosen of each of its parameters; small ones travel whole.
        small = {name for name, size in SIZES.items() if size < 1000}
        assert all(densities[name] == 1 for name in small)
        chosen = [
            4 * size if densities[name] == 1 else 8 * math.ceil(densities[name] * size)
            for name, size in SIZES.items()
        ]
        assert sent == sum(chosen)
        assert missing <= 1e-6 and resumed


def test_times_that_densities_go_by_are_of_whole_backward_passes(monkeypatch):
    found, pauses = {}, []  # between passes, by a clock that goes on meanwhile
    monkeypatch.setattr(ReadyTimes, "medians", lambda self: found.update(self.times) or {})
    monkeypatch.setattr(timing, "now", lambda device="cpu": now(device) + sum(pauses))
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    hook = TopK("auto", start_step=5, warmup=())
    with alone():
        model = DistributedDataParallel(net, bucket_cap_mb=0.02)
        hook.setup(net, torch.device("cpu"))
        model.register_comm_hook(hook, _run)
        for _ in range(6):
            pauses.append(600.0)
            model(torch.ones(2, 64)).sum().backward()
        hook.close()
    assert found.keys() == dict(net.named_parameters()).keys()
    assert all(len(times) >= 3 and max(times) < 500 for times in found.values())


def test_densities_of_a_link_whose_bytes_cost_nothing():
    one, other = run_ranks(2, remote.on_a_flat_link)
    assert one == other and set(one.values()) <= {0.001, 1.0}


def test_a_measurement_that_fails_ends_the_backward_pass():
    for said in run_ranks(2, remote.measuring_fails):
        assert said[:5] == [""] * 5 and "no link" in said[5]


def test_powersgd_begins_anew_on_resuming():
    found = run_ranks(2, remote.powersgd_resumed)
    assert "two steps travel whole" in found[0][0][0]
    for _, differences in found:
        assert max(differences[:2]) < 1e-6 < 1e-3 < min(differences[2:])
        assert max(differences) < 1


def test_densities_warm_up_by_epochs():
    hook = TopK(0.001)
    counts = []
    for epoch in range(6):
        hook.start_epoch(epoch)
        counts.append(hook.count(100_000))
    assert counts == [25000, 6250, 1563, 400, 100, 100]
    hook = GTopK(0.05)
    hook.start_epoch(3)
    assert hook.count(100) == 5  # never less than in the end


def test_registered_hooks_are_made():
    assert set(HOOKS) >= {"dense", "fp16", "bf16", "subnet", "topk", "gaussiank", "lags", "gtopk"}
    assert set(HOOKS) >= {"acpsgd", "powersgd", "efsign"}
    assert all(make().bytes_sent == 0 for make in HOOKS.values())
    strategy = HookDDPStrategy("powersgd")
    strategy.connect(DifferentiableSearch(Fit()))
    with pytest.raises(ValueError, match="powersgd keeps its state by bucket"):
        strategy.configure_ddp()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TopK(0), "a density is more than 0 and at most 1, not 0"),
        (lambda: TopK(warmup=[2]), "a density is more than 0 and at most 1, not 2"),
        (lambda: TopK(densities={"a": -1}), "a density is more than 0 and at most 1, not -1"),
        (lambda: TopK(selector="best"), "selector 'best': choose exact or gaussian"),
        (
            lambda: TopK("auto"),
            "density auto measures in start_step 0 steps: give at least 5, and no densities",
        ),
        (lambda: GTopK(feedback="none"), "feedback 'none': choose conserve or paper"),
        (lambda: ACPSGD(0), "rank 0: must be at least 1"),
        (lambda: ACPSGD(start_step=-1), "start_step -1 and forget_after 0: must be at least 0"),
        (lambda: PowerSGD(start_step=0), "rank 4 and start_step 0: at least 1 and 2"),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == says


@pytest.mark.parametrize("name", ["merged", *sorted(HOOKS.keys() - {"dense", "bf16"})])
def test_configs_choose_hooks(name):
    parser = LightningArgumentParser()
    parser.add_subclass_arguments(Strategy, "strategy")
    settings = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["trainer"]
    made = parser.instantiate_classes(parser.parse_object({"strategy": settings["strategy"]}))
    wanted = type(HOOKS["dense" if name == "merged" else name]())
    assert isinstance(made.strategy, HookDDPStrategy) and type(made.strategy.hook) is wanted
    assert (made.strategy.plan is not None) == (name == "merged")


def test_configs_train():
    hooked = {}
    for path in CONFIGS.glob("*.yaml"):
        strategy = yaml.safe_load(path.read_text())["trainer"].get("strategy")
        if isinstance(strategy, dict) and strategy["class_path"].endswith("HookDDPStrategy"):
            hooked[path.stem] = strategy
    # Shorter than a training of thousands of steps needs.
    hooked["powersgd"]["init_args"]["hook"]["init_args"]["start_step"] = 2
    hooked["lags"]["init_args"]["hook"]["init_args"]["start_step"] = 5
    hooked["merged"]["init_args"]["plan"]["init_args"] |= {"warmup_steps": 2, "measure_steps": 1}
    assert len(hooked) >= 10
    one, other = run_ranks(2, training.configured, hooked)
    for name, (found, sent) in one.items():
        assert found == other[name][0] and sent > 0, name
        assert torch.tensor(found).isfinite().all(), name
    assert one["merged"][0] != one["topk"][0]
