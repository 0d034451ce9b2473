"""What works without the extras, and how the rest says what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vizoo.__main__ import main
from vizoo.classification.calibration import fit_temperature
from vizoo.common.extras import from_extra
from vizoo.mvs.clouds import _nearest
from vizoo.vision.io.ply import write_ply
from vizoo.vision.training import log_picture

OF_EXTRAS = ("scipy", "tensorboard", "tensorboardX", "onnx", "onnxruntime", "onnxscript")
OF_EXTRAS += ("openvino", "nncf", "tensorrt")
OF_EXTRAS += ("pydicom", "nibabel", "monai", "pycocotools", "ray", "gradio", "optuna")
CUDA = ("cuda", "nvidia", "triton")
ABSENT = """
import importlib.machinery, importlib.metadata, sys

find_spec = importlib.machinery.PathFinder.find_spec
from_name = importlib.metadata.Distribution.from_name

def module(name, path=None, target=None):
    return None if name.partition(".")[0] in HIDDEN else find_spec(name, path, target)

def distribution(name):
    if name in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return from_name(name)

importlib.machinery.PathFinder.find_spec = module
importlib.metadata.Distribution.from_name = distribution
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A process as if neither extras nor what PyTorch's build for CPUs lacks were installed.

    It imports, calls an operator and a network, asks `doctor`, and fits.
    """
    folder = tmp_path_factory.mktemp("bare")
    words = ["fit", "--config", "classification/skin_generated.yaml", "--trainer.max_steps", "1"]
    words += ["--trainer.limit_val_batches", "1", "--trainer.log_every_n_steps", "1"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
    words += ["--data.workers", "0"]
    code = f"""
import contextlib, importlib.util, pkgutil, torch, vizoo
from vizoo.__main__ import main
from vizoo.vision.ops import correlation

assert not any(importlib.util.find_spec(name) for name in HIDDEN)
for module in pkgutil.walk_packages(vizoo.__path__, "vizoo."):
    inside = module.name.split(".")[1]
    if inside in ("classification", "datasets", "mvs", "nas", "panorama", "stereo", "vision"):
        importlib.import_module(module.name)
        print("imported", module.name)
image = torch.rand(1, 3, 64, 128)
assert main(["models", "easnet_small*"]) == 0
with torch.inference_mode():
    assert vizoo.create_model("easnet_small", pretrained=True).eval()(image, image).isfinite().all()
print("CORRELATED", tuple(correlation(image, image, 4).shape))
with open("doctor.json", "w") as file, contextlib.redirect_stdout(file):
    assert main(["doctor", "--json"]) == 0
assert main(["doctor"]) == 0
sys.exit(main({words}))
"""
    command = [sys.executable, "-c", f"HIDDEN = {OF_EXTRAS + CUDA!r}\n{ABSENT}{code}"]
    env = {**os.environ, "VIZOO_HOME": str(folder / "home")}
    return folder, subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_every_module_is_imported_without_extras(bare):
    _, done = bare
    assert done.stdout.count("imported vizoo.") > 150, done.stderr


def test_nothing_on_a_cpu_needs_cuda_packages(bare):
    _, done = bare
    assert done.returncode == 0, done.stderr
    assert "easnet_small" in done.stdout and "CORRELATED (1, " in done.stdout
    assert "Traceback" not in done.stderr + done.stdout


def test_a_fit_without_tensorboard_writes_a_table(bare):
    folder, done = bare
    assert done.returncode == 0, done.stderr
    assert (folder / "lightning_logs/version_0/metrics.csv").is_file()
    assert "tensorboard" not in done.stderr.lower()
    assert "will be deleted" not in done.stderr  # of tables that were there already


def test_pictures_are_drawn_for_tensorboard_alone(tmp_path):
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def log(logger, draw):
        trainer = SimpleNamespace(is_global_zero=True)
        log_picture(SimpleNamespace(loggers=[logger], trainer=trainer, global_step=3), "seen", draw)

    log(CSVLogger(tmp_path / "table"), lambda: pytest.fail("drawn for nobody"))
    logger = TensorBoardLogger(tmp_path / "board")
    log(logger, lambda: np.zeros((4, 6, 3), np.uint8))
    logger.experiment.flush()
    (picture,) = EventAccumulator(logger.log_dir).Reload().Images("seen")
    assert (picture.step, picture.height, picture.width) == (3, 4, 6)


def test_commands_say_which_extra_they_need(monkeypatch, tmp_path, capsys):
    for name in ("scipy", "scipy.optimize", "scipy.spatial"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("a.ply", "b.ply"):
        with write_ply(tmp_path / name) as ply:
            ply.write(np.zeros((3, 3)), np.zeros((3, 3), np.uint8), None)
    words = ["evaluate", "mvs", str(tmp_path / "a.ply"), str(tmp_path / "b.ply"), "--distance", "1"]
    for command in (
        words,
        ["ensemble", "no.ckpt", "--data", "classification/skin_generated.yaml", "--out", "e.json"],
    ):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"vizoo {' '.join(command[: 1 + (command[0] == 'evaluate')])} needs scipy" in said
        assert "pip install 'vizoo[scipy]'" in said
    with pytest.raises(ImportError, match=r"calibration needs scipy: pip install 'vizoo\[scipy\]'"):
        fit_temperature(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))


def test_doctor_names_the_extra(bare):
    folder, _ = bare
    rows = {row["name"]: row for row in json.loads((folder / "doctor.json").read_text())}
    for name, extra in (("scipy", "scipy"), ("onnx", "export"), ("pydicom", "ct")):
        assert not rows[name]["ok"]
        assert rows[name]["remedy"] == f"pip install 'vizoo[{extra}]'"
        assert rows[name]["found"].startswith("not installed; for ")


def test_a_module_that_is_there_is_given():
    assert from_extra("any", "json", "a test") is json


def test_the_nearest_camera():
    rng = np.random.default_rng(0)
    centres = torch.from_numpy(rng.normal(size=(5, 3))) + 1e4
    points = (rng.normal(size=(100, 3)) + 1e4).astype(np.float32)
    apart = np.linalg.norm(points[:, None].astype(np.float64) - centres.numpy(), axis=2)
    np.testing.assert_array_equal(_nearest(points, centres), centres.numpy()[apart.argmin(1)])
