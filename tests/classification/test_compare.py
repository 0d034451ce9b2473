"""Comparisons: what a config may say, what each way finds, runs that go on, the report."""

from __future__ import annotations

import copy
import csv
import json
import math
import os
import re
import signal
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

import vizoo
from vizoo.__main__ import main
from vizoo.classification.comparison import candidates, report
from vizoo.classification.comparison import compare as module
from vizoo.classification.comparison.candidates import Shared, found
from vizoo.classification.comparison.config import CompareConfig, Pick
from vizoo.classification.comparison.runs import latencies, run
from vizoo.classification.comparison.significance import differences
from vizoo.classification.task import ClassificationTask
from vizoo.common.counts import count
from vizoo.nas import search_space
from vizoo.vision.configs.builtin import CONFIGS, read_config
from vizoo.vision.hub.create import create_model
from vizoo.vision.subnets.leaves import unsplit

PRESET = {"size": [16, 16], "crop": 1.0}


def images(length: int, seed: int) -> list[dict]:
    arguments = {"length": length, "classes": 3, "preset": PRESET, "side": 16, "seed": seed}
    return [{"class_path": "vizoo.datasets.images.GeneratedLesions", "init_args": arguments}]


SETTINGS = {
    "seeds": [0, 1],
    "size": [16, 16],
    "training": {"epochs": 1, "optimizer": "sgd", "lr": 0.05},
    "data": {
        "class_path": "vizoo.datasets.images.ImageDataModule",
        "init_args": {
            "train": images(16, 1),
            "val": images(8, 2),
            "test": images(12, 3),
            "augmentation": "none",
            "batch_size": 8,
            "eval_batch_size": 12,
            "workers": 0,
        },
    },
    "rows": {
        "plain one": {"model": "image_classifier", "model_args": {"backbone": "test_resnet"}},
        "random": {
            "model": "nasbench201",
            "model_args": {"channels": 2, "cells": 1},
            "group": "baseline",
            "pick": {"by": "random"},
        },
    },
}
# Where none is looked at; the settings of images take long to read.
NO_IMAGES = {"class_path": "lightning.pytorch.demos.boring_classes.BoringDataModule"}
CELLS = {"model": "nasbench201", "model_args": {"channels": 2, "cells": 1}}
CONVERTED = {
    "model": "image_classifier",
    "model_args": {"backbone": "test_resnet", "convert": {"size": [16, 16]}},
}
FEW = {  # choices, so that it is converted in little time
    "backbone": "test_resnet",
    "convert": {"size": [16, 16], "keep": ["body.layer*"]},
}
RESNET = {"name": "image_classifier", "backbone": "test_resnet", "classes": 3}
CELL = {
    "name": "nasbench201",
    "channels": 2,
    "cells": 1,
    "cell": "|none~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|",
}
ONE_SHOT = {"method": "one_shot", "epochs": 1, "lr": 0.02, "recalibration_batches": 1}
LID = {"layers": ["cells.*"], "k": 4, "batches": 1, "batch_size": 8}
ROWS = {
    "one_shot": {**CELLS, "search": ONE_SHOT, "pick": {"by": "ranking", "samples": 3}},
    "evolved": {
        **CELLS,
        "search": {**ONE_SHOT, "method": "sandwich"},
        "pick": {"by": "evolution", "population": 3, "generations": 1},
        "limits": {"parameters": 2000},
    },
    "nas_lid": {
        **CELLS,
        "search": {**ONE_SHOT, "method": "nas_lid", "epochs": [1, 1], "splitter": LID},
        "pick": {"by": "ranking", "samples": 3},
    },
    "dnas": {
        **CELLS,
        "search": {"method": "dnas", "epochs": 1},
        "limits": {"parameters": "2k"},
    },
    "alone": {
        **CELLS,
        "search": {"method": "alone", "epochs": 1},
        "pick": {"by": "evolution", "population": 2, "generations": 1},
    },
    "parameters": {**CELLS, "pick": {"by": "parameters", "samples": 3}, "limits": {"macs": "60k"}},
    "largest": {
        **CONVERTED,
        "search": ONE_SHOT,
        "pick": {"by": "largest", "measured": 4},
        "limits": {"macs": "50%", "latency": "300%"},
        "weights": "inherited",
    },
    "uniform": {**CONVERTED, "pick": {"by": "uniform"}, "limits": {"macs": "50%"}},
    "pruned": {
        **CONVERTED,
        "pretrain": 1,
        "pick": {"by": "random"},
        "limits": {"macs": "50%"},
        "weights": "inherited",
        "epochs": 0,
    },
}


def a_run(name: str, seed: int, top1: float = 50.0, size: int = 1000, **more: object) -> dict:
    """What a run comes to."""
    costs = dict.fromkeys(("parameters", "macs", "memory"), size)
    minutes = {"search_minutes": 0.5, "train_minutes": 1.0}
    scores = {"top1": top1, "top5": 99.0, "loss": 1.0, "tested": 24}
    return {"row": name, "seed": seed, **scores, **costs, **minutes, **more}


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Subnets are measured a few times, not for seconds, and few are looked at."""
    few = partial(candidates.best_subnet, population=8, generations=3)
    monkeypatch.setattr(candidates, "best_subnet", few)
    monkeypatch.setattr("vizoo.vision.subnets.best._COUNTED", 16)
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 3)
    monkeypatch.setattr(candidates, "_SECONDS", 0.0)
    monkeypatch.setattr(candidates, "_TIMED", 5)
    monkeypatch.setattr("vizoo.classification.comparison.runs._REPETITIONS", 5)


@pytest.fixture
def write(tmp_path):
    """Writes a comparison of rows, with settings changed; its file's name."""

    def write(rows: dict | None = None, **changed: object) -> str:
        content = {**copy.deepcopy(SETTINGS), **changed}
        content["rows"] = SETTINGS["rows"] if rows is None else rows
        path = tmp_path / "compare.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write


@pytest.fixture
def unpictured(monkeypatch):
    """Reports without their pictures."""
    monkeypatch.setattr(report, "front_plot", lambda *_: "")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "needs rows, seeds and training"),
        ({"a": {**CELLS, "pik": {"by": "random"}}}, "row a: Option 'pik"),
        (
            {"a": {**CELLS, "pretrian": 2}},
            "yaml: row a: Option 'pretrian' is not accepted; did you mean 'pretrain'?",
        ),
        (
            {"a": CELLS, "b": {**CELLS, "pick": {"by": "random", "sample": 3}}},
            "yaml: row b: pick: Option 'sample' is not accepted; did you mean 'samples'?",
        ),
        ({"a": {**CELLS, "pick": {"by": "luck"}}}, "row a: pick: by: expected one of .*luck$"),
        (
            {"a": {**CELLS, "pick": {"by": "rankng"}}},
            "value: rankng; did you mean 'ranking'?",
        ),
        (
            {"a": {**CELLS, "search": {"method": "oneshot", "epochs": 1}}},
            "row a: search: method: .* value: oneshot; did you mean 'one_shot'?",
        ),
        ({"a": {**CELLS, "pick": {"by": "ranking"}}}, "pick ranking needs a search"),
        ({"a": {**CELLS, "search": ONE_SHOT}}, "search one_shot needs a pick"),
        ({"a": {**CELLS, "limits": {"macs": 9}}}, "limits need a pick"),
        (
            {"a": {**ROWS["uniform"], "limits": {"maks": "50%"}}},
            "row a: unknown limit 'maks': give",
        ),
        (
            {"a": {**ROWS["uniform"], "limits": {"macs": "half"}}},
            "macs half: give a number",
        ),
        ({"a": {**ROWS["uniform"], "limits": {"macs": "-5%"}}}, "limit -5%: a share is"),
        ({"a": {**ROWS["uniform"], "limits": {"macs": "x%"}}}, "limit x%: a share is a number"),
        ({"a": {**CELLS, "pretrain": 1}}, "pretrain is for networks that are converted"),
        ({"a": {**CONVERTED, "pretrain": -1}}, "epochs and pretrain are 0 or more"),
        (
            {"a": {**CONVERTED, "importance": "taylor"}},
            "taylor is for networks that are trained",
        ),
        ({"a": {**CELLS, "pick": {"by": "random", "samples": 0}}}, "samples is 1 or more, not 0"),
        (
            {"a": {**CELLS, "search": {**ONE_SHOT, "epochs": -1}, "pick": {"by": "random"}}},
            "epochs are 1 or more, not -1",
        ),
        ({"a": {**CELLS, "weights": "inherited", "pick": {"by": "random"}}}, "inherited weights"),
        (
            {
                "a": {
                    **CELLS,
                    "search": {"method": "nas_lid", "epochs": 2},
                    "pick": {"by": "random"},
                }
            },
            "of each level, a list",
        ),
    ],
)
def test_a_wrong_config_is_one_line(write, rows, message, tmp_path, capsys):
    name = write(rows, data=NO_IMAGES)
    assert main(["compare", "--config", name, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("vizoo: error: ")
    assert name in error and re.search(message, error)


def test_what_a_config_lacks_is_named(write, tmp_path):
    (tmp_path / "none.yaml").write_text("seeds: [1]")
    with pytest.raises(ValueError, match="no config of `vizoo compare`: it has no `data`"):
        CompareConfig.read(str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="epochs are needed"):
        CompareConfig.read(write(training={"lr": 1.0}, data=NO_IMAGES))
    with pytest.raises(ValueError, match="epochs are needed"):
        CompareConfig.read(write(training={"epochs": "two"}, data=NO_IMAGES))
    with pytest.raises(FileNotFoundError, match=r"compare/generated\.yaml"):
        CompareConfig.read("compare/generate.yaml")
    for given in ({"rows": {}}, None):
        with pytest.raises(ValueError, match=r"^config (\{'rows': \{\}\}|None): give a file, the "):
            vizoo.compare(given, tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_said_before_any_run(write, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run", None)  # a run that fails would be one of many
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="^cannot make the folder .*file/out: a file"):
        vizoo.compare(Path(write()), tmp_path / "file" / "out")


def test_images_that_are_not_there_are_one_line(write, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CIFAR10", str(tmp_path / "none"))
    name = write(data=read_config("compare/cifar10_small.yaml")["data"])
    words = ["compare", "--config", name, "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert (
        capsys.readouterr().err
        == f"vizoo: error: images at {tmp_path}/none/train: no such folder\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", sorted((CONFIGS / "compare").glob("*.yaml")), ids=lambda p: p.stem)
def test_built_in_comparisons_are_of_networks_that_there_are(path, monkeypatch):
    monkeypatch.setenv("CIFAR10", "/nowhere")
    config = CompareConfig.read(f"compare/{path.name}")
    assert len(config.rows) > 5 and len(config.seeds) >= 3
    height, width = config.size
    choices = {}  # of a network; rows share them
    for row in config.rows.values():
        arguments = {k: v for k, v in row.model_args.items() if k != "convert"}
        if (named := json.dumps([row.model, arguments])) not in choices:
            net = create_model(row.model, **{"classes": 10, **arguments}).eval()
            choices[named] = len(search_space(net))
            with torch.device("meta"):
                assert net.to("meta")(torch.empty(1, 3, height, width)).shape[0] == 1
        supernet = choices[named] or "convert" in row.model_args
        assert bool(supernet) == (row.search is not None or row.pick is not None)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_found_within_its_limits_and_trained(write, name):
    config = CompareConfig.read(write({name: ROWS[name]}))
    candidates.check_rows(config)
    torch.manual_seed(3)
    one = run(config, name, 1, Shared())
    assert {"top1", "top5", "parameters", "macs", "memory"} <= one.keys()
    assert one["tested"] == 12 and one["top5"] == 100 and 0 <= one["top1"] <= 100
    model = dict(json.loads(json.dumps(one["model"])))
    net = create_model(model.pop("name"), **model)
    assert not len(search_space(net)) and "subnet" in model
    assert sum(p.numel() for p in net.parameters()) == one["parameters"]
    limits = ROWS[name].get("limits", {})
    if name == "one_shot":
        again = run(config, name, 1, Shared())
        assert all(again[key] == one[key] for key in ("top1", "loss", "model"))
    if "parameters" in limits:
        assert one["parameters"] <= 2000
    if limits.get("macs") == "60k":
        assert one["macs"] <= 60_000
    if limits.get("macs") == "50%":
        assert one["macs"] <= 0.5 * _whole_macs(ROWS[name])
    assert one["epochs"] == ROWS[name].get("epochs", 1)


def _whole_macs(row: dict) -> int:
    net = create_model(row["model"], classes=3, backbone="test_resnet")
    return count(net, torch.rand(1, 3, 16, 16)).macs


def test_limits_out_of_reach_are_said(write):
    row = {**CONVERTED, "model_args": FEW, "pick": {"by": "random"}, "limits": {"parameters": 10}}
    with pytest.raises(ValueError, match="smallest reachable"):
        run(CompareConfig.read(write({"tiny": row})), "tiny", 0, Shared())


def test_rows_share_a_supernet_and_its_cost(write, monkeypatch):
    first = {**CONVERTED, "model_args": FEW, "pretrain": 1, "search": ONE_SHOT}
    first["weights"] = "inherited"
    rows = {
        "a": {**first, "pick": {"by": "random"}},
        "b": {**first, "pick": {"by": "ranking", "samples": 2}},
        "c": {**first, "search": None, "pick": {"by": "random"}},
    }
    config, trained = CompareConfig.read(write(rows)), []
    fit = candidates.fit
    monkeypatch.setattr(candidates, "fit", lambda m, d, e: (trained.append(m), fit(m, d, e)))
    config.data.setup("fit")
    shared = Shared()
    alone, minutes = found(config, config.rows["a"], 0, shared)
    assert len(trained) == 2  # the network, the supernet
    _, later = found(config, config.rows["b"], 0, shared)
    assert len(trained) == 2 and later > shared.minutes > 0 < minutes
    found(config, config.rows["c"], 0, shared)
    assert len(trained) == 2  # of the same network
    assert [task.hparams.lr for task in (trained[0], trained[1].task)] == [0.05, 0.02]
    again, _ = found(config, config.rows["a"], 0, Shared())
    assert len(trained) == 4
    weights = zip(alone.net.state_dict().values(), again.net.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    found(config, config.rows["a"], 1, shared)
    assert len(trained) == 6


def test_limits_by_latency_are_one_for_all_rows_and_held(write, monkeypatch):
    row = {**CONVERTED, "pick": {"by": "uniform"}, "limits": {"latency": "50%"}}
    config = CompareConfig.read(write({"a": row}, data=NO_IMAGES))
    times = iter([8.0, 7.0])
    shared = Shared()
    monkeypatch.setattr(candidates, "_cost", lambda bench, kind, architecture: next(times))
    bench = candidates.Bench.here(create_model("nasbench201"), size=(16, 16))
    limits = [candidates._bounds(config.rows["a"], bench, shared) for _ in range(2)]
    assert limits == [{"latency": 4.0}] * 2

    class Slow:
        missed, architecture = ["latency"], None

    monkeypatch.setattr(candidates, "best_subnet", lambda *given, **settings: Slow())
    weights = candidates._Weights(unsplit(bench.net, bench.space), len, table=object())
    largest = replace(config.rows["a"], pick=Pick("largest"))
    with pytest.raises(ValueError, match="no subnet that was measured keeps the latency's limit"):
        candidates._picked(config, largest, weights, 0, shared)


def test_costs_are_of_as_many_images_as_the_config_says(write, monkeypatch):
    one = CompareConfig.read(write(data=NO_IMAGES))
    several = replace(one, batch=3)
    assert one.batch == 1 and one.digest("plain one") != several.digest("plain one")
    seen = []
    optimize = "vizoo.classification.comparison.runs.optimize"
    monkeypatch.setattr(optimize, lambda net: lambda images: seen.append(len(images)))
    latencies(several, [{"model": RESNET}])
    assert set(seen) == {3}
    with pytest.raises(ValueError, match="batch"):
        CompareConfig.read(write(batch=0, data=NO_IMAGES))


def test_runs_of_other_images_are_others(write, monkeypatch):
    data = copy.deepcopy(SETTINGS["data"])
    data["init_args"]["train"][0]["init_args"]["seed"] = "${SEED}"
    content = {**SETTINGS, "data": data}
    digests = []
    for seed in ("1", "2"):
        monkeypatch.setenv("SEED", seed)
        config = CompareConfig.read(write())
        digests.append(CompareConfig(**{**vars(config), "made_of": content}).digest("plain one"))
    assert digests[0] != digests[1]


@pytest.mark.usefixtures("unpictured")
def test_it_goes_on_where_it_was_stopped(write, tmp_path, monkeypatch):
    name, out, calls = write(), tmp_path / "out", []
    models = {"plain one": RESNET, "random": CELL}

    def stopped(config, row, seed, shared):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append((row, seed))
        return a_run(row, seed, digest=config.digest(row), model=models[row])

    monkeypatch.setattr(module, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        vizoo.compare(name, out)
    assert calls == [("plain one", 0), ("random", 0), ("plain one", 1)]
    files = sorted(p.relative_to(out).as_posix() for p in (out / "runs").rglob("*") if p.is_file())
    assert files == ["runs/plain_one/0.json", "runs/plain_one/1.json", "runs/random/0.json"]
    calls.clear()
    made = vizoo.compare(name, out)
    assert calls == [("random", 1)] and not made.failed
    assert {row["row"]: row["seeds"] for row in made.rows} == {"plain one": 2, "random": 2}
    calls.clear()
    known = (out / "latency.json").read_text()
    assert vizoo.compare(name, out).rows == made.rows and not calls
    assert (out / "latency.json").read_text() == known
    elsewhere = json.loads(known)
    elsewhere["conditions"]["device_name"] = "another"
    (out / "latency.json").write_text(json.dumps({**elsewhere, "latency": [0.0] * 4}))
    assert all(row["latency"] > 0 for row in vizoo.compare(name, out).rows)
    assert json.loads((out / "latency.json").read_text())["conditions"] != elsewhere["conditions"]
    with pytest.raises(ValueError, match=r"0\.json: a run of other settings"):
        vizoo.compare(write(size=[24, 24]), out)


@pytest.mark.parametrize(
    ("row", "training", "message"),
    [
        ({"model_args": {"backbone": "resnet1"}}, {}, "row wrong: timm has no network 'resnet1'"),
        ({"model_args": {"backbon": "resnet10t"}}, {}, "row wrong: .*backbon"),
        (
            {},
            {"optimizer": "adamm"},
            "row plain one: timm has no optimizer 'adamm'; did",
        ),
        ({}, {"epoch": 1}, "training: there is no 'epoch'; did you mean 'epochs'?"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_before_any_is_trained(
    write, tmp_path, monkeypatch, row, training, message
):
    monkeypatch.setattr(module, "run", None)
    rows = {**SETTINGS["rows"], "wrong": {"model": "image_classifier", **row}}
    name = write(rows, training={**SETTINGS["training"], **training})
    with pytest.raises(ValueError, match=f"{re.escape(name)}: {message}"):
        vizoo.compare(name, tmp_path / "out")


def test_uniform_widths_come_near_to_their_limits():
    widths = [0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0]
    convert = {"size": [16, 16], "widths": widths}
    net = create_model("image_classifier", backbone="test_resnet", classes=3, convert=convert)
    bench = candidates.Bench.here(net, search_space(net), size=(16, 16))
    costs = [candidates._cost(bench, "macs", bench.space.largest()) * s for s in (0.9, 0.6, 0.3)]
    widths = [candidates._uniform(bench, {"macs": bound}) for bound in costs]
    assert len(set(widths)) == 3
    for architecture, bound in zip(widths, costs, strict=True):
        assert 0.95 * bound < candidates._cost(bench, "macs", architecture) <= bound


def test_channels_are_important_as_the_loss_says(write):
    first = {**CONVERTED, "pretrain": 1, "pick": {"by": "uniform"}, "limits": {"macs": "50%"}}
    by_loss = {**first, "importance": "taylor"}
    config = CompareConfig.read(write({"magnitude": first, "taylor": by_loss}))
    config.data.setup("fit")
    nets = [candidates._supernet(config, row, 0, Shared()).net for row in config.rows.values()]
    states = [net.state_dict() for net in nets]
    assert all(torch.equal(one, states[1][name]) for name, one in states[0].items())
    plans = [net.architecture["convert"]["plan"]["widths"] for net in nets]
    assert plans[0].keys() == plans[1].keys()
    assert any(plans[0][name]["order"] != other["order"] for name, other in plans[1].items())


def test_sigterm_is_no_success(write, tmp_path, monkeypatch):
    """Lightning raises a SystemExit without a code, of which a shell would see 0."""
    step = ClassificationTask.training_step

    def terminated(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(*args)

    monkeypatch.setattr(ClassificationTask, "training_step", terminated)
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["compare", "--config", write(), "--out", str(tmp_path / "out")]) == 143
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.usefixtures("unpictured")
def test_a_row_that_fails_stops_no_other(write, tmp_path, capsys, caplog, monkeypatch):
    models = {"plain one": RESNET, "random": CELL}

    def others_done(config, row, seed, shared):
        if row not in models:
            return run(config, row, seed, shared)
        return a_run(row, seed, digest=config.digest(row), model=models[row])

    monkeypatch.setattr(module, "run", others_done)
    broken = {**CONVERTED, "model_args": FEW, "pick": {"by": "random"}}
    broken["limits"] = {"parameters": 10}
    name = write({"broken": broken, **SETTINGS["rows"]}, seeds=[0])
    out = tmp_path / "out"
    words = ["compare", "--config", name, "--out", str(out)]
    assert main([*words, "--json", "--threads", "1"]) == 1
    assert "broken, seed 0 failed, the others go on: no architecture has" in caplog.text
    printed, told = capsys.readouterr()
    assert told.splitlines() == [
        f"vizoo: runs: {number} of 3, {name}, seed 0"
        for number, name in enumerate(["broken", "plain one", "random"])
    ]
    printed = json.loads(printed)
    assert list(printed["failed"]) == ["broken, seed 0"]
    assert "number of parameters" in printed["failed"]["broken, seed 0"]
    assert {row["row"] for row in printed["rows"]} == {"plain one", "random"}
    assert "number of parameters" in (out / "report.html").read_text()
    assert not (out / "runs" / "broken" / "0.json").exists()  # is tried again
    assert main(words) == 1
    told = capsys.readouterr().out
    assert "failed: broken, seed 0" in told and "0 of 1 differences" in told
    only = write({"broken": broken}, seeds=[0])
    with pytest.raises(ValueError, match="all runs failed"):
        vizoo.compare(only, tmp_path / "none")


def test_what_diverges_counts_with_what_it_reaches(write, tmp_path):
    row = {**SETTINGS["rows"]["plain one"], "lr": 1e30}
    made = vizoo.compare(write({"diverged": row}, seeds=[0]), tmp_path / "out")
    assert not made.failed and made.rows[0]["loss"] is None and made.rows[0]["top1"] < 70


def test_latencies_are_of_each_network(write):
    config = CompareConfig.read(write(data=NO_IMAGES))
    times, energies = latencies(config, [{"model": one} for one in (RESNET, CELL, RESNET)])
    assert times[0] == times[2] != times[1] and min(times) > 0
    assert len(energies) == 3


def test_differences_by_welch_and_holm():
    scores = {"a": [90.0, 91.0, 92.0], "b": [80.0, 81.0, 82.0], "c": [90.5, 90.0, 92.0]}
    known = {(d["row"], d["other"]): d for d in differences(scores)}
    assert known["a", "b"]["difference"] == 10
    # Equal variances, so 4 degrees of freedom, of which the distribution has a closed form.
    angle = math.atan(10 / math.sqrt(1 / 3 + 1 / 3) / 2)
    p = 1 - math.sin(angle) * (1 + math.cos(angle) ** 2 / 2)
    assert known["a", "b"]["p"] == pytest.approx(p, rel=0.01)
    assert known["a", "b"]["corrected"] == pytest.approx(3 * known["a", "b"]["p"], rel=0.01)
    assert known["a", "b"]["beyond"] is True and known["a", "c"]["corrected"] > 0.5
    noisy = {"a": [1.0, 5.0, 9.0], "b": [2.0, 9.0, 11.0]}
    assert differences(noisy)[0]["beyond"] is False
    assert differences({"a": [1.0, 1.0], "b": [2.0, 2.0]})[0]["p"] is None
    with warnings.catch_warnings():  # one row may have no scatter, and none is told
        warnings.simplefilter("error")
        assert differences({"a": [1.0, 1.0], "b": [2.0, 3.0]})[0]["p"] == 0.205
    alone = differences({"a": [1.0], "b": [2.0, 3.0]})[0]
    assert alone["p"] is None and alone["corrected"] is None and alone["beyond"] is None


def test_the_report_has_timms_columns_fronts_and_notes(write, tmp_path):
    rows = {
        "good": {**SETTINGS["rows"]["plain one"], "note": "wide & <slow>"},
        "small": SETTINGS["rows"]["random"],
        "bad": SETTINGS["rows"]["random"],
    }
    config = CompareConfig.read(write(rows))
    figures = {"good": (90.0, 10**6), "small": (70.0, 10**5), "bad": (60.0, 2 * 10**6)}
    runs = [
        a_run(name, seed, top1 + seed, size)
        for seed in (0, 1)
        for name, (top1, size) in figures.items()
    ]
    measured = {"latency": [3.0, 1.0, 5.0] * 2, "joules": [None] * 6}
    made, pairs = report.write_report(config, runs, measured, {}, tmp_path)
    assert [row["row"] for row in made] == ["good", "small", "bad"] and len(pairs) == 3
    fronts = ["latency", "parameters"]
    assert [row["fronts"] for row in made] == [fronts, fronts, []]
    with (tmp_path / "results.csv").open() as file:
        header, first, *_ = csv.reader(file)
    timm = "model,top1,top1_err,top5,top5_err,param_count,img_size,crop_pct,interpolation"
    assert ",".join(header).startswith(timm)
    told = dict(zip(header, first, strict=True))
    assert (told["model"], told["top1"], told["top1_err"]) == ("good", "90.5", "9.5")
    assert (told["param_count"], told["img_size"], told["interpolation"]) == (
        "1.0",
        "16",
        "bicubic",
    )
    assert told["joules"] == "" and told["top1_std"] == "0.707"
    page = (tmp_path / "report.html").read_text()
    assert "wide &amp; &lt;slow&gt;" in page and page.count("<svg") == 2 and "90.5 ± 0.7" in page
    assert "https://" not in page.replace("http://www.w3.org", "")
    kept = json.loads((tmp_path / "comparison.json").read_text())
    assert kept["rows"] == made and kept["differences"] == pairs


@pytest.mark.slow
def test_the_generated_comparison_takes_a_minute(tmp_path):
    made = vizoo.compare("compare/generated.yaml", tmp_path)
    assert not made.failed and len(made.rows) == 6
