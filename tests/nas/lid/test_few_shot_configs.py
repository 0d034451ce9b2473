"""The built-in configs of few-shot training: they fit the networks, and leaves are ranked."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import yaml
from PIL import Image

from vizoo.__main__ import main
from vizoo.nas.lid import SplitTree

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "search"
LEAVES = {"0", "1"}


def read(name):
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())


def fit(settings, *words):
    settings["trainer"] |= {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    Path("small.yaml").write_text(yaml.safe_dump(settings))
    return main(["fit", "--config", "small.yaml", *words])


def test_leaves_of_generated_images_are_ranked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = read("nas_lid_nasbench201_generated")
    small["model"]["init_args"] |= {"epochs": [1, 1], "recalibration_batches": 1}
    small["model"]["init_args"]["splitter"]["init_args"]["batches"] = 1
    small["data"]["init_args"]["train"][0]["init_args"]["length"] = 32
    small["trainer"]["limit_train_batches"] = 1
    assert fit(small) == 0
    tree = SplitTree.load("leaves/tree.json")
    assert set(tree.leaves) == LEAVES <= set(tree.checkpoints)
    assert all(split.choice.startswith("edges.") for split in tree.splits.values())
    capsys.readouterr()
    words = ("--tree", "leaves/tree.json", "--data", "small.yaml", "--metric", "val/accuracy")
    draw = ("--samples", "4", "--batches", "1", "--out", "ranking", "--json")
    assert main(["rank", *words, *draw]) == 0
    rows = json.loads(Path("ranking/evaluations.json").read_text())["evaluations"]
    assert len(rows) == 4


def test_the_published_one_fits_the_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind, index in product(range(10), range(2)):
        folder = tmp_path / f"cifar10/{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (25 * kind, 100 * index, 0)).save(folder / f"{index}.png")
    monkeypatch.setenv("CIFAR10", str(tmp_path / "cifar10"))
    settings = read("nas_lid_nasbench201")
    settings["model"]["init_args"]["recalibration_batches"] = 1
    settings["data"]["init_args"] |= {"batch_size": 2, "eval_batch_size": 2, "workers": 0}
    assert fit(settings, "--trainer.fast_dev_run", "true") == 0
