"""Commands take whatever `create_model` takes: tags, repositories, folders, files."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch
import toy_supernet

from vizoo.__main__ import main
from vizoo.vision.hub import registry
from vizoo.vision.hub.create import create_model, open_model
from vizoo.vision.hub.sharing import save_pretrained
from vizoo.vision.io.images import write_image
from vizoo.vision.subnets.bench import load_supernet

FACTS = {"licence": "Apache-2.0", "trained_on": "nothing"}


def spellings(net, server, hub, folder):
    """Register, publish and write a network; every spelling by which commands take it."""
    record = save_pretrained(net, folder, **FACTS)
    content = (folder / "model.safetensors").read_bytes()
    server.files["/x.safetensors"] = content
    record = replace(record, sources=(server.url("/x.safetensors"),))
    entry = registry.model_info(net.architecture["name"])
    registry.register_model(task=entry.task, weights={"tag": record})(entry.function)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.repositories["org/net"] = [(hashlib.sha1(content).hexdigest(), files)]
    name = entry.name
    return [
        *(name, f"{name}.tag", "hf-hub:org/net", "hf-hub:org/net@main"),
        *(f"local-dir:{folder}", str(folder), str(folder / "model.safetensors")),
    ]


@pytest.fixture
def supernet(monkeypatch, server, hub, tmp_path):
    toy_supernet.register(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return spellings(create_model("toy", widths=(4, 8)), server, hub, tmp_path / "release")


def test_supernets(supernet, capsys):
    for source in supernet:
        net, space, trained = load_supernet(source)
        assert net.architecture["widths"] == [4, 8] and len(space) and trained
    assert (
        main(["subnet", "--supernet", "toy.tga", "--max-params", "1k", "--out", "x.safetensors"])
        == 2
    )
    assert "did you mean toy.tag?" in capsys.readouterr().err


def test_a_measurement_needs_no_weights(supernet, server, monkeypatch):
    monkeypatch.setenv("VIZOO_OFFLINE", "1")
    assert open_model("toy", download=False)[1] is False and not server.requests
    monkeypatch.delenv("VIZOO_OFFLINE")
    assert open_model("toy")[1] is True
    assert open_model("toy", download=False)[1] is True  # now that they are here


def test_infer(monkeypatch, server, hub, tmp_path, capsys):
    registry.list_models()  # what is imported later would be forgotten with the copy
    monkeypatch.setattr(registry, "_ENTRIES", {**registry._ENTRIES})
    net = create_model("fadnet_plus_micro")
    pair = [str(tmp_path / f"{side}.png") for side in "lr"]
    for path in pair:
        write_image(path, torch.rand(3, 16, 24))
    for source in spellings(net, server, hub, tmp_path / "release")[1::2]:
        words = ["--model", source, "--out", str(tmp_path / "out"), "--no-check", "--json"]
        words += ["--device", "cpu", "--format", "npy"]
        assert main(["infer", "stereo", *pair, *words]) == 0, capsys.readouterr().err
        assert "error" not in json.loads(capsys.readouterr().out)["pairs"][0]
    monkeypatch.setenv("VIZOO_OFFLINE", "1")
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "empty"))
    words = ["--model", "fadnet_plus_micro.tag", "--out", str(tmp_path / "out")]
    assert main(["infer", "stereo", *pair, *words]) == 2
    said = capsys.readouterr().err
    assert "since VIZOO_OFFLINE=1" in said and "put a copy of the file at" in said
    assert said.count("\n") == 1


def test_a_task_trains_on_from_published_weights(monkeypatch, server, hub, tmp_path):
    from vizoo.stereo.task import StereoTask

    registry.list_models()  # what is imported later would be forgotten with the copy
    monkeypatch.setattr(registry, "_ENTRIES", {**registry._ENTRIES})
    net = create_model("fadnet_plus_micro")
    names = spellings(net, server, hub, tmp_path / "release")[1:]
    want = net.state_dict()["cunet.upconv0.0.weight"]
    for source in names:
        task = StereoTask("fadnet_plus_micro", init_weights=source)
        assert task.net.state_dict()["cunet.upconv0.0.weight"].equal(want)
    assert StereoTask("fadnet_plus_micro.tag").net.architecture["name"] == "fadnet_plus_micro"
    with pytest.raises(ValueError, match="name the model, and give this as init_weights"):
        StereoTask("hf-hub:org/net")
