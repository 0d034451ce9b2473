"""What the five `vizoo infer` commands share: the schema of their summaries, and one bad item."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from vizoo.__main__ import main
from vizoo.datasets.ct import Chest, CTPreset
from vizoo.datasets.images import ImagePreset
from vizoo.mvs import infer as mvs_infer
from vizoo.stereo import infer as stereo_infer
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.io.images import write_image

KINDS = {"stereo": "pairs", "mvs": "views", "panorama": "panoramas", "image": "images"}
KINDS |= {"ct": "scans"}


class Constant(nn.Module):
    def forward(self, left, right):
        return torch.full_like(left[:, :1], 5.0)


def noise(*names):
    for seed, name in enumerate(names):
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 48, 3), dtype=np.uint8)
        write_image(name, pixels)


def stereo(monkeypatch, _):
    monkeypatch.setattr(stereo_infer, "load_network", lambda model, task: Constant())
    noise(*(f"{side}/{name}.png" for name in "ab" for side in ("left", "right")))
    return ("left", "right"), [24, 48]


def mvs(monkeypatch, request):
    oracle, scene = request.getfixturevalue("oracle"), request.getfixturevalue("scene")
    monkeypatch.setattr(mvs_infer, "load_network", lambda model, task: oracle)
    monkeypatch.setattr("vizoo.datasets.mvs.open_scene", lambda *_, **options: scene)
    return ("scene",), [48, 64]


def panorama(*_):
    save_weights(create_model("spheredepth_tiny", texture_level=0), "net.safetensors")
    noise("in/a.png", "in/b.png")
    return ("in",), [24, 48]


def image(*_):
    net = create_model("image_classifier", backbone="test_resnet", classes=2)
    facts = {"classes": ["a", "b"], "input": dataclasses.asdict(ImagePreset((32, 32), 1.0))}
    save_weights(net, "net.safetensors", **facts)
    noise("in/a.png", "in/b.png")
    return ("in", "--no-overlays"), [24, 48]


def ct(*_):
    net = create_model("covidnet3d_tiny", classes=2, encoding=[0, 8, 8, 8, 8])
    facts = {"classes": ["a", "b"], "input": dataclasses.asdict(CTPreset((16, 16), 4))}
    save_weights(net, "net.safetensors", **facts)
    values, *_ = Chest(1, "covid").scan((6, 20, 24))
    for number, plane in enumerate(((values + 1350) / 1500 * 255).clip(0, 255).astype(np.uint8)):
        for name in "ab":
            write_image(f"in/{name}/{number}.png", plane)
    return ("in", "--no-overlays", "--slices", "feet-first"), [6, 20, 24]


@pytest.fixture
def call(request, monkeypatch, tmp_path, small_views):
    """Calls a command on two inputs; returns it with its words and the size of an input."""
    monkeypatch.chdir(tmp_path)
    name = request.param.__name__
    words, size = request.param(monkeypatch, request)
    words = ("infer", name, *words, "--model", "net.safetensors", "--out", "out")
    return lambda *more: main([*words, "--device", "cpu", *more]), KINDS[name], size


@pytest.mark.parametrize("call", [stereo, mvs, panorama, image, ct], indirect=True)
def test_one_schema(call, tmp_path, capsys):
    run, kind, size = call
    assert run("--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["model"] == "net.safetensors"
    assert summary["device"] == "cpu" and summary["dtype"] == "float32"
    assert (
        summary["kind"] == kind and summary["items"] == summary[kind] and len(summary["items"]) >= 2
    )
    for item in summary["items"]:
        assert item["name"] and item["size"] == size and item["warnings"] == []
        assert item["seconds"] >= 0 and item["files"]
        assert all((tmp_path / file).is_file() for file in item["files"])


@pytest.mark.parametrize("call", [stereo, panorama, image, ct], indirect=True)
def test_one_bad_item(call, tmp_path, capsys):
    run, kind, _ = call
    bad = next(tmp_path.glob("*/a.png"), tmp_path / "in/a/0.png")
    bad.write_bytes(bad.read_bytes()[:60])
    assert run() == 1
    told = capsys.readouterr()
    assert told.err.splitlines()[-1] == f"vizoo: error: 1 of 2 {kind} failed"
    assert len(told.err.splitlines()) == 2 and "out/summary.json" in told.out.splitlines()
    failed, good = json.loads((tmp_path / "out/summary.json").read_text())["items"]
    assert failed["name"] == "a" and bad.name in failed["error"] and "files" not in failed
    assert good["name"] == "b" and good["files"]


@pytest.fixture
def ctrl_c():
    """Called with a pattern, presses Ctrl+C when a network runs and such a file is there."""
    hooks = []

    def press(pattern):
        def look(*_):
            if any(Path().glob(pattern)):
                signal.raise_signal(signal.SIGINT)

        hooks.append(register_module_forward_pre_hook(look))

    yield press
    hooks[0].remove()


@pytest.mark.parametrize("call", [stereo, mvs, panorama, image, ct], indirect=True)
def test_ctrl_c_leaves_what_is_finished(call, tmp_path, capsys, ctrl_c):
    run, kind, size = call
    ctrl_c("out/views/*.json" if kind == "views" else "out/a*")
    assert run(*(("--batch", "1") if kind == "images" else ())) == 130
    told = capsys.readouterr().err
    again = "; run it again to go on from what is finished"
    counted = again if kind == "views" else f" with 1 of 2 {kind} finished"
    assert told == f"\nvizoo: interrupted{counted}\n"
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    (item,) = summary["items"]
    assert summary["interrupted"] and summary["kind"] == kind and item["size"] == size
    files = {tmp_path / file for file in item["files"]}
    files |= {tmp_path / "out/summary.json", *(tmp_path / "out").glob("views/*.json")}
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("call", [stereo, panorama, image, ct], indirect=True)
def test_ctrl_c_before_anything_is_finished(call, tmp_path, capsys, ctrl_c):
    run, kind, _ = call
    ctrl_c("*")
    assert run() == 130
    told = f"\nvizoo: interrupted with 0 of 2 {kind} finished; no summary is written\n"
    assert capsys.readouterr().err == told
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("call", [image, ct], indirect=True)
def test_no_result_is_called_as_the_summary(call, tmp_path):
    run, _, _ = call
    path = next(path for path in (tmp_path / "in").iterdir() if path.stem == "a")
    path.rename(path.with_stem("summary"))
    assert run() == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "in_b.json",
        "in_summary.json",
        "summary.json",
    }
