"""`vizoo release`: a training run becomes a folder, and the record to paste is what it says."""

import json
import re

import pytest
import torch
from loopback import Hub, serving
from released import read_record

from vizoo.__main__ import main
from vizoo.vision.hub import registry
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.record import WeightsRecord
from vizoo.vision.hub.sharing import from_pretrained
from vizoo.vision.hub.weights import save_weights

FACTS = ["--licence", "Apache-2.0", "--trained-on", "generated scenes"]
METRICS = ["--metric", "kitti2015/val:epe=0.7", "--metric", "kitti2015/val:bad3=4"]
METRICS += ["--command", "x"]


@pytest.fixture(scope="module")
def micro():
    return create_model("fadnet_plus_micro", max_disparity=96)


@pytest.fixture
def checkpoint(tmp_path, micro, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {
        "pytorch-lightning_version": "2.6.6",
        "hyper_parameters": {"model": "fadnet_plus_micro", "model_args": {"max_disparity": 96}},
        "state_dict": {f"net.{key}": value for key, value in micro.state_dict().items()},
    }
    torch.save(content, tmp_path / "last.ckpt")
    return "last.ckpt"


def same(net, other):
    pairs = zip(net.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_release(checkpoint, micro, capsys):
    words = ["--input", "mean=[0.5, 0.5, 0.5]", "--training", "vizoo fit --config x.yaml"]
    assert main(["release", checkpoint, "--out", "net", *FACTS, *METRICS, *words]) == 0
    said = capsys.readouterr().out
    net = from_pretrained("net")
    assert same(net, micro) and net.architecture["max_disparity"] == 96
    record = read_record("net")
    assert record.metrics == {"kitti2015/val": {"epe": 0.7, "bad3": 4}}
    assert record.input["mean"] == (0.5, 0.5, 0.5) and record.command == "x"
    assert record.architecture == {"max_disparity": 96, "normalization": "imagenet"}
    pasted = eval("{" + said.partition("\n\n")[2] + "}", {"WeightsRecord": WeightsRecord})
    assert pasted == {"TAG": record} and "fill in its sources" in said
    assert all(len(line) <= 100 for line in said.partition("\n\n")[2].splitlines())


def test_the_record_to_paste_works(checkpoint, micro, capsys, monkeypatch, root):
    """Registered with the file as package data, `create_model("name.tag")` has the weights."""
    from vizoo.vision.hub import download

    place = "package:weights/micro.safetensors"
    words = ["--mirror", place, "--mirror", "https://h.org/x.safetensors", "--json"]
    assert main(["release", checkpoint, "--out", "net", *FACTS, *words]) == 0
    record = WeightsRecord.from_json(json.loads(capsys.readouterr().out)["record"])
    assert record.sources == (place, "https://h.org/x.safetensors")
    from pathlib import Path

    Path("weights").mkdir()
    Path("net/model.safetensors").rename("weights/micro.safetensors")
    monkeypatch.setattr(download, "_ROOT", Path.cwd())
    entry = registry.model_info("fadnet_plus_micro")
    registry.list_models()  # what is imported later would be forgotten with the copy
    monkeypatch.setattr(registry, "_ENTRIES", {**registry._ENTRIES})
    registry.register_model(task="stereo", weights={"mine": record})(entry.function)
    assert same(create_model("fadnet_plus_micro.mine"), micro)


def test_half(checkpoint, micro, capsys):
    assert main(["release", checkpoint, "--out", "net", *FACTS, "--dtype", "float16"]) == 0
    assert read_record("net").size < 0.6 * 4 * sum(v.numel() for v in micro.state_dict().values())
    key = "cunet.upconv0.0.weight"
    found = from_pretrained("net").state_dict()[key]
    assert torch.equal(found, micro.state_dict()[key].half().float())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--metric", "epe=0.7", "--command", "x"], "write DATA:NAME=VALUE"),
        (["--metric", "kitti:epe=low", "--command", "x"], "the value as JSON"),
        (["--metric", "kitti:epe=0.7"], "metrics need --command"),
        (["--metrics", "none.json"], "none.json: no such file"),
        (["--input", "mean"], "write KEY=VALUE"),
        (["--mirror", "x.safetensors"], "is no source of weights"),
        (["--private"], "--private goes with --push"),
        (["--licence", " "], "licence is empty"),
        (["--push", "net"], "is spelled ORG/NAME"),
    ],
)
def test_wrong_words(checkpoint, capsys, words, says, tmp_path):
    assert main(["release", checkpoint, "--out", "net", *FACTS, *words]) == 2
    assert re.search(says, capsys.readouterr().err)


def test_what_is_there_stays(checkpoint, capsys, tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/mine.txt").touch()
    words = ["release", checkpoint, "--out", "net", *FACTS]
    assert main(words) == 2
    assert "net: has files already; --force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0 and (tmp_path / "net/mine.txt").exists()
    (tmp_path / "file").touch()
    assert main(["release", "none.ckpt", "--out", "file", *FACTS]) == 2
    assert "--out file: " in capsys.readouterr().err
    assert main(["release", "none.ckpt", "--out", "other", *FACTS]) == 2
    assert "none.ckpt: no such weight file" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_push(checkpoint, micro, capsys, monkeypatch, tmp_path):
    from huggingface_hub import constants

    for name in ("VIZOO_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    with serving(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url(""))
        words = ["--push", "org/net", "--json"]
        assert main(["release", checkpoint, "--out", "net", *FACTS, *words]) == 0
        (source,) = json.loads(capsys.readouterr().out)["record"]["sources"]
        assert re.fullmatch("hf-hub:org/net@[0-9a-f]{40}/model.safetensors", source)
        assert same(create_model("hf-hub:org/net"), micro)


def test_a_file_of_save_weights(checkpoint, micro, capsys):
    save_weights(micro, "net.safetensors")
    assert main(["release", "net.safetensors", "--out", "net", *FACTS]) == 0
    assert same(from_pretrained("net"), micro)
