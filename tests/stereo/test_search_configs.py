"""The built-in configs that train supernets: they fit the networks, and every stage runs."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
import trees
import yaml

from vizoo.__main__ import main
from vizoo.datasets.stereo import GeneratedStereo, PairFolders
from vizoo.nas.supernet import search_space
from vizoo.nas.training import Stage
from vizoo.nas.training.shrinking import _stage_spaces
from vizoo.stereo.task import StereoTask
from vizoo.vision.configs.task import FitConfig
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
    spaces = _stage_spaces(space, stages)
    counts = [part.count() for part in spaces]
    assert counts[0] == 1 and counts == sorted(set(counts)) and spaces[-1] == space
    sorting = [stage.sort_channels for stage in stages]
    assert [stage.name for stage in stages][sorting.index(True)] == "expand"
    assert settings["trainer"]["max_epochs"] == -1


def _trainings():
    """A config and how many of its stages are trained; another with the same ones is slow."""
    for path in CONFIGS:
        again = path.stem == "easnet_shrinking_sceneflow"
        yield pytest.param(path, None, id=path.stem, marks=[pytest.mark.slow] if again else [])
        if again:
            yield pytest.param(path, 1, id=f"{path.stem}-first")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Environment variables of the configs, and what lies there."""
    root = tmp_path_factory.mktemp("data")
    return {
        "VIZOO_STOCK": trees.stock(root / "stock"),
        "SCENEFLOW": trees.sceneflow(root / "sceneflow"),
        "HOME": root,  # where scenes are cached, which some configs have in common
    }


@pytest.mark.parametrize(("config", "count"), list(_trainings()))
def test_a_few_steps_of_every_stage(config, count, data, tmp_path, monkeypatch):
    for name, folder in data.items():
        monkeypatch.setenv(name, str(folder))
    monkeypatch.chdir(tmp_path)
    settings = yaml.safe_load(config.read_text())
    stages = settings["model"]["init_args"]["stages"]
    stages[:] = stages[:count]
    for stage in stages:
        stage |= {"epochs": 1, "warmup_epochs": 0}
    settings["model"]["init_args"]["recalibration_batches"] = 1
    _task(settings)["init_weights"] = None  # of another range
    # The stages are the same with a level and three quarters of the weights less.
    small = {"levels": 3} if _task(settings)["model"] == "easnet_extended" else {}
    arguments = _task(settings).get("model_args", {})
    if "convert" in arguments:
        arguments["convert"]["size"] = [48, 96]
    _task(settings)["model_args"] = {**arguments, "max_disparity": 48, **small}
    trainer = {"limit_train_batches": 1, "limit_val_batches": 1, "logger": False, "callbacks": []}
    settings["trainer"] |= {**trainer, "enable_progress_bar": False, "num_sanity_val_steps": 0}
    settings["trainer"]["check_val_every_n_epoch"] = len(stages)  # after the last one
    crop = {"augmentation": "strong", "crop_height": 24, "crop_width": 48}
    settings["data"]["init_args"] |= {"workers": 0, "batch_size": 2, "eval_batch_size": 1, **crop}
    settings["data"]["init_args"]["samples_per_epoch"] = 2
    for role in {"train", "val"} & settings["data"]["init_args"].keys():
        for made in settings["data"]["init_args"][role]:
            if "height" in made["init_args"]:  # scenes that are generated, larger than the crop
                made["init_args"] |= {"height": 48, "width": 96, "max_disparity": 32}
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


@functools.cache
def scenes():
    return [*GeneratedStereo(2, 96, 192, seed=5, max_disparity=36)]


def write_pairs(root, layout, truth="truth.png"):
    """Generated pairs as files whose names the layout makes of a number and a kind of file."""
    for number, scene in enumerate(scenes()):
        for kind in ("left.png", "right.png", truth):
            path = root / layout(number, *kind.split("."))
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == truth:
                write_disparity(path, scene["disparity"][0].numpy())
            else:
                write_image(path, scene[kind[:-4]])


def in_folders(number, kind, suffix):
    return f"{number}/{kind}.{suffix}"


def in_sides(number, kind, suffix):
    return f"{kind}/{number}.{suffix}"


@pytest.mark.parametrize("truth", ["truth.png", "disparity.pfm"])
@pytest.mark.parametrize("layout", [in_folders, in_sides])
def test_pairs_find_their_truth(tmp_path, layout, truth):
    write_pairs(tmp_path, layout, truth)
    assert [bool(sample["valid"].any()) for sample in PairFolders(tmp_path)] == [True, True]


def test_a_folder_of_ones_own(monkeypatch, tmp_path):
    write_pairs(tmp_path, in_sides, "disparity.pfm")
    monkeypatch.setenv("PAIRS", "")
    words = ["--evaluate", str(tmp_path), "--architecture", "smallest", "--input", "96x192"]
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 1)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # which keeps scenes
    (out := tmp_path / "out").mkdir()
    words += ["--batches", "1", "--out", str(out / "small.safetensors")]
    assert main(["subnet", "--supernet", "easnet_light.generated", *words]) == 0
    errors = json.loads((out / "small.json").read_text())["errors"]
    assert errors["config"] == str(tmp_path) and errors["subnet"]["before"]["val/epe"] > 0
    assert not (tmp_path / "home/.cache/vizoo/evaluations").exists()  # such data may change


def test_a_folder_without_truth(monkeypatch, tmp_path, capsys):
    write_pairs(tmp_path, in_folders)
    words = ["--architecture", "smallest", "--out", str(tmp_path / "small.safetensors")]
    words += ["--supernet", "easnet_light.generated", "--evaluate", str(tmp_path)]
    monkeypatch.setattr("vizoo.vision.subnets.bench.Bench.costs", None)
    monkeypatch.setenv("PAIRS", "")
    (tmp_path / "1/truth.png").unlink()
    with pytest.warns(UserWarning, match="1 of 2 pairs have no true disparities .* 1 first"):
        assert len(PairFolders(tmp_path)) == 1
    (tmp_path / "0/truth.png").unlink()
    for said in ("no true disparities beside any of its 2 pairs", "no pairs in it"):
        assert main(["subnet", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        for number in "01":
            (tmp_path / number / "left.png").unlink(missing_ok=True)
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
    with pytest.raises(FileNotFoundError, match="left: no image in this folder"):
        PairFolders(tmp_path)
    for side in ("left", "right"):
        write_image(tmp_path / side / "0.png", torch.zeros(3, 2, 4))
    with pytest.raises(FileNotFoundError, match="no true disparities beside any of its 1 pairs"):
        PairFolders(tmp_path)


def test_truth_of_some_pairs_goes_by_its_name(tmp_path):
    """As KITTI's, whose second frames have none; what is no image does not count."""

    def kitti(number, kind, suffix):
        folder = {"left": "image_2", "right": "image_3", "truth": "disp_occ_0"}[kind]
        return f"{folder}/000000_{10 + number}.{suffix}"

    write_pairs(tmp_path, kitti)
    truths = [tmp_path / "disp_occ_0" / f"000000_1{number}.png" for number in (0, 1)]
    truths[0].unlink()
    for name in ("image_2/Thumbs.db", "image_3/._000000_10.png", "disp_occ_0/.DS_Store"):
        (tmp_path / name).write_text("no image")
    with pytest.warns(UserWarning, match="1 of 2 pairs have no true disparities .*_10 first"):
        (known,) = PairFolders(tmp_path)
    assert known["name"] == "000000_11" and known["valid"].any()
    pairs = PairFolders(tmp_path, needs_truth=False)
    assert [bool(pair["valid"].any()) for pair in pairs] == [False, True]
    truths[1].rename(truths[1].with_name("other.png"))
    with pytest.warns(UserWarning, match="1 disparity maps for 2 images, and none has the name"):
        pairs = PairFolders(tmp_path, needs_truth=False)
    assert not any(pair["valid"].any() for pair in pairs)
    (tmp_path / "image_3/000000_10.png").unlink()
    with pytest.raises(ValueError, match="image_2 holds 2 images and .*image_3 1"):
        PairFolders(tmp_path)
