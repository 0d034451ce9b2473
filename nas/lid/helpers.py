"""Further processes of `vizoo fit` that train nodes of the same tree, on devices of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

__all__ = ["HelperProcesses", "leader_is_gone"]

_LEADER = "VIZOO_LEADER"
_LAST_SECONDS, _STOP_SECONDS = 60, 10


class HelperProcesses(Callback):
    """Runs this fit's config in further processes, so many, which end with it.

    One that fails is told, and the others train what it would have.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._running: dict[subprocess.Popen, Path] = {}

    def start(self, trainer: Trainer, folder: Path) -> None:
        """Start them; output goes to `FOLDER/process1.log` and so on.

        Raises:
            ValueError: this fit has no config, since `vizoo fit` did not begin it.
        """
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        saved = next((c for c in callbacks if isinstance(c, SaveConfigCallback)), None)
        if saved is None:
            raise ValueError(
                "processes are started by `vizoo fit`; otherwise start each yourself, all with "
                "one `folder`"
            )
        config = Path(trainer.log_dir or trainer.default_root_dir) / saved.config_filename
        package = __name__.partition(".")[0]
        devices = _devices(trainer.strategy.root_device)
        for number in range(1, self.count + 1):
            log = folder / f"process{number}.log"
            own = {
                "--config": config,
                "--ckpt_path": "null",
                "--model.init_args.folder": folder,
                "--model.init_args.processes": 1,
                "--trainer.devices": 1,
                "--trainer.default_root_dir": folder / f"process{number}",
            }
            words = [str(word) for pair in own.items() for word in pair]
            with open(log, "wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", package, "fit", *words],
                    env={**os.environ, _LEADER: str(os.getpid()), **next(devices)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self._running[process] = log
            rank_zero_info(f"process {process.pid} helps, log: {log}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell of those that failed."""
        for process in [p for p in self._running if p.poll() is not None]:
            log = self._running.pop(process)
            if process.returncode:
                rank_zero_warn(
                    f"process {process.pid} ended with code {process.returncode}, see {log}; "
                    "the others train what it would have"
                )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let them end, since all nodes are trained."""
        self._end(_LAST_SECONDS)
        self.on_train_epoch_end(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End them: a resumed fit starts others."""
        cast("Any", pl_module).let_go()
        for process in self._running:
            process.terminate()
        self._end(_STOP_SECONDS)

    def _end(self, seconds: float) -> None:
        for process in self._running:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()


def leader_is_gone() -> bool:
    """Whether this is a process that another one started which has ended."""
    leader = os.environ.get(_LEADER)
    return leader is not None and os.getppid() != int(leader)


def _devices(own: torch.device) -> Iterator[dict[str, str]]:
    """For each process the variable by which it sees one GPU, in turn, after this process's own."""
    if own.type != "cuda":
        return repeat({})
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = seen.split(",") if seen else [str(i) for i in range(torch.cuda.device_count())]
    after = (own.index or 0) + 1
    return cycle({"CUDA_VISIBLE_DEVICES": name} for name in names[after:] + names[:after])
