"""`scripts/train_weights.sh`: what it starts, what it goes on from, what it says to mistakes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "train_weights.sh"
FAKE = """#!/bin/sh
echo "$VIZOO_STOCK|$PYTHONPATH|$OMP_NUM_THREADS|$*" >>"$CALLS"
run=$(pwd)/lightning_logs/version_0/checkpoints
mkdir -p "$run"
echo weights >"$run/last.ckpt"
exit "${CODE:-0}"
"""


@pytest.fixture
def start(tmp_path):
    """Call the script with a Python that only notes how it is called."""
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(FAKE)
    python.chmod(0o755)
    places = {"PYTHON": python, "CALLS": calls, "VIZOO_TRAININGS": tmp_path / "trainings"}
    environment = {**os.environ, **{name: str(path) for name, path in places.items()}}
    for name in ("VIZOO_STOCK", "OUT", "OMP_NUM_THREADS"):
        environment.pop(name, None)

    def call(*arguments, **more):
        found = subprocess.run(
            ["sh", SCRIPT, *arguments], env={**environment, **more}, capture_output=True, text=True
        )
        return found, calls.read_text().splitlines() if calls.exists() else []

    return call


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the checkout")
def test_it_starts_from_a_clone_and_goes_on_from_the_newest_checkpoint(start, tmp_path):
    stock, out = tmp_path / "stock", tmp_path / "out"
    for part in ("textures", "meshes", "panoramas"):
        (stock / part).mkdir(parents=True)
    out.mkdir()
    found, calls = start("easnet_small", "--stock", str(stock), "--steps", "2")
    assert found.returncode == 0, found.stderr
    root = tmp_path / "trainings" / "easnet_small"
    (first,) = calls
    assert first.startswith(f"{stock}|{root}|1|-m vizoo fit --config {root}/train.yaml")
    assert "--trainer.max_steps 2" in first and "--ckpt_path" not in first
    assert (root / "vizoo" / "pyproject.toml").is_file()
    config = (ROOT / "configs" / "stereo" / "easnet_small_world.yaml").read_text()
    assert (root / "train.yaml").read_text() == config
    options = ("--device", "cuda", "--minutes", "25")
    found, (_, second) = start("easnet_small", *options, CODE="3", OUT=str(out))
    assert found.returncode == 3
    last = root / "lightning_logs/version_0/checkpoints/last.ckpt"
    assert f"--ckpt_path {last}" in second and "--trainer.accelerator gpu" in second
    assert (out / "easnet_small.ckpt").read_text() == last.read_text()
    for part in ("textures", "meshes", "panoramas"):
        (out / part).mkdir()
    found, calls = start("easnet_small", "--stock", str(out))
    assert found.returncode == 2 and len(calls) == 2
    assert f"this training began with {stock}" in found.stderr


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the checkout")
def test_it_stops_after_its_minutes(start, tmp_path):
    for part in ("textures", "meshes", "panoramas"):
        (tmp_path / part).mkdir()
    (tmp_path / "timeout").write_text('#!/bin/sh\necho "$@" >>"$CALLS"; exit 124\n')
    (tmp_path / "timeout").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    stock = ("--stock", str(tmp_path))
    found, calls = start("easnet_small", "--minutes", "25", *stock, PATH=path)
    assert found.returncode == 0 and calls[0].startswith("--signal=TERM 25m nice ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a NAME of "),
        (["garden"], "no training 'garden'; there are "),
        (["easnet_small"], "--stock DIR"),
        (["easnet_small", "--stock", "nowhere"], "--stock nowhere: no folder textures/"),
        (["easnet_small", "--minutes", "08"], "whole numbers from 1"),
        (["easnet_small", "--minutes", "few"], "whole numbers"),
        (["easnet_small", "--device", "tpu"], "choose cpu or cuda"),
        (["easnet_small", "--stepps", "2"], "no option --stepps"),
        (["easnet_small", "dispmvs_tiny"], "one NAME at a time"),
        (["easnet_small", "--steps"], "--steps needs a value"),
    ],
)
def test_mistakes_are_told_in_one_line(start, tmp_path, arguments, message):
    found, calls = start(*arguments)
    assert found.returncode == 2 and message in found.stderr
    assert found.stderr.count("\n") == 1 and not calls
    assert not (tmp_path / "trainings").exists()
