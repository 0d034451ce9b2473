"""From a network of timm to a subnet of it that keeps to a limit, in the words of the guide."""

from __future__ import annotations

import json

import torch
import yaml

from vizoo.__main__ import main
from vizoo.nas.elastic.base import ElasticModule
from vizoo.vision.hub.weights import load_weights


def test_train_and_cut(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vizoo.vision.subnets.best._COUNTED", 8)
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 3)
    config = yaml.safe_load((root / "configs/search/convert_generated.yaml").read_text())
    data = config["data"]["init_args"]
    for part in ("train", "val"):
        data[part][0]["init_args"]["length"] = 8
    data.update(batch_size=4, workers=0)
    settings = config["model"]["init_args"]
    stage = {"name": "widths", "epochs": 2, "opens": ["*.width"], "sort_channels": "taylor"}
    settings["stages"] = [stage]
    settings["recalibration_batches"] = 1
    config["trainer"].update(accelerator="cpu", max_steps=2)  # interrupted
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "--config", "small.yaml"]) == 0
    file = "lightning_logs/version_0/checkpoints/last.ckpt"
    plans = []
    for seed in (1, 2):  # of the weights that the network is built with
        torch.manual_seed(seed)
        plans.append(load_weights(file).architecture["convert"]["plan"])
    assert plans[0] == plans[1]
    words = ["--supernet", file, "--max-params", "200k", "--input", "64x64", "--out"]
    assert main(["subnet", *words, "subnet.safetensors", "--generations", "2"]) == 0
    report = json.loads((tmp_path / "subnet.json").read_text())
    assert report["met"] and report["trained"] and report["difference_to_supernet"] == 0
    net = load_weights("subnet.safetensors")
    assert not any(isinstance(module, ElasticModule) for module in net.modules())
    assert sum(p.numel() for p in net.parameters()) <= 200e3
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, 4)
    config["trainer"]["max_steps"] = -1
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(config))
    assert (
        main(["fit", "--config", "more.yaml", "--seed_everything", "5", "--ckpt_path", file]) == 0
    )
    again = load_weights("lightning_logs/version_1/checkpoints/last.ckpt")
    assert again.architecture["convert"]["plan"] == plans[0]
