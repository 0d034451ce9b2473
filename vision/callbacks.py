"""Training callbacks that every task shares."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = ["KeepLast"]


class KeepLast(Checkpoint):
    """Keep ``last.ckpt``: written after every epoch, and when a fit is interrupted or fails.

    It lies beside the files of a `ModelCheckpoint` if there is one, else in ``checkpoints/`` of
    the run's folder. A fit resumes from it with ``--ckpt_path``.

    Attributes:
        path: the file, or None before `setup`.
        interruption: the exception that ended the run, or None.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.interruption: BaseException | None = None
        self._step_saved = 0

    @property
    def written(self) -> bool:
        """Whether this run wrote the file."""
        return self._step_saved > 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the folder."""
        folder = trainer.log_dir or trainer.default_root_dir  # broadcasts: every rank asks
        self.path = Path(folder) / "checkpoints" / "last.ckpt"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A resumed fit has nothing new to write before its first step."""
        self._step_resumed = trainer.global_step
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath:
                self.path = Path(callback.dirpath) / "last.ckpt"
                break

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file; Lightning calls checkpoint callbacks last, after the validation."""
        self._save(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the file, unless other processes could not follow."""
        self.interruption = exception
        everywhere = isinstance(exception, (KeyboardInterrupt, SIGTERMException))
        if everywhere or trainer.world_size == 1:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        step = trainer.global_step
        if (
            trainer.state.fn != TrainerFn.FITTING
            or trainer.fast_dev_run
            or trainer.sanity_checking
            or self.path is None
            or step in (self._step_saved, getattr(self, "_step_resumed", step))
        ):
            return
        trainer.save_checkpoint(self.path, weights_only=False)
        self._step_saved = step
