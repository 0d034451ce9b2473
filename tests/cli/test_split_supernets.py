"""`vizoo split` on supernets of the zoo, with the data of their shipped configs, made smaller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from vizoo.__main__ import main
from vizoo.nas.lid import SplitTree
from vizoo.nas.supernet import search_space
from vizoo.vision.configs.builtin import resolve_config
from vizoo.vision.hub.create import create_model


def small(name, folder, *, change):
    """A shipped config with other data, as a file in a folder."""
    content = yaml.safe_load(Path(resolve_config(name)).read_text())
    data = content["data"]["init_args"]
    change(data["data"]["init_args"] if "data" in data else data)
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def few_scans(data):
    for part in ("train", "val"):
        data[part][0]["init_args"].update(length=16, cache=None)  # halved for a search
    data["workers"] = 0


def few_scenes(data):
    for part in ("train", "val"):
        data[part] = data[part][:1]
        data[part][0]["init_args"].update(length=4, height=64, width=96, cache=None)
    data.update(crop_height=64, crop_width=96, workers=0, samples_per_epoch=None, weights=None)
    data.update(augmentation="none")


@pytest.mark.parametrize(
    ("supernet", "config", "change", "choices", "settings"),
    [
        pytest.param(
            "covidnet3d_tiny",
            "classification/covidnet3d_search_generated.yaml",
            few_scans,
            ["stages.1.blocks.0"],
            ["--k", "6", "--batch-size", "8"],
            id="operations of CovidNet3D",
        ),
        pytest.param(
            "easnet_light",
            "search/easnet_light_generated.yaml",
            few_scenes,
            ["scale", "stages.0.blocks.0.kernel"],
            ["--k", "2", "--batch-size", "4"],
            id="scales and kernels of EASNet",
        ),
    ],
)
def test_any_supernet_is_split(tmp_path, capsys, supernet, config, change, choices, settings):
    config = small(config, tmp_path, change=change)
    out = str(tmp_path / "tree.json")
    words = ["--supernet", supernet, "--data", config, "--choices", *choices]
    assert main(["split", *words, *settings, "--batches", "1", "--out", out, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    space = search_space(create_model(supernet))
    tree = SplitTree.load(out, space)
    split = tree.splits["root"]
    assert set(report["splits"]["root"]["scores"]) == set(choices) and split.choice in choices
    assert sorted(map(str, split.groups[0] + split.groups[1])) == sorted(
        map(str, space.choices[split.choice].values)
    )
    assert sum(report["leaves"].values()) == space.count()
