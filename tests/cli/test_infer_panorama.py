"""`vizoo infer panorama`: what it writes and says, and one line for what is wrong."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from vizoo.__main__ import main
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.io.images import write_image


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    return str(save_weights(create_model("spheredepth_tiny", texture_level=0), path))


@pytest.fixture(autouse=True)
def images(monkeypatch, tmp_path, small_views):
    monkeypatch.chdir(tmp_path)
    for name, size in (("a", (16, 32)), ("b", (20, 40)), ("wide", (16, 40))):
        write_image(tmp_path / "rooms" / f"{name}.png", torch.rand(3, *size))


def call(*words):
    return main(["infer", "panorama", *words, "--device", "cpu"])


def test_one_image(weights, tmp_path, capsys):
    assert call("rooms/a.png", "--model", weights, "--out", "out") == 0
    told = capsys.readouterr()
    first, *files, last = told.out.splitlines()
    assert told.err == "" and last == "out/summary.json"
    assert re.fullmatch(
        r"rooms/a\.png: depth [\d.]+ to [\d.]+ m, median [\d.]+ m \(16x32, [\d.]+ s\)", first
    )
    assert {tmp_path / f.strip() for f in files} | {tmp_path / last} == set(
        (tmp_path / "out").iterdir()
    )
    report = json.loads((tmp_path / "out/summary.json").read_text())
    (panorama,) = report["panoramas"]
    assert report["model"] == weights and panorama["size"] == [16, 32]
    assert panorama["points"] == 5120 and panorama["warnings"] == []
    depth = np.load(tmp_path / "out/a_depth.npy")
    assert panorama["depth"]["median"] == pytest.approx(float(np.median(depth)))


def test_several_of_which_one_is_damaged(weights, tmp_path, capsys):
    (tmp_path / "rooms/c.png").write_bytes((tmp_path / "rooms/a.png").read_bytes()[:200])
    words = ("--format", "exr", "--read-back", "linear", "--max-ratio", "0", "--json")
    assert call("rooms", "rooms/a.png", "--model", weights, "--out", "out", *words) == 1
    told = capsys.readouterr()
    summary = json.loads(told.out)
    assert summary == json.loads((tmp_path / "out/summary.json").read_text())
    by_name = {entry["image"]: entry for entry in summary["panoramas"]}
    assert list(by_name) == [f"rooms/{n}.png" for n in ("a", "b", "c", "wide")]
    assert "c.png: " in by_name["rooms/c.png"]["error"]
    assert "not twice as wide" in by_name["rooms/wide.png"]["warnings"][0]
    assert (tmp_path / "out/b_depth.exr").is_file() and not (tmp_path / "out/b_depth.npy").exists()
    lines = told.err.splitlines()
    assert len(lines) == 3 and lines[-1] == "vizoo: error: 1 of 4 panoramas failed"
    assert lines[1].startswith("vizoo: warning: rooms/wide.png: 16x40 pixels are not twice")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rooms/a.png", "--out", "o", "--model", "spheredepth_tiny"), "has no trained weights"),
        (("rooms/a.png", "--out", "o", "--model", "fadnet_plus_tiny"), "is a model for stereo"),
        (("rooms/a.png", "--out", "o", "--model", "none.ckpt"), "none.ckpt: no such"),
        (("rooms/a.png", "--out", "o", "--model", "rooms/a.png"), "rooms/a.png"),
        (("none.png", "--out", "o", "--model", "X"), "none.png: no such file"),
        (("rooms/*.jpg", "--out", "o", "--model", "X"), "rooms/.*jpg: no file matches"),
        ((".", "--out", "o", "--model", "X"), "no image .* images lie below it in rooms$"),
        (("rooms/a.png", "--out", "rooms", "--model", "X"), "--out rooms is where a.png lies"),
        (("rooms/a.png", "--out", "rooms/a.png", "--model", "X"), "a.png is a file"),
        (("rooms/a.png", "--out", "o", "--model", "X", "--format", "tif"), "invalid choice: 'tif'"),
        (("rooms/a.png", "--out", "o", "--model", "X", "--max-ratio", "0.5"), "--max-ratio 0.5"),
        (("rooms/a.png", "--out", "o", "--model", "X", "--max-ratio", "nan"), "--max-ratio nan"),
        (("rooms/a.png", "--out", "o", "--modle", "X"), "did you mean --model"),
        ((), "IMAGE"),
    ],
)
def test_refused(capsys, words, message):
    assert call(*words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("vizoo: error: ")
    assert re.search(message, lines[0]), lines[0]


def test_two_of_one_name(weights, tmp_path):
    write_image(tmp_path / "other/a.png", torch.rand(3, 8, 16))
    words = ("rooms/a.png", "other/a.png", "./rooms/a.png", "--model", weights, "--out", "o")
    assert call(*words, "--format", "npy") == 0
    found = {path.name for path in (tmp_path / "o").glob("*.npy")}
    assert found == {"rooms_a_depth.npy", "other_a_depth.npy"}


def test_one_damaged_image_is_the_error(weights, tmp_path, capsys):
    (tmp_path / "cut.png").write_bytes((tmp_path / "rooms/a.png").read_bytes()[:200])
    assert call("cut.png", "--model", weights, "--out", "out") == 2
    assert "cut.png" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_weights_of_another_task(tmp_path, capsys):
    path = tmp_path / "stereo.safetensors"
    save_weights(create_model("fadnet_plus_micro"), path)
    assert call("rooms/a.png", "--model", str(path), "--out", "out") == 2
    assert "is a model for stereo, not for panorama" in capsys.readouterr().err


def test_help(capsys):
    assert main(["infer", "panorama", "--help"]) == 0
    assert "vizoo infer panorama room.jpg --out result" in capsys.readouterr().out
