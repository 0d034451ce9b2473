"""Snapshots of a training in memory: a process that is killed costs a few steps, not an epoch."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from ....common.random_states import random_state, set_random_state
from ..gradients.strategy import HookDDPStrategy
from .payload import Shared, divide, join, pack, unpack
from .store import SnapshotStore

__all__ = ["InMemorySnapshot"]

_RESTORING = ("restore_model", "restore_training_state")
_UNUSED = ("hyper_parameters", "hparams_name", "hparams_type", "datamodule_hyper_parameters")


class InMemorySnapshot(Checkpoint):
    """Keeps the state of a training in a memory file system, and goes on from it after a crash.

    Every process keeps an equal share of parameters and optimiser state, and all that is its own:
    random states, buffers, progress, what a hook of `HookDDPStrategy` leaves out. A run that is
    started again, by `torchrun --max-restarts` for one, finds its newest snapshot by itself and
    goes on to the same weights, as if it had not stopped: bit for bit where at most two processes
    average plain gradients. In the first step after a restart PyTorch has them in other buckets, so
    that with more processes, or `ACPSGD`, sums are rounded otherwise, and a hook that compresses
    several buckets chooses other entries; not so with `find_unused_parameters`, which keeps the
    buckets. It holds within an epoch too, for the data modules of `vizoo.datasets` and others whose
    loaders have a `state_dict`; metrics averaged over the epoch begin anew. A share that was lost
    with its machine is rebuilt from parity, as long as each process comes back on its own machine
    or an empty one.

    A run is known by its config and number of processes, and by the job that torchrun or SLURM has
    started. At the end, and when the user stops it, its snapshots are deleted; those of a run that
    is never started again stay in the folders `vizoo-*` of the memory. A run that ended by an error
    goes on as well once it is started again; that it does so, and what to delete for a new
    beginning, is said at its start.

    Snapshots are copied through pinned memory in a stream of its own from a GPU. They are taken
    behind an optimiser step, or behind the epoch with its validation where that is its last; a step
    later where a validation within the epoch follows, or where the trainer has `max_steps` and the
    epoch ends. Of a module whose ``resumes_within_epochs`` is false, as of few-shot training, they
    are taken behind epochs alone. For Lightning this is a checkpoint callback: it adds no
    `ModelCheckpoint` of its own beside it.

    Args:
        every_n_steps: optimiser steps between snapshots.
        parity_group: number of machines, or of processes where there is one machine, of which one
            may be lost; 1 to do without parity.
        persist_every: every how many snapshots one is written to the disk as well; 0 for none.
        memory: folder of a memory file system; needs 2.4 times the size of a snapshot.
        disk: folder for snapshots on the disk, which all processes reach; by default `snapshots`
            in the trainer's folder.
        run: a name that tells this run from others with the same config at the same time.

    Raises:
        ValueError: a setting is out of range; at the start also a snapshot that does not fit the
            training, because the code has changed.
    """

    best_model_path = ""  #: empty; Lightning asks the first checkpoint callback for it

    def __init__(
        self,
        every_n_steps: int = 50,
        parity_group: int = 4,
        persist_every: int = 0,
        memory: str = "/dev/shm",
        disk: str | None = None,
        run: str = "",
    ) -> None:
        if every_n_steps < 1 or parity_group < 1 or persist_every < 0:
            raise ValueError(
                f"every_n_steps {every_n_steps}, parity_group {parity_group} and persist_every "
                f"{persist_every} must be at least 1, 1 and 0"
            )
        self.every_n_steps = every_n_steps
        self.parity_group = parity_group
        self.persist_every = persist_every
        self.memory = memory
        self.disk = disk
        self.run = run
        #: how long training stood still for the last snapshot, logged as `snapshot/seconds`
        self.seconds = 0.0
        self._step, self._seen, self._taken = 0, 0, False
        self._store: SnapshotStore | None = None
        self._random: dict[str, Any] | None = None
        self._draws = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find a snapshot of this run, and let the trainer go on from it.

        Raises:
            ValueError: the strategy does not keep replicas, there is no such folder, or another
                process uses it.
        """
        if stage != "fit" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if not isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy)):
            raise ValueError(
                f"snapshots need all of the model in every process, so a strategy like ddp; "
                f"{type(trainer.strategy).__name__} divides it"
            )
        if not Path(self.memory).is_dir():
            raise ValueError(f"{self.memory}: no such folder; name one of a memory file system")
        restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
        if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            rank_zero_warn(
                "processes that torchrun starts again may look for those that were lost: set "
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment, and give it no "
                "--master-port, nor a --rdzv-backend other than c10d: it would not heed that"
            )
        name = _identity(trainer, pl_module, self.run)
        disk = Path(self.disk or Path(trainer.default_root_dir) / "snapshots")
        self._store = SnapshotStore(
            Path(self.memory) / f"vizoo-{os.getuid()}-{name}",
            disk / name,
            trainer.num_nodes,
            self.parity_group,
            self.persist_every,
        )
        newest = self._store.newest()
        if newest is None:
            if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
                rank_zero_info("no snapshot yet: the run that was started again begins anew")
            return
        step, packed, stream, where = newest
        own = unpack(packed)
        self._random = own["random"]
        if isinstance(trainer.strategy, HookDDPStrategy):
            trainer.strategy.resume_hook(own["hook"])
        name = f"the snapshot after step {step} ({where})"
        anew = f"to begin anew delete {' and '.join(map(str, self._store.folders))}"
        rank_zero_info(f"going on from {name}; {anew}")
        refusal = f"{name} does not fit this training, whose code may have changed; {anew}"
        _go_on_from(trainer, join(own["checkpoint"], stream), refusal)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with the random numbers of the snapshot."""
        for name in ("resume_start", *_RESTORING):
            vars(trainer._checkpoint_connector).pop(name, None)
        self._step = self._seen = trainer.global_step
        if self._random is not None:
            set_random_state(self._random)
            self._random = None
            loaders = cast("CombinedLoader", trainer.fit_loop._combined_loader).flattened
            self._draws = not any(hasattr(loader, "state_dict") for loader in loaders)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw an epoch's order from the random numbers of the snapshot behind the one before."""
        if self._draws:  # Lightning did so before they were known
            iter(cast("_DataFetcher", trainer.fit_loop._data_fetcher))
        self._draws = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take a snapshot where one is due."""
        stepped, self._seen = trainer.global_step != self._seen, trainer.global_step
        self._draws = False
        within = getattr(pl_module, "resumes_within_epochs", True) and not trainer.is_last_batch
        if stepped and within and not _validates(trainer, batch_idx):
            self._take_if_due(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot where one is due; Lightning calls checkpoint callbacks last."""
        if trainer.max_steps == -1:  # else a fit that resumes here counts this epoch twice
            self._take_if_due(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """A run that the user stops is not to go on by itself."""
        if isinstance(exception, KeyboardInterrupt) and self._store is not None:
            self._store.discard()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete the snapshots of a run that has come to its end in all processes."""
        if self._store is not None:
            self._store.forget()
            self._store = None

    def _take_if_due(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = trainer.global_step
        if self._store is None or step // self.every_n_steps <= self._step // self.every_n_steps:
            return
        start = time.perf_counter()
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        checkpoint = {key: value for key, value in checkpoint.items() if key not in _UNUSED}
        names = {name for name, _ in pl_module.named_parameters()}
        divided, tensors = divide(checkpoint, names)
        own = {"checkpoint": divided, "random": random_state()}
        if isinstance(trainer.strategy, HookDDPStrategy):
            own["hook"] = trainer.strategy.hook.state_dict()
        self._store.take(step, pack(own, check=not self._taken), Shared(tensors))
        self._step, self._taken = step, True
        self.seconds = time.perf_counter() - start
        pl_module.log("snapshot/seconds", self.seconds, sync_dist=True, reduce_fx="max")


def _validates(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a validation follows this batch, which draws random numbers of its own."""
    if not trainer.enable_validation or not trainer.val_check_batch:
        return False
    batches = batch_idx if trainer.check_val_every_n_epoch else trainer.fit_loop.total_batch_idx
    return (batches + 1) % trainer.val_check_batch == 0


def _go_on_from(trainer: Trainer, checkpoint: dict[str, Any], refusal: str) -> None:
    """Let the fit that begins restore all states from a checkpoint in memory.

    Lightning has no public way but a file. A file that the user named is older, and left out. Where
    the checkpoint does not fit, the refusal is said.
    """
    connector = trainer._checkpoint_connector
    connector._loaded_checkpoint = checkpoint
    vars(connector)["resume_start"] = lambda *_, **__: None
    for name in _RESTORING:
        setattr(connector, name, partial(_restore, getattr(connector, name), refusal))


def _restore(restore: Callable[[], None], refusal: str) -> None:
    try:
        restore()
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(f"{refusal} ({' '.join(str(error).split())})") from error


def _identity(trainer: Trainer, pl_module: LightningModule, run: str) -> str:
    """What tells a run from others: its job, its processes and its config."""
    job = os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("SLURM_JOB_ID") or ""
    parts = [run, job, str(trainer.world_size), type(pl_module).__qualname__]
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    configs = [c for c in callbacks if hasattr(c, "config") and hasattr(c, "parser")]
    if configs:  # LightningCLI's, which writes it beside the checkpoints
        parts += [c.parser.dump(c.config, skip_none=False) for c in configs]
    else:
        parts += [*sys.argv, str(trainer.default_root_dir)]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
