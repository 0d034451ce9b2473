"""What a distributed training is watched by: whether replicas stay equal, what travels."""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from ....common.ranks import broadcast_first, same_everywhere, tensor_digest

__all__ = ["BytesSent", "ReplicaDriftCheck"]


class ReplicaDriftCheck(Callback):
    """Checks that all processes hold the same parameters, to the last bit.

    Args:
        every_n_steps: optimiser steps between checks.
        on_drift: `raise` ends the training; `broadcast` warns, and all go on with the first
            process's parameters.

    Raises:
        ValueError: a setting is out of its range; in `setup` also where a strategy divides the
            parameters among processes.
    """

    def __init__(
        self, every_n_steps: int = 200, on_drift: Literal["raise", "broadcast"] = "raise"
    ) -> None:
        if every_n_steps < 1 or on_drift not in ("raise", "broadcast"):
            raise ValueError(
                f"every_n_steps {every_n_steps} and on_drift {on_drift!r}: the first is at least "
                "1, the other raise or broadcast"
            )
        self.every_n_steps = every_n_steps
        self.on_drift = on_drift
        self._checked = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a strategy whose processes hold different parameters."""
        replicas = isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy))
        if stage == "fit" and not replicas:
            raise ValueError(
                "ReplicaDriftCheck compares whole parameters, which "
                f"{type(trainer.strategy).__name__} divides: take it out, or a strategy like ddp"
            )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Check.

        Raises:
            RuntimeError: the parameters differ.
        """
        step = trainer.global_step
        if trainer.world_size == 1 or step == self._checked or step % self.every_n_steps:
            return
        self._checked = step
        parameters = list(pl_module.parameters())
        if same_everywhere(tensor_digest(parameters), pl_module.device):
            return
        if self.on_drift == "raise":
            raise RuntimeError(
                f"the processes hold different parameters after step {step}: something is "
                "computed on each of them that is not the same everywhere; with hooks on a CPU "
                "set OMP_NUM_THREADS=1, or take on_drift broadcast"
            )
        rank_zero_warn(f"step {step}: the processes' parameters differed; taking the first's")
        broadcast_first(parameters)


class BytesSent(Callback):
    """Logs `comm/megabytes`, what a process sends in a step, by the count of the hook."""

    def __init__(self) -> None:
        self._before = 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Log."""
        hook = getattr(trainer.strategy, "hook", None)
        if hook is not None:
            pl_module.log("comm/megabytes", (hook.bytes_sent - self._before) / 1e6)
            self._before = hook.bytes_sent
