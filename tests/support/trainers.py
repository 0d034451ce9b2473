"""Fits of tests: within the process, and as a user starts them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from ranks import context

from vizoo.__main__ import main

__all__ = ["Forked", "fit_forked", "fit_process", "quiet_trainer"]

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


class Forked:
    """As :class:`subprocess.Popen` of a command of vizoo's, with all imports done when it starts.

    It ends as the function `main` returns: what Python does and says when it shuts down is not to
    be seen. What it says comes at the end of ``stdout.txt`` and ``stderr.txt`` in its folder.

    Args:
        words: what is typed, after ``vizoo`` or ``python -m vizoo``.
        folder: where it works.
        environment: variables to set.
    """

    def __init__(self, words: Sequence[str], folder: Path, **environment: str):
        inherited = {name: value for name, value in os.environ.items() if name not in _JOB}
        settings = {**inherited, "OMP_NUM_THREADS": "1", **environment}
        self._process = context.Process(target=_command, args=(folder, [*words], settings))
        self._process.start()
        self.args, self.pid = words, self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()


def fit_forked(
    folder: Path, config: str, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As :func:`fit_process` on one device, by a :class:`Forked` process."""
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(config)
    said = [folder / name for name in ("stdout.txt", "stderr.txt")]
    for file in said:
        file.unlink(missing_ok=True)
    process = Forked(("fit", "--config", "toy.yaml", *words), folder, **environment)
    code = process.wait(900)
    return subprocess.CompletedProcess(words, code, *(file.read_text() for file in said))


def _command(folder: Path, words: list[str], environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As a user's process starts those that load data; this one would have a server of its own.
    multiprocessing.set_start_method(None, force=True)
    sys.argv = ["vizoo", *words]
    sys.exit(main(words))
