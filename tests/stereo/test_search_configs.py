"""The built-in configs that train supernets: they fit the networks, and every stage runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trees
import yaml

from vizoo.__main__ import main
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.nas.commands._task import FitConfig
from vizoo.nas.supernet import search_space
from vizoo.nas.training import Stage
from vizoo.nas.training.shrinking import stage_spaces
from vizoo.stereo.task import StereoTask
from vizoo.vision.hub.weights import load_weights
from vizoo.vision.io.disparity import write_disparity
from vizoo.vision.io.images import write_image

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs" / "search").glob("easnet*.yaml"))
SHRINKING = [path for path in CONFIGS if "shrinking" in path.stem]


def _task(settings):
    return settings["model"]["init_args"]["task"]["init_args"]


@pytest.mark.parametrize("config", SHRINKING, ids=lambda path: path.stem)
def test_the_stages_open_everything_bit_by_bit(config):
    settings = yaml.safe_load(config.read_text())
    space = search_space(StereoTask(**_task(settings)).net)
    entries = settings["model"]["init_args"]["stages"]
    stages = [Stage(**{**entry, "sampler": None}) for entry in entries]
    spaces = stage_spaces(space, stages)
    counts = [part.count() for part in spaces]
    assert counts[0] == 1 and counts == sorted(set(counts)) and spaces[-1] == space
    sorting = [stage.sort_channels for stage in stages]
    assert [stage.name for stage in stages][sorting.index(True)] == "expand"
    assert settings["trainer"]["max_epochs"] == -1


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_few_steps_of_every_stage(config, tmp_path, monkeypatch):
    monkeypatch.setenv("SCENEFLOW", str(trees.sceneflow(tmp_path / "sceneflow")))
    monkeypatch.setenv("HOME", str(tmp_path))  # where scenes are cached
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load(config.read_text())
    stages = settings["model"]["init_args"]["stages"]
    for stage in stages:
        stage |= {"epochs": 1, "warmup_epochs": 0}
    settings["model"]["init_args"]["recalibration_batches"] = 1
    _task(settings)["model_args"] = {**_task(settings).get("model_args", {}), "max_disparity": 48}
    trainer = {"limit_train_batches": 1, "limit_val_batches": 1, "logger": False, "callbacks": []}
    settings["trainer"] |= {**trainer, "enable_progress_bar": False, "num_sanity_val_steps": 0}
    crop = {"augmentation": "strong", "crop_height": 24, "crop_width": 48}
    settings["data"]["init_args"] |= {"workers": 0, "batch_size": 2, "eval_batch_size": 1, **crop}
    settings["data"]["init_args"]["samples_per_epoch"] = 2
    if "val_share" in settings["data"]["init_args"]:
        settings["data"]["init_args"]["val_share"] = 0.3
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "--config", "small.yaml"]) == 0
    written = {path.name for path in (tmp_path / "checkpoints").glob("stage*.ckpt")}
    assert written == {f"stage{i}_{stage['name']}.ckpt" for i, stage in enumerate(stages, 1)}
    net = load_weights(tmp_path / "checkpoints" / "last.ckpt")
    with torch.inference_mode():
        assert net(*torch.rand(2, 1, 3, 48, 96)).isfinite().all()


def test_stereo_supernets_are_evaluated_on_generated_pairs(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = FitConfig.read("evaluate/stereo.yaml")
    values, shown = config.metrics(config.module.net, batches=1)
    assert shown == ["val/epe"] and values["val/epe"] > 0
    assert config.recalibrate(config.module.net, 1)["samples"] == 4
    config.data.setup("validate")
    assert len(config.data.sets("val")[0]) == 100


def test_pairs_of_ones_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PAIRS", str(tmp_path))
    pair = GeneratedStereo(1, 96, 192, seed=5, max_disparity=36)[0]
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        write_image(tmp_path / side / "a.png", pair[side])
    (tmp_path / "disparity").mkdir()
    write_disparity(tmp_path / "disparity/a.pfm", pair["disparity"][0].numpy())
    config = FitConfig.read("evaluate/stereo_pairs.yaml")
    values, _ = config.metrics(config.module.net)
    assert values["val/epe"] > 0
