"""The configs of CovidNet3D as a user types them: search, retraining, test, every data set."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from vizoo.__main__ import main
from vizoo.datasets.ct.writers import write_scans
from vizoo.nas import Architecture, search_space
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import load_weights

pytest.importorskip("nibabel")

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs" / "classification").glob("covidnet3d_*.yaml"))
OF_SCANS = [path for path in CONFIGS if "generated" not in path.stem]  # the others are run below
LAYOUTS = {"CCCCII": "cc-ccii", "MosMed": "mosmed", "COVIDCTset": "covid-ctset"}
SUPERNET = create_model("covidnet3d_tiny")
SUBNET = search_space(SUPERNET).smallest()


def _inner(settings):
    """The task's and the CT data module's arguments, wherever they stand."""
    model, data = (settings[part]["init_args"] for part in ("model", "data"))
    return model.get("task", {}).get("init_args", model), data.get("data", {}).get(
        "init_args", data
    )


def _shrunken(config, folder, monkeypatch, epochs=1):
    """The same settings for a few small scans; returns the file's name."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))  # where scans are cached
    settings = yaml.safe_load(config.read_text())
    task, data = _inner(settings)
    task["model"] = "covidnet3d_tiny"
    for role in ("train", "val", "test", "predict"):
        for entry in data.get(role, []):
            arguments, kind = entry["init_args"], entry["class_path"].rpartition(".")[2]
            arguments["preset"] = {**arguments["preset"], "size": [16, 16], "slices": 8}
            if kind == "GeneratedCT":
                arguments |= {"length": 6, "depth": 8}
                continue
            monkeypatch.setenv(arguments["root"].removeprefix("$"), str(folder / kind))
            if not (folder / kind).is_dir():
                write_scans(folder / kind, LAYOUTS[kind], (6, 1, 3), shape=(8, 24, 24))
    if "samples" in settings["model"]["init_args"]:
        settings["model"]["init_args"] |= {"samples": 2, "recalibration_batches": 1}
    data |= {"batch_size": 2, "eval_batch_size": 2, "workers": 0}
    if "val" not in data:
        data["val_share"] = 0.25
    trainer = {"max_epochs": epochs, "accelerator": "cpu", "devices": 1, "logger": False}
    settings["trainer"] |= {**trainer, "limit_train_batches": 2, "enable_progress_bar": False}
    settings["trainer"]["check_val_every_n_epoch"] = 1
    callbacks = settings["trainer"].get("callbacks", [])  # the rate is watched by a logger only
    kept = [entry for entry in callbacks if not entry["class_path"].endswith("RateMonitor")]
    settings["trainer"]["callbacks"] = kept
    name = f"{config.stem}.yaml"
    (folder / name).write_text(yaml.safe_dump(settings))
    return name


@pytest.mark.usefixtures("distributed_ends")
@pytest.mark.parametrize("config", OF_SCANS, ids=lambda path: path.stem)
def test_built_in_configs_run(config, tmp_path, monkeypatch):
    """Its own settings and its own reader, on small scans and with the tiny network."""
    task, _ = _inner(yaml.safe_load(config.read_text()))
    arguments = {k: v for k, v in task["model_args"].items() if k != "subnet"}
    _build(task["model"], json.dumps(arguments))
    name = _shrunken(config, tmp_path, monkeypatch)
    if "retrain" in config.stem:
        SUBNET.save("architecture.json")
    assert main(["fit", "--config", name]) == 0
    net = load_weights("checkpoints/last.ckpt")
    assert net.classes and net.input["size"] == [16, 16]
    if "search" in config.stem:
        assert Architecture.load("architecture.json") in search_space(net)
    else:
        assert net.architecture["subnet"] == SUBNET.to_json()


@cache  # configs are of the same networks
def _build(model, arguments):
    with torch.device("meta"):
        create_model(model, **json.loads(arguments))


@pytest.mark.slow
def test_a_search_runs_on_two_processes(tmp_path, monkeypatch):
    config = ROOT / "configs" / "classification" / "covidnet3d_search_cccii.yaml"
    name = _shrunken(config, tmp_path, monkeypatch)
    done = subprocess.run(
        [sys.executable, "-m", "vizoo", "fit", "--config", name, "--trainer.devices", "2"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Architecture.load("architecture.json") in search_space(SUPERNET)


@pytest.fixture
def generated(tmp_path, monkeypatch):
    names = {}
    for part in ("search", "retrain"):
        config = ROOT / "configs" / "classification" / f"covidnet3d_{part}_generated.yaml"
        names[part] = _shrunken(config, tmp_path, monkeypatch)
    return names


def _error(capsys, *words):
    capsys.readouterr()
    assert main(list(words)) == 2
    said = [x for x in capsys.readouterr().err.splitlines() if x.startswith("vizoo: error")]
    assert len(said) == 1
    return said[0]


def test_search_then_retrain_then_resume_and_test(generated, capsys):
    found = ["--trainer.default_root_dir", "found"]
    assert main(["fit", "--config", generated["search"], *found]) == 0
    architecture = json.loads(Path("found/architecture.json").read_text())
    assert Architecture.load("found/architecture.json") in search_space(SUPERNET)
    retrain = ["--config", generated["retrain"]]
    flag = ["--model.model_args.subnet", "found/architecture.json"]
    assert main(["fit", *retrain, *flag]) == 0
    last = ["--ckpt_path", "checkpoints/last.ckpt"]
    kept = torch.load("checkpoints/last.ckpt", weights_only=True)
    assert load_weights("checkpoints/last.ckpt").input["size"] == [16, 16]
    assert kept["hyper_parameters"]["model_args"] == {"classes": 3, "subnet": architecture}
    assert kept["classes"] == ["CP", "NCP", "Normal"]
    # The file of the subnet and what the checkpoint holds of it agree.
    assert main(["fit", *retrain, *flag, *last, "--trainer.max_epochs", "2"]) == 0
    assert torch.load("checkpoints/last.ckpt", weights_only=True)["epoch"] == 1
    assert not Path("architecture.json").exists()  # which the config names
    assert main(["test", *retrain, *last]) == 0
    assert json.loads(Path("test_report.json").read_text())["classes"] == kept["classes"]
    other = search_space(SUPERNET).largest()
    other.save("other.json")
    wrong = ["--model.model_args.subnet", "other.json"]
    assert "model.model_args.subnet is" in _error(capsys, "test", *retrain, *wrong, *last)


def test_retraining_wants_what_a_search_wrote(generated, capsys):
    settings = yaml.safe_load(Path(generated["retrain"]).read_text())
    # No scan is looked at, and settings of sets take long to read.
    settings["data"] = {"class_path": "lightning.pytorch.demos.boring_classes.BoringDataModule"}
    Path(generated["retrain"]).write_text(yaml.safe_dump(settings))
    said = _error(capsys, "fit", "--config", generated["retrain"])
    assert "architecture.json: no such file" in said
    assert "`subnet` in model_args" in said
    Path("architecture.json").write_text('{"version": 1}')
    assert "not an architecture" in _error(capsys, "fit", "--config", generated["retrain"])
    Path("architecture.json").write_text("{")
    assert "not valid JSON" in _error(capsys, "fit", "--config", generated["retrain"])
    subnet = SUBNET.replace({"stages.0.blocks.0": "mbconv9_9"})
    # What `vizoo subnet` writes beside weights has more in it.
    for content in (subnet.to_json(), {"met": True, "architecture": subnet.to_json()}):
        Path("architecture.json").write_text(json.dumps(content))
        assert "mbconv9_9" in _error(capsys, "fit", "--config", generated["retrain"])
