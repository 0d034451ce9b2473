"""`vizoo demo --train`, on a handful of scenes."""

from __future__ import annotations

import json

import pytest
import yaml

from vizoo.__main__ import main
from vizoo.stereo.commands import _demo_networks, _demo_pair, _demo_training
from vizoo.vision.configs import resolve_config
from vizoo.vision.hub.weights import load_weights


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A demo of a few steps."""
    with open(resolve_config(_demo_training._CONFIG), encoding="utf-8") as file:
        config = yaml.safe_load(file)
    for role, length in (("train", 8), ("val", 1), ("test", 2)):
        config["data"]["init_args"][role][0]["init_args"]["length"] = length
    config["data"]["init_args"]["workers"] = 0
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(_demo_training, "_CONFIG", str(path))
    monkeypatch.setattr(_demo_networks, "SHIPPED", ())
    monkeypatch.setattr(_demo_pair, "_SECONDS", 0.1)


def test_trains_tests_and_shows(small, tmp_path, capsys):
    out = tmp_path / "out"
    mine = out / "training" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("not the demo's")
    assert main(["demo", "--train", "--epochs", "1", "--out", str(out), "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert mine.is_file()
    for method in ("FADNet++ tiny", "StereoSGBM", "best constant"):
        assert method in said.err
    for name in ("comparison.png", "scene_disparity.pfm", "scene_depth.npy", "scene_cloud.png"):
        assert (out / "pair" / name).is_file()
        assert str(out / "pair" / name) in report["files"]
    weights = out / "fadnet_demo.safetensors"
    assert report["weights"] == {
        "source": str(weights),
        "trained on": "generated scenes",
        "licence": "",
    }
    assert "generated scenes" in (out / "pair.html").read_text()
    assert load_weights(weights).architecture["name"] == "fadnet_plus_tiny"
    pair = [str(out / "pair" / side) for side in ("left.png", "right.png")]
    again = ["--model", str(weights), "--calib", str(out / "pair" / "calib.txt")]
    assert main(["infer", "stereo", *pair, *again, "--out", str(tmp_path / "again")]) == 0
