"""`vizoo bench ops`, and what `vizoo doctor` says of the operators."""

from __future__ import annotations

import json

import pytest
import torch

from vizoo.__main__ import main
from vizoo.cli import _bench_ops

CASES = list(_bench_ops.cases(torch.device("cpu"), torch.float32, 8))


@pytest.mark.parametrize("build", CASES, ids=range(len(CASES)))
def test_measures_the_same_function_twice(build):
    case = build()
    with torch.no_grad():
        found, wanted = case.call(*case.inputs), case.plain(*case.inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr(_bench_ops, "cases", lambda *given: iter(CASES[7:9]))
    assert main(["bench", "ops", "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    assert "no GPU: the references are measured" in out
    assert out.count("forward") == out.count("backward") == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--json"], "--json: ops prints a table"),
        (["--size", "64x64"], "--size: ops has sizes of its own"),
        (["--batch", "2"], "--batch: ops has sizes of its own"),
    ],
)
def test_refuses_what_it_does_not_look_at(capsys, words, says):
    assert main(["bench", "ops", *words]) == 2
    assert says in capsys.readouterr().err


def operators(capsys) -> dict[str, dict]:
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    return {name: check for name, check in checks.items() if name.startswith("operator ")}


def test_doctor_names_what_operators_take(capsys, monkeypatch):
    monkeypatch.delenv("VIZOO_OPS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = operators(capsys)
    assert "operator correlation" in found and "operator soft_argmin" in found
    assert found.pop("operator gather_faces")["found"].startswith("PyTorch: its own kernels")
    assert all(x["ok"] and x["found"] == "PyTorch: no CUDA device" for x in found.values())
    monkeypatch.setenv("VIZOO_OPS", "cuda")
    forced = operators(capsys)
    forced.pop("operator gather_faces")
    assert not any(x["ok"] for x in forced.values())
    assert all("unset VIZOO_OPS" in x["remedy"] for x in forced.values())
    monkeypatch.setenv("VIZOO_OPS", "triton")
    wrong = operators(capsys)
    wrong.pop("operator gather_faces")
    assert all("VIZOO_OPS=triton" in x["found"] for x in wrong.values())
