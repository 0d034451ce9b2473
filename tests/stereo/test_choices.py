"""What can be chosen, what it is called, and networks by the time that a pair may take."""

from __future__ import annotations

import shutil

import pytest
import torch
import toy_matcher
import toy_supernet

from vizoo.nas.space import Architecture
from vizoo.stereo import DEFAULT_MODEL
from vizoo.stereo import choices as module
from vizoo.stereo.choices import WITHIN, Choices
from vizoo.vision.configs.task import FitConfig
from vizoo.vision.hub import registry
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.subnets import best
from vizoo.vision.subnets.bench import Bench

TINY, LIGHT = "fadnet_plus_tiny.generated", "easnet_light.generated"
CUT = f"{LIGHT}: a subnet within the time limit"


@pytest.fixture
def opened(monkeypatch):
    """The models that were opened, in turn."""
    names = []
    load = module.load_network
    monkeypatch.setattr(module, "load_network", lambda m, task: names.append(m) or load(m, task))
    return names


def test_all_are_tried_at_once_and_one_is_kept(opened):
    choices = Choices([TINY, LIGHT], "cpu")
    assert opened == [TINY, LIGHT] and list(choices._opened) == [TINY]
    assert choices.offered == [TINY, LIGHT, WITHIN, CUT] and choices.timed == [WITHIN, CUT]
    assert choices.choose(LIGHT, None, 96, 160)[1] is choices.network(LIGHT)
    assert choices.network(LIGHT) is choices.network(LIGHT)
    with pytest.raises(ValueError, match="other: not among the networks"):
        choices.network("other")
    assert Choices([TINY], "cpu").timed == []


def test_the_default_is_guided_as_elsewhere():
    choices = Choices([DEFAULT_MODEL, TINY], "cpu")
    assert [choices.network(name).guided for name in (DEFAULT_MODEL, TINY)] == [True, False]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("absent.safetensors", "no such weight file"),
        ("easnet_elastic", "no trained weights"),
        ("dispmvs", "for mvs, not for stereo"),
        ("no_such_model", "no_such_model"),
    ],
)
def test_a_wrong_second_model_is_refused_at_the_start(wrong, says):
    with pytest.raises((FileNotFoundError, ValueError), match=says):
        Choices([TINY, wrong], "cpu")


def test_files_of_one_name_are_told_apart_and_hide_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ["runs/a/last.safetensors", "runs/b/last.safetensors", "mine.safetensors"]
    file = save_weights(create_model("fadnet_plus_tiny"), tmp_path / "mine.safetensors")
    for name in files[:2]:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(file, tmp_path / name)
    choices = Choices([*files, "./mine.safetensors"], "cpu")
    names = ["a/last.safetensors", "b/last.safetensors", f"{tmp_path.name}/mine.safetensors"]
    assert choices.offered == [*names, WITHIN]
    assert Choices([files[0], TINY], "cpu").offered[:2] == ["last.safetensors", TINY]
    (tmp_path / files[1]).unlink()
    with pytest.raises(ValueError, match="b/last.safetensors: .* cannot be read any more") as told:
        choices.network(names[1])
    assert str(tmp_path) not in str(told.value)


def test_the_slowest_within_a_limit(monkeypatch):
    choices = Choices([TINY, "easnet_small"], "cpu")
    calls = []
    for name, speed in ((TINY, 1.0), ("easnet_small", 2.0)):  # seconds for a million pixels
        network = choices.network(name)
        monkeypatch.setattr(network, "estimate", lambda h, w, s=speed: calls.append(h * w) or s)
    assert choices.choose(WITHIN, 110.0, 100, 1000)[0] == TINY
    assert choices.choose(WITHIN, 210.0, 100, 1000)[0] == "easnet_small"
    with pytest.warns(UserWarning, match=f"no network takes 50 ms .* 100x1000 .*{TINY} .* 100 ms"):
        assert choices.choose(WITHIN, 50.0, 100, 1000)[0] == TINY
    # Both views take twice as long, and what is said is about both.
    assert choices.choose(WITHIN, 210.0, 100, 1000, views=2)[0] == TINY
    with pytest.warns(UserWarning, match=f"takes 150 ms .* for both views; {TINY} .* 200 ms"):
        choices.choose(WITHIN, 150.0, 100, 1000, views=2)
    assert calls == [1_000_000] * 2  # once each
    for wrong in (None, 0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="give the time limit"):
            choices.choose(WITHIN, wrong, 100, 1000)


@pytest.fixture
def quick(monkeypatch):
    """Small measurements in no time; which architectures were measured."""
    measured = []
    costs = Bench.costs

    def told(self, architecture: Architecture):
        measured.append(architecture)
        return costs(self, architecture)

    monkeypatch.setattr(Bench, "costs", told)
    monkeypatch.setattr(module, "_SIZE", (48, 96))
    monkeypatch.setattr(module, "_SCENES", 1)
    monkeypatch.setattr(FitConfig, "recalibrate", lambda *_, **__: None)
    monkeypatch.setattr(module, "_SEARCH", {"generations": 2, "population": 8, "rounds": 1})
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 2)
    for name, value in {"samples": 5, "held_out": 0, "seconds": 0.0}.items():
        monkeypatch.setitem(best.OWN_TABLE, name, value)
    return measured


@pytest.fixture
def toy(quick, tmp_path, monkeypatch):
    """Weights of a small supernet without anything beside them."""
    toy_supernet.exact_times(monkeypatch)
    toy_matcher.register(monkeypatch, registry.model_info("fadnet_plus_tiny"))  # of the config
    net = create_model("match_super", widths=[*range(2, 40, 2)])
    with torch.no_grad():
        net.last.weight.abs_()  # what batch norms pass on makes larger disparities
    return str(save_weights(net, tmp_path / "toy.safetensors"))


def test_a_subnet_is_cut_once_for_a_limit(toy, quick, monkeypatch):
    choices, cut = Choices([toy], "cpu"), "toy.safetensors: a subnet within the time limit"
    assert choices.offered == ["toy.safetensors", cut]
    steps = []
    name, network = choices.choose(cut, 20.9, 48, 96, lambda *step: steps.append(step))
    assert ("measuring subnets, once", 5, 5) in steps and [step[0] for step in steps[-2:]] == [
        "searching",
        "estimating batch norms",
    ]
    assert name.startswith("toy.safetensors, a subnet of ") and name.endswith(" M parameters")
    assert torch.isfinite(network.maps(*torch.rand(2, 3, 48, 96))).all()
    assert len(quick) == 1
    # A pair of nearly this size takes the same; a smaller limit another one.
    assert choices.choose(cut, 20.9, 48, 97)[1] is network and len(quick) == 1
    assert choices.choose(cut, 41.8, 48, 96, views=2)[1] is network
    with pytest.warns(UserWarning, match="takes 2 ms or less here at 48x96 pixels for both views"):
        choices.choose(cut, 2.0, 48, 96, views=2)
    with pytest.warns(UserWarning, match="no subnet of .* takes 0 ms or less here at 48x96 .*the"):
        least = choices.choose(cut, 1e-3, 48, 96)[1]
    weights = [sum(p.numel() for p in net.net.parameters()) for net in (least, network)]
    assert weights[0] < weights[1]
    monkeypatch.setattr(module, "_KEPT", 1)
    assert choices.choose(cut, 15.0, 48, 96)[1] is not network
    assert len(choices._supernets[cut].cut) == 1


def test_the_table_beside_the_weights_is_moved_here(quick, monkeypatch):
    def costs(self, architecture):
        quick.append(architecture)
        return {"measured": {"median": 100.0}}

    monkeypatch.setattr(Bench, "costs", costs)
    choices = Choices([LIGHT], "cpu")
    choices.choose(CUT, 150.0, 540, 960)
    bench = choices._supernets[CUT].bench
    assert (bench.conditions.height, bench.conditions.width) == (540, 960)
    assert quick[0] == bench.space.smallest() and len(quick) == 2
    # Half as wide, half the time.
    assert choices.choose(CUT, 75.0, 540, 480)[1] is choices.choose(CUT, 150.0, 540, 960)[1]


@pytest.mark.parametrize("better", [True, False])
def test_batch_norms_are_those_that_err_less(toy, monkeypatch, better):
    def recalibrate(self, net, batches, device):
        for norm in net.modules():
            if isinstance(norm, torch.nn.BatchNorm2d | torch.nn.BatchNorm3d):
                norm.running_var.mul_(1e4)

    monkeypatch.setattr(FitConfig, "recalibrate", recalibrate)
    supernet = module._Supernet("toy", toy, "cpu", lambda *_, **__: None)
    subnet = supernet.bench.network(supernet.bench.space.largest())
    if better:  # the supernet's are the damaged ones
        recalibrate(None, subnet, 1, None)
        monkeypatch.setattr(FitConfig, "recalibrate", lambda self, net, *_: restore(net))
    whole = supernet.bench.network(supernet.bench.space.largest())

    def restore(net):
        net.load_state_dict(whole.state_dict())

    views = torch.rand(2, 3, 48, 96)
    found = supernet._normed(subnet).maps(*views)
    assert torch.allclose(found, module.Network(whole, "cpu").maps(*views), atol=1e-3)
