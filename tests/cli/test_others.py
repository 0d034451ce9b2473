"""`vizoo doctor`, `vizoo bench`."""

import json

import pytest
import torch
from safetensors import SafetensorError

from vizoo.__main__ import main
from vizoo.vision import health
from vizoo.vision.hub import weights
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights


@pytest.fixture(scope="module")
def micro():
    return create_model("fadnet_plus_micro")


def test_doctor(capsys):
    assert main(["doctor", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"Python", "torch", "CUDA", "open3d", "bfloat16 on the CPU", "disk"} <= rows.keys()
    assert {"onnx", "onnxscript", "onnxruntime", "C++ compiler"} <= rows.keys()
    assert rows["torch"]["ok"] and rows["torch"]["found"] == torch.__version__


def test_doctor_says_what_to_do(monkeypatch, capsys):
    def absent():
        return health._package("no_such_module", "no-such-wheel")

    checks = {"no-such-wheel": absent, "odd": lambda: 1 / 0}
    monkeypatch.setattr(health, "_CHECKS", checks)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "missing  no-such-wheel" in said and "-> pip install no-such-wheel" in said
    assert "ZeroDivisionError" in said
    for name in checks:
        monkeypatch.setattr(health, "_CORE", {name})
        assert main(["doctor"]) == 1


def test_bench(tmp_path, capsys, micro):
    path = save_weights(micro, tmp_path / "net.safetensors")
    words = ["--size", "64x64", "--seconds", "0", "--json"]
    assert main(["bench", str(path), "--batch", "2", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parameters"] == 499_226 and report["batch"] == 2
    assert report["macs"] == pytest.approx(0.67087e9 * 64 * 64 / 384 / 1280, rel=1e-4)
    for row in report["runs"].values():
        assert row["joules"] is None and row["energy"].startswith("not measurable here: ")
        assert 0 < row["p10_ms"] <= row["median_ms"] <= row["p90_ms"] and row["repetitions"] >= 3


def test_bench_prints_lines(capsys):
    assert main(["bench", "fadnet_plus_micro", "--size", "64x64", "--seconds", "0"]) == 0
    said = capsys.readouterr().out
    assert "499,226 parameters" in said and "plain" in said and "peak" in said
    assert said.splitlines()[-1].startswith("  energy: not measurable here: no RAPL counter in ")


def test_bench_tells_energy(capsys, energy_counter):
    words = ["bench", "fadnet_plus_micro", "--size", "64x64", "--seconds", "0"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("  250 mJ\n") == 2 and said.endswith("  energy: RAPL: package-0\n")
    assert main([*words, "--json"]) == 0
    for run in json.loads(capsys.readouterr().out)["runs"].values():
        assert (run["joules"], run["energy"]) == (0.25, "RAPL: package-0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fadnet_plus_tyni"], "did you mean fadnet_plus_tiny"),
        (["missing.ckpt"], "missing.ckpt: no such weight file"),
        (["fadnet_plus_micro", "--batch", "0"], "--batch 0: must be at least 1"),
        (["fadnet_plus_micro", "--device", "gpux"], "device 'gpux' cannot be used here"),
        (["fadnet_plus_micro", "--device", "meta"], "device 'meta' cannot be used here"),
        (["fadnet_plus_micro", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["fadnet_plus_micro", "--size", "big"], "--size big: give"),
        (["."], ".: is a folder"),
        (["fadnet_plus_micro", "--seconds", "nan"], "--seconds: 'nan' is not a time"),
    ],
)
def test_bench_errors(capsys, words, says):
    assert main(["bench", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


def test_convert_refuses_a_training_run_that_does_not_fit(tmp_path, monkeypatch, capsys, micro):
    monkeypatch.chdir(tmp_path)
    content = {
        "pytorch-lightning_version": "2.6.6",
        "hyper_parameters": {"model": "fadnet_plus_tiny"},
        "state_dict": {f"net.{key}": value for key, value in micro.state_dict().items()},
    }
    for name, says in (
        ("fadnet_plus_tiny", "last.ckpt: does not fit fadnet_plus_tiny: tensors "),
        ("fadnet_plus_nano", "last.ckpt: no model is called 'fadnet_plus_nano'; did you mean"),
    ):
        content["hyper_parameters"]["model"] = name
        torch.save(content, "last.ckpt")
        assert main(["convert", "last.ckpt", "net.safetensors"]) == 2
        assert says in capsys.readouterr().err
    torch.save({1: torch.ones(2)}, "numbered.pth")
    assert main(["convert", "numbered.pth", "net.safetensors"]) == 2
    assert "not a state dict: no tensor under 1" in capsys.readouterr().err
    assert not (tmp_path / "net.safetensors").exists()


def test_convert_on_a_full_disk(tmp_path, capsys, monkeypatch, micro):
    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device")

    save_weights(micro, tmp_path / "a.safetensors")
    monkeypatch.setattr(weights, "save_file", full)
    assert main(["convert", f"{tmp_path}/a.safetensors", f"{tmp_path}/b.safetensors"]) == 2
    assert "b.safetensors: I/O error: No space left" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
