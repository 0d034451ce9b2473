"""`vizoo fit` over several processes."""

from __future__ import annotations

import os
import re

import pytest
import torch
from trainers import fit_forked, fit_process

CONFIG = """
model: toy_regression.Regression
data: toy_regression.Data
trainer:
  max_epochs: 3
  accelerator: cpu
  devices: 2
  strategy: ddp
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGTERM")
@pytest.mark.parametrize("rank", ["0", "1"])
def test_sigterm_of_one_process_stops_all_behind_the_same_step(tmp_path, rank):
    # Two steps an epoch: within the second.
    done = fit_process(tmp_path, CONFIG, TERM_AT="2", TERM_RANK=rank)
    assert done.returncode == 143, done.stderr
    assert done.stderr.count("stopped; resume with: python -m vizoo fit") == 1
    last = tmp_path / "checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 3

    resumed = fit_process(tmp_path, CONFIG, "--ckpt_path", str(last))
    assert resumed.returncode == 0, resumed.stderr
    assert torch.load(last, weights_only=True)["global_step"] == 6


@pytest.mark.skipif(os.name != "posix", reason="needs signals to a group")
@pytest.mark.parametrize(
    ("fit", "name", "code", "workers"),
    [
        (fit_forked, "SIGTERM", 143, 2),
        (fit_forked, "SIGINT", 130, 1),
        pytest.param(fit_process, "SIGTERM", 143, 2, marks=pytest.mark.slow),
        pytest.param(fit_forked, "SIGTERM", 143, 1, marks=pytest.mark.slow),
        pytest.param(fit_forked, "SIGINT", 130, 2, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_group_ends_in_the_line_to_resume(tmp_path, fit, name, code, workers):
    """What loads data dies of it first, which is no error of its own."""
    one = CONFIG.replace("devices: 2\n  strategy: ddp", "devices: 1")
    config = one.replace("max_epochs: 3", "max_epochs: -1")
    words = (f"--data.workers={workers}", "--data.size=64")
    done = fit(tmp_path, config, *words, GROUP_SIGNAL=name)
    said = done.stderr
    assert done.returncode == code, said
    assert re.match("vizoo: stopped; resume with: (python -m )?vizoo fit", said.splitlines()[-1])
    assert "Traceback" not in said and "Error" not in said and "Exception" not in said


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals to a group")
def test_a_sigterm_to_the_group_of_two_processes(tmp_path):
    """Both get it, and what loads their data: one line to resume, one whole file."""
    config = CONFIG.replace("max_epochs: 3", "max_epochs: -1")
    words = ("--data.workers=1", "--data.size=64")
    done = fit_process(tmp_path, config, *words, GROUP_SIGNAL="SIGTERM")
    said = done.stderr
    assert done.returncode == 143, said
    assert said.count("stopped; resume with: python -m vizoo fit") == 1
    assert "Traceback" not in said and "Error" not in said and "Exception" not in said
    written = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert written == ["last.ckpt"]
    assert torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["global_step"] > 0
