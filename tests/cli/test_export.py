"""`vizoo export`: what it prints and what it refuses."""

import json
import math

import pytest

from vizoo.__main__ import main
from vizoo.cli import export
from vizoo.vision.int8 import Quantized

SMALL = ["--size", "64x64"]


def test_random_weights_are_said_plainly(capsys, tmp_path):
    out = tmp_path / "net.pt"
    words = ["export", "fadnet_plus_micro", "--to", "torchscript", "--out", str(out), *SMALL]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "fadnet_plus_micro as torchscript" in said and "weights: RANDOM" in said
    assert "left" in said and "RGB in [0, 1]" in said and "disparity" in said
    assert "differs from PyTorch by up to" in said and out.is_file()


def test_json(capsys, tmp_path):
    out = tmp_path / "net.pt"
    words = ["export", "fadnet_plus_micro", "--to", "torchscript", "--out", str(out), *SMALL]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["file"] == str(out) and report["bytes"] == out.stat().st_size
    assert report["weights"] == "random" and report["outputs"] == ["disparity"]
    assert report["largest_difference"] <= report["checks"][0]["allowed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fadnet_plus_micro", "--to", "onxx", "--out", "n.onnx"], "did you mean onnx?"),
        (["fadnet_plus_micro", "--to", "onnx", "--out", "n.pb"], "ends in .onnx"),
        (["fadnet_plus_mico", "--to", "torchscript", "--out", "n.pt"], "fadnet_plus_micro"),
        (["absent.safetensors", "--to", "torchscript", "--out", "n.pt"], "absent.safetensors: no"),
        (
            ["fadnet_plus_micro", "--to", "torchscript", "--out", "n.pt", "--size", "64"],
            "give height and width as in --size 384x1280",
        ),
        (
            ["fadnet_plus_micro", "--to", "onnx", "--out", "n.onnx", "--device", "cpu"],
            "onnx files run anywhere",
        ),
        (
            ["fadnet_plus_micro", "--to", "torchscript", "--out", "n.pt", "--batch", "0"],
            "--batch 0: must be at least 1",
        ),
        (
            ["fadnet_plus_micro", "--to", "torchscript", "--out", "n.pt", "--precision", "int8"],
            "precision 'int8': torchscript has float32",
        ),
        (
            ["fadnet_plus_micro", "--to", "onnx", "--out", "n.onnx", "--calibrate", "pairs"],
            "--calibrate is for --precision int8",
        ),
        (
            [*("fadnet_plus_micro", "--to", "onnx", "--out", "n.onnx"), "--precision", "int8"]
            + ["--batch", "2"],
            "--batch 2: int8 is calibrated by single pairs",
        ),
        (
            ["mbnet", "--to", "onnx", "--out", "n.onnx", "--precision", "int8"],
            "int8 is for stereo networks here",
        ),
    ],
)
def test_errors(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_is_said_first(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("vizoo.vision.export.open_named", lambda name: pytest.fail("loaded"))
    (tmp_path / "file").write_text("")
    words = ["fadnet_plus_micro", "--to", "torchscript", "--out", str(tmp_path / "file/net.pt")]
    assert main(["export", *words]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err


def test_the_source_is_not_overwritten(capsys, tmp_path):
    path = tmp_path / "net.ckpt"
    path.write_bytes(b"weights")
    assert main(["export", str(path), "--to", "torchscript", "--out", str(path)]) == 2
    assert "is the model itself" in capsys.readouterr().err and path.read_bytes() == b"weights"


def test_a_part_that_makes_numbers_that_are_none_is_json_and_told():
    found = Quantized(None, 0.1, {"first": math.nan, "last": 0.1}, ("first",), 2)
    report = export._quantized(found)
    assert json.loads(json.dumps(report, allow_nan=False))["parts"] == {"first": None, "last": 0.1}
    assert "first                alone makes numbers that are none" in export._cost(report)[1]


@pytest.mark.slow
def test_int8_is_told_part_by_part(capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    words = ["export", "fadnet_plus_micro", "--to", "onnx", "--out", str(tmp_path / "net.onnx")]
    words += [*SMALL, "--precision", "int8", "--max-loss", "1000"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "int8, mean error over 8 samples" in said and "dispnetres           alone" in said
    assert "in float32" in said and (tmp_path / "net.onnx").is_file()
    assert main([*words, "--float-parts", "dispnetres"]) == 0
    said = capsys.readouterr().out
    assert "  dispnetres           stays in float" in said and "alone" not in said
    assert main([*words, "--float-parts", "disp,net"]) == 2
    assert "no part is called disp, net; there are" in capsys.readouterr().err
