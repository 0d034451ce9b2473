"""The whole tour of `vizoo demo`: subnets, a training that is resumed, a card a family."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from unittest.mock import create_autospec

import pytest
import yaml
from torch import nn
from trainers import Forked

from vizoo.__main__ import main
from vizoo.cli._demo import families, pair, subnets, tour, training
from vizoo.common.timing import Timing
from vizoo.datasets.worlds import panorama, views
from vizoo.nas.space import Architecture
from vizoo.stereo.infer import StereoPredictor
from vizoo.vision.configs.builtin import resolve_config
from vizoo.vision.hub.registry import list_models
from vizoo.vision.hub.weights import load_weights
from vizoo.vision.subnets import best


@pytest.fixture
def small(tmp_path, monkeypatch, small_views):
    """A training of a few steps on small scenes; a tour without the searches."""
    with open(resolve_config(training.CONFIG), encoding="utf-8") as file:
        config = yaml.safe_load(file)
    for role, length in (("train", 12), ("val", 1), ("test", 2)):
        arguments = config["data"]["init_args"][role][0]["init_args"]
        arguments |= {"length": length, "height": 64, "width": 128}
    sizes = {"crop_height": 64, "crop_width": 128, "workers": 0, "batch_size": 2}
    sizes["samples_per_epoch"] = 24
    config["data"]["init_args"] |= sizes
    config["trainer"]["logger"]["init_args"]["flush_logs_every_n_steps"] = 1
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(training, "CONFIG", str(path))
    monkeypatch.setattr(training, "_LOOK", 0.05)
    monkeypatch.setattr(pair, "_SECONDS", 0.1)
    monkeypatch.setitem(pair._ROOM, "height", 96)
    monkeypatch.setitem(pair._ROOM, "width", 192)
    monkeypatch.chdir(tmp_path)
    return path


def test_a_training_is_interrupted_and_goes_on(small, tmp_path, monkeypatch):
    def command(words, stdout):
        assert words[:3] == [sys.executable, "-m", "vizoo"] and stdout == 2
        return Forked(words[3:], tmp_path)

    forking = types.SimpleNamespace(Popen=command, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(training, "subprocess", forking)
    mine = tmp_path / "out/training/mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("not the demo's")
    (tmp_path / "out/training/version_0").mkdir()  # of a run before, not counted in
    done = training.train(tmp_path / "out", 1, "cpu", lambda what: None)
    assert mine.is_file()
    assert 5 <= done.interrupted < 11
    steps = [step for step, _ in done.losses]
    assert len(steps) == 12 and steps == sorted(set(steps))
    # Where the signal came between a step and its record, the batch is run again as the next step.
    assert set(range(steps[-1])) - set(steps) <= {done.interrupted + 1}
    assert len(done.errors) == 1 and len(done.commands) == 2
    assert done.commands[1].startswith(f"{done.commands[0]} --ckpt_path ")
    assert "vizoo: stopped; resume with: vizoo fit" in (tmp_path / "stderr.txt").read_text()
    assert load_weights(done.weights).architecture["name"] == "fadnet_plus_tiny"
    report = training.test(done, "cpu", lambda what: None)
    assert len(report) == 3 and all(values["epe"] > 0 for values in report.values())


def test_a_failing_training_is_told(small, tmp_path, monkeypatch):
    (tmp_path / "python").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ValueError, match="the training failed: see above"):
        training.train(tmp_path / "out", 1, "cpu", lambda what: None)


def test_ctrl_c_waits_for_the_checkpoint(small, tmp_path, monkeypatch):
    """The terminal tells both: the child writes its checkpoint before the command ends."""
    started = []

    class Awaited(Forked):
        def terminate(self):
            pytest.fail("the training was not waited for")

    def command(words, stdout):
        started.append(Awaited(words[3:], tmp_path))
        return started[0]

    def pressed(steps, runs, known):
        if list(tmp_path.glob("out/training/version_0/metrics.csv")):
            started[0].send_signal(signal.SIGINT)
            raise KeyboardInterrupt
        return False

    forking = types.SimpleNamespace(Popen=command, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(training, "subprocess", forking)
    monkeypatch.setattr(training, "_reached", pressed)
    with pytest.raises(KeyboardInterrupt):
        training.train(tmp_path / "out", 50, "cpu", lambda what: None)
    assert started[0].poll() == 130 and len(started) == 1
    assert "vizoo: stopped; resume with" in (tmp_path / "stderr.txt").read_text()
    assert list(tmp_path.glob("out/training/version_0/checkpoints/last.ckpt"))


@pytest.mark.slow
def test_ctrl_c_stops_the_training_and_its_command(small, tmp_path):
    """The child writes its checkpoint; nothing goes on behind the prompt."""
    code = (
        "import sys; from pathlib import Path; from vizoo.cli._demo import training as t;"
        f"t.CONFIG = {str(small)!r}; t._reached = lambda *_: False;"
        "t.train(Path('out'), 50, 'auto', print)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/training/version_0/metrics.csv")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said and "vizoo: stopped; resume with" in said
    assert list(tmp_path.glob("out/training/version_0/checkpoints/last.ckpt"))
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_tour(small, cards, tmp_path, monkeypatch, capsys):
    def cut(sample, out, tell):
        result = StereoPredictor("easnet_small")(sample.left, sample.right)
        costs = {"parameters": 1000, "measured": Timing(40.0, 39.0, 41.0, 5).to_json()}
        found = Architecture({"width": 4}), {"latency": 50.0}, {}, costs, [], 0.0, "cpu, 2 threads"
        file, scores = out / "50ms.safetensors", pair.scores(sample, result)
        return [subnets.Subnet(best.Subnet(nn.Identity(), *found), file, result, scores)]

    def fit(out, epochs, device, tell):
        assert epochs == 1
        losses, commands = [(0, 9.0), (1, 7.0), (2, 5.0)], ["vizoo fit", "vizoo fit --ckpt_path"]
        files = (out / "training.yaml", out / "fadnet_demo.safetensors")
        return training.Training(commands, *files, losses, [(2, 4.0)], 1, 60.0)

    made = create_autospec(families.family_cards, return_value=cards)
    monkeypatch.setattr(tour, "family_cards", made)
    monkeypatch.setattr(tour, "cut_subnets", cut)
    monkeypatch.setattr(tour, "train", fit)
    assert main(["demo", "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    page = (tmp_path / "demo/index.html").read_text()
    assert report["page"] == os.path.join("demo", "index.html")
    assert list(report["seconds"]) == ["pair", "subnets", "training", "families"]
    for part in range(1, 5):
        assert f"vizoo demo: {part}/4 " in said.err
    assert [network["weights"] for network in report["networks"]] == [
        "easnet_scaled.two_thirds",
        None,
    ]
    assert report["training"]["test"] is None and report["training"]["interrupted"] == 1
    for word in ("FADNet++", "DispMVS", "SphereDepth", "CovidNet3D", "interrupted, resumed"):
        assert word in page
    sample, _, views = made.call_args.args
    assert sample.size == (96, 192) and views == "demo/pair/left.png demo/pair/right.png"
    for card in cards:
        assert card.pictures and all(
            re.match("vizoo |pip install ", line) for line in card.commands
        )
    assert "vizoo infer stereo demo/pair/left.png demo/pair/right.png --calib demo" in page
    views = [f"demo/pair/{side}.png" for side in ("left", "right")]
    again = ["--calib", "demo/pair/calib.txt", "--out", "again"]
    assert main(["infer", "stereo", *views, *again]) == 0


@pytest.fixture(scope="module")
def cards():
    """Those of a small room, of smaller inputs."""

    def smaller(kind, *size):
        return lambda count, *_, **settings: kind(count, *size, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "WorldViews", smaller(views.WorldViews, 128, 160))
        patch.setattr(panorama, "WorldPanoramas", smaller(panorama.WorldPanoramas, 64))
        patch.setitem(pair._ROOM, "height", 96)
        patch.setitem(pair._ROOM, "width", 192)
        return families.family_cards(pair.generated_sample(1), "cpu", "l.png r.png")


@pytest.mark.parametrize(("fastest", "slowest"), [(118.0, 390.0), (3.0, 4.0), (0.5, 12.0)])
def test_limits_lie_between_the_ends(fastest, slowest):
    limits = subnets._round_limits(fastest, slowest)
    assert limits == sorted(limits) and len(set(limits)) == 3
    assert fastest < limits[0] and limits[-1] < 1.02 * slowest


def test_cards_say_which_families_have_no_weights(cards):
    """A family that has weights shows what its network makes."""
    trained = {name.split(".")[0] for name in list_models(pretrained=True)}
    for family in ("fadnet", "dispmvs", "spheredepth", "covidnet3d"):
        (card,) = (card for card in cards if card.title.lower().startswith(family))
        has_weights = any(name.startswith(family) for name in trained)
        assert (families._UNTRAINED in card.text) != has_weights


def test_the_commands_of_a_card_find_each_other(cards, tmp_path, monkeypatch):
    """What the first command writes is where the next one looks."""
    monkeypatch.chdir(tmp_path)
    assert main(["rooms", "rooms", "--rooms", "1", "1", "1", "--size", "16x32"]) == 0
    (card,) = (card for card in cards if card.title.startswith("SphereDepth"))
    (pattern,) = re.findall("'(.*)'", card.commands[1])
    assert len(list(tmp_path.glob(pattern))) == 3
