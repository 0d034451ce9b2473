"""Fits of tests: within the process, and as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from ranks import context

from vizoo.__main__ import main

__all__ = ["fit_forked", "fit_process", "quiet_trainer"]

# What a fit within this process left would tell the new one that it is part of a job.
_JOB = ("LOCAL_RANK", "NODE_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def quiet_trainer(folder: str | os.PathLike[str], **settings: Any) -> Trainer:
    """A trainer on the CPU that shows nothing and logs nowhere; settings are Lightning's."""
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    defaults = {"accelerator": "cpu", "num_sanity_val_steps": 0, **quiet}
    return Trainer(default_root_dir=folder, **{**defaults, **settings})


def fit_process(
    folder: Path, config: str, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `vizoo fit` with a config in a folder, which is made; toys can be its classes."""
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(config)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **environment}
    inherited = {name: value for name, value in os.environ.items() if name not in _JOB}
    return subprocess.run(
        [sys.executable, "-m", "vizoo", "fit", "--config", "toy.yaml", *words],
        cwd=folder,
        env={**inherited, **settings},
        capture_output=True,
        text=True,
        timeout=900,
        **_group_of_its_own(),
    )


def _group_of_its_own() -> dict[str, Any]:
    """For signals to the group; under a background job SIGINT is ignored, which is inherited."""
    if os.name != "posix":
        return {}
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return {"start_new_session": True, **listen}


def fit_forked(
    folder: Path, config: str, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As :func:`fit_process` on one device, by a process that has all imports done when it starts.

    It ends as the function `main` returns: what Python does and says when it shuts down is not to
    be seen.
    """
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(config)
    inherited = {name: value for name, value in os.environ.items() if name not in _JOB}
    settings = {**inherited, "OMP_NUM_THREADS": "1", **environment}
    process = context.Process(target=_fit, args=(folder, words, settings))
    process.start()
    process.join(900)
    assert process.exitcode is not None, "the fit did not end within 15 minutes"
    said = [(folder / name).read_text() for name in ("stdout.txt", "stderr.txt")]
    return subprocess.CompletedProcess(words, process.exitcode, *said)


def _fit(folder: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = ("fit", "--config", "toy.yaml", *words)
    sys.argv = ["vizoo", *words]
    sys.exit(main(list(words)))
