"""What training runs share: checkpoints, one end for all processes, parts that stay, bfloat16."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint, WeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from ..common.files import write_bytes
from ..common.system import bfloat16_instructions
from .schedule import run_steps, steps_of

__all__ = [
    "AveragedWeights",
    "FixedStatistics",
    "Frozen",
    "KeepLast",
    "RightGradients",
    "StopTogether",
    "WholeCheckpoints",
]


class AveragedWeights(WeightAveraging):
    """Validates and keeps an exponential average of the weights, over a share of the run.

    However many steps a fit has, what it began with is forgotten at its end. Early in the fit the
    average spans a tenth of the steps so far.

    Args:
        share: of the fit's steps, over which the average reaches back.

    Raises:
        ValueError: it is no share; when training starts, also where the fit has no end.
    """

    def __init__(self, share: float = 0.1) -> None:
        if not 0 < share < 1:
            raise ValueError(f"averaged weights over a share of {share}: between 0 and 1")
        super().__init__(avg_fn=self._mean)
        self.share, self._span, self._swapped = share, 1, False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the task its own weights back before a checkpoint of it is written."""
        if self._swapped:
            self._swap_models(pl_module)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on with a fit's average; what is only measured has its weights by then."""
        if self._average_model is not None:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the fit's average: what is loaded afterwards is measured as it is."""
        super().teardown(trainer, pl_module, stage)
        self._average_model = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the length of the fit, which a resumed one may have changed."""
        self._span = max(1, steps_of(self.share, run_steps(trainer), "averaged weights: share"))

    def _swap_models(self, pl_module: LightningModule) -> None:
        super()._swap_models(pl_module)
        self._swapped = not self._swapped

    def _mean(self, average: Tensor, current: Tensor, count: Tensor) -> Tensor:
        done = self._latest_update_step  # a number of this process, which no device is asked for
        decay = min(1 - 1 / self._span, (1 + done) / (10 + done))
        return average + (1 - decay) * (current - average)  # exact where weights stay


class Frozen(Callback):
    """Trains the rest of a network: these parts keep their weights and running statistics.

    Args:
        modules: names within the task, such as `net.features`.

    Raises:
        ValueError: the task has no module of a name, or nothing is left to train.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = list(modules)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the parts out of training, before the optimiser collects parameters."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        for part in self._parts(pl_module):
            part.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in pl_module.parameters()):
            raise ValueError(f"frozen: {', '.join(self.modules)}: nothing is left to train")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep batch norms at their statistics."""
        for part in self._parts(pl_module):
            part.eval()

    on_train_start = on_train_epoch_start  # a fit that is resumed within an epoch starts none

    def _parts(self, task: LightningModule) -> list[nn.Module]:
        known = dict(task.named_modules())
        for name in self.modules:
            if name not in known:
                near = get_close_matches(name, known) or [n for n in known if n][:5]
                raise ValueError(f"frozen: there is no {name!r}; did you mean {', '.join(near)}?")
        return [known[name] for name in self.modules]


class FixedStatistics(Callback):
    """Trains a network with batch norms at the running statistics that it started from.

    For fine-tuning in batches too small to tell statistics, and for supernets that start from a
    trained network: subnets then share one set of statistics and need none of their own.
    """

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep batch norms from training mode."""
        for module in pl_module.modules():
            if isinstance(module, _BatchNorm):
                module.eval()

    on_train_start = on_train_epoch_start  # a fit that is resumed within an epoch starts none


class RightGradients(Callback):
    """Keeps gradients right while a task is trained in bfloat16 on a CPU, and not after.

    It also warns where the CPU has no instructions for bfloat16, and takes several times as long.
    """

    def __init__(self) -> None:
        self._hooks: list[RemovableHandle] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the hooks, where the precision asks for them."""
        if pl_module.device.type == "cpu" and "bf16" in str(trainer.precision):
            self._hooks = _keep_gradients_right(pl_module)
            if bfloat16_instructions() == []:
                rank_zero_warn(
                    "this CPU computes bfloat16 without hardware for it: precision 32-true "
                    f"trains several times as fast as {trainer.precision}"
                )

    def on_fit_end(self, *_: Any) -> None:
        """Remove them."""
        for hook in self._hooks:
            hook.remove()

    def on_exception(self, *_: Any) -> None:
        """Remove them."""
        self.on_fit_end()


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it, so that none is ever half a file.

    Lightning writes to the machine's temporary folder and moves the file from there, which is a
    copy where that folder lies on another disk: a run killed then loses its last checkpoint.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike, storage_options: Any = None
    ) -> None:
        """Write a file; addresses such as ``s3://`` are left to Lightning."""
        if "://" in os.fspath(path):
            super().save_checkpoint(checkpoint, os.fspath(path), storage_options)
            return
        # Through memory, because torch.save says of a full disk only that writing failed.
        content = io.BytesIO()
        torch.save(checkpoint, content)
        # No view of it: one that a kept error holds can crash Python 3.12.
        write_bytes(path, content.getvalue())


class StopTogether(Callback):
    """Ends all processes of a fit behind the same step when a SIGTERM reaches any of them.

    Lightning's own handler waits for the others within the signal, while they may wait for this
    process to finish its step.

    Attributes:
        asked: whether this process got the signal.
    """

    def __init__(self) -> None:
        self.asked = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signal over until the fit ends, when Lightning puts back what was there."""
        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Agree; Lightning looks at its flag after every step and epoch."""
        if trainer.world_size > 1:
            stop = trainer.strategy.reduce_boolean_decision(self.asked, all=False)
            trainer._signal_connector.received_sigterm = stop

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        """A signal to the whole group also ends what loads data, before a step could agree."""
        if self.asked:
            trainer._signal_connector.received_sigterm = True

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True


class KeepLast(Checkpoint):
    """Keep ``last.ckpt``: written after every epoch, and when a fit is interrupted or fails.

    Of several processes that Ctrl+C stops it is that of the last epoch.

    It lies beside the files of a `ModelCheckpoint` if there is one, else in ``checkpoints/`` of
    the run's folder. A fit resumes from it with ``--ckpt_path``. The file that another run left
    there is kept as ``last-v1.ckpt`` and so on, with what each process wrote beside it
    (``last.ckpt.rank0``).

    A module whose ``resumes_within_epochs`` is false keeps the file of its last whole epoch.
    Weights that are not finite are not written: the fit ends with a ValueError after the epoch.

    Attributes:
        path: the file, or None before `setup`.
        interruption: the exception that ended the run, or None.
        best_model_path: empty; Lightning asks the first checkpoint callback for it.
    """

    best_model_path = ""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.interruption: BaseException | None = None
        self._trainer: Any = None
        self._begun = time.time()
        self._step_saved = 0
        self._step_resumed: int | None = None
        self._batches_resumed: int | None = None
        self._earlier: int | None = None

    @property
    def written(self) -> bool:
        """Whether this run wrote the file."""
        return self._step_saved > 0

    @property
    def terminated(self) -> bool:
        """Whether the run was sent a SIGTERM, whatever exception came of it, and of which hook."""
        if self._trainer is None:
            return False
        together = (c for c in self._trainer.callbacks if isinstance(c, StopTogether))
        return self._trainer.received_sigterm or any(callback.asked for callback in together)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the folder."""
        self._trainer = trainer
        folder = trainer.log_dir or trainer.default_root_dir  # broadcasts: every rank asks
        self.path = Path(folder) / "checkpoints" / "last.ckpt"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A resumed fit has nothing new to write before its first step."""
        validation = trainer.fit_loop.epoch_loop.val_loop
        if validation.restarted_mid_evaluation:  # it begins anew, as its metrics do
            validation.batch_progress.reset()
        self._step_resumed, self._batches_resumed = trainer.global_step, _batches(trainer)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath:
                self.path = Path(callback.dirpath) / "last.ckpt"
                break
        self._earlier = self._age()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file; Lightning calls checkpoint callbacks last, after the validation."""
        self._save(trainer)
        if (name := _not_finite(trainer)) is not None:
            kept = f"{self.path} is of before" if self.written else "nothing was written"
            raise ValueError(
                f"the weights are not finite after epoch {trainer.current_epoch} ({name}): {kept}; "
                "take a lower lr, a lower trainer.gradient_clip_val or more precision"
            )

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the file, unless other processes could not follow.

        Those of SIGTERM stop behind the same step, those of Ctrl+C anywhere.
        """
        self.interruption, self._trainer = exception, trainer
        epoch: Any = trainer.fit_loop.epoch_progress.current
        within = epoch.started != epoch.processed
        if within and not getattr(pl_module, "resumes_within_epochs", True):
            return
        if isinstance(exception, SIGTERMException) or trainer.world_size == 1:
            self._save(trainer)

    def remove_empty_runs(self) -> None:
        """Remove folders of a run that failed before its first batch, if it left nothing in them.

        Loggers make them before, and the next run would be ``version_1``.
        """
        trainer, settings = self._trainer, {"hparams.yaml"}
        if trainer is None or not trainer.is_global_zero:
            return
        if self.path is not None:  # the data were found
            if self.interruption is None or self._batches_resumed not in (None, _batches(trainer)):
                return
            settings.add("config.yaml")
        for logger in trainer.loggers:
            if not isinstance(logger, (CSVLogger, TensorBoardLogger)):
                continue
            folder = Path(logger.log_dir)
            # One that has a name may hold a config of the user's.
            if folder.name == f"version_{logger.version}" and folder.is_dir():
                own = f".{os.getpid()}."
                if all(
                    path.stat().st_mtime >= self._begun - 1  # clocks of file systems are coarse
                    and (path.name in settings or ("tfevents" in path.name and own in path.name))
                    for path in folder.iterdir()
                ):
                    with contextlib.suppress(OSError):  # in use, or other runs lie beside it
                        shutil.rmtree(folder)
                        folder.parent.rmdir()

    def _save(self, trainer: Trainer) -> None:
        step = trainer.global_step
        if (
            trainer.state.fn != TrainerFn.FITTING
            or trainer.fast_dev_run  # type: ignore[attr-defined]
            or trainer.sanity_checking
            or self.path is None
            or self._step_resumed is None
            or step in (self._step_saved, self._step_resumed)
            or _not_finite(trainer) is not None
        ):
            return
        if not self.written:
            if trainer.is_global_zero:
                self._keep_earlier(self.path, trainer.ckpt_path)
            trainer.strategy.barrier()  # others write beside the file
        _back_to_step(trainer)
        trainer.save_checkpoint(self.path, weights_only=False)
        self._step_saved = step

    def _keep_earlier(self, path: Path, resumed: str | os.PathLike | None) -> None:
        """Rename the file of another run, which this one does not go on with."""
        if self._earlier is None or self._age() != self._earlier:
            return  # none, or one that a ModelCheckpoint of this run has written meanwhile
        if resumed is None and self._step_resumed:
            return  # what goes on without a checkpoint is this very run, from a snapshot
        if resumed and os.path.exists(resumed) and os.path.samefile(path, resumed):
            return
        names = (path.with_name(f"last-v{number}.ckpt") for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        os.replace(path, kept)
        for beside in path.parent.glob(f"{path.name}.rank*"):
            os.replace(beside, kept.with_name(kept.name + beside.suffix))
        rank_zero_info(f"an earlier run's {path} is now {kept.name}")

    def _age(self) -> int | None:
        path = self.path
        return path.stat().st_mtime_ns if path is not None and path.is_file() else None


def _batches(trainer: Trainer) -> int:
    """How many batches were trained on, of all runs that this one resumes."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.completed


def _back_to_step(trainer: Trainer) -> None:
    """Count no batch since the last step, of whose gradients no checkpoint has any.

    A validation that is broken off is one that Lightning repeats, unless it comes again by itself.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    progress, validated = loop.batch_progress, loop.val_loop.batch_progress
    # There is a step behind the last batch, of however few.
    whole = progress.is_last_batch and progress.current.processed == progress.current.ready
    behind = 0 if whole else progress.current.processed % trainer.accumulate_grad_batches
    if trainer.validating:
        validated.reset()
        if not behind:  # Lightning repeats one that was stopped in its first batch
            validated.total.ready = validated.total.started = 1
    if whole:
        return
    progress.is_last_batch = False
    for tracker in (progress.current, progress.total):
        for name, count in vars(tracker).items():
            setattr(tracker, name, count - behind)


def _not_finite(trainer: Trainer) -> str | None:
    """The name of a parameter, or running statistics, that holds a number which is none.

    All processes ask, and agree: each has statistics of its own.
    """
    module = trainer.lightning_module
    running = (pair for pair in module.named_buffers() if ".running_" in f".{pair[0]}")
    named = itertools.chain(module.named_parameters(), running)
    name = next((name for name, values in named if not bool(values.isfinite().all())), None)
    if trainer.strategy.reduce_boolean_decision(name is None):
        return None
    return name or "of another process"


def _keep_gradients_right(net: nn.Module) -> list[RemovableHandle]:
    """Let dilated convolutions have right gradients in bfloat16 on a CPU, whatever their layout.

    oneDNN (3.13, that of torch 2.15) gives wrong ones of their weights, or none that are finite,
    where images are channels-last and channels in groups, or in no multiple of 16.

    Returns:
        The hooks that it sets.
    """
    hooks = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and max(module.dilation) > 1:
            # A channels-last weight would make images so again.
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.clone(memory_format=torch.contiguous_format)
            hooks.append(module.register_forward_pre_hook(_contiguous))
    return hooks


def _contiguous(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    image, *others = inputs
    fits = module.groups == 1 and image.shape[1] % 16 == 0
    return None if fits else (image.contiguous(), *others)
