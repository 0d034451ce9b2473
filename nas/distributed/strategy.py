"""Distributed data parallel training whose gradients travel by a hook, on every device."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..files import atomic_write
from ..space import Architecture
from ..training.task import SupernetTask
from .hooks import CommHook
from .norm import SyncedBatchNorm
from .ranks import same_everywhere
from .registry import make_hook

__all__ = ["HookDDPStrategy"]


class HookDDPStrategy(DDPStrategy):
    """Lightning's `DDPStrategy` with a hook for the gradients.

    Lightning itself registers hooks on GPUs alone. `Trainer(sync_batchnorm=True)` also works on
    a CPU and for elastic batch normalisation. What a hook keeps from step to step is written
    beside each checkpoint, a file for each process (`last.ckpt.rank0`), and read back on resuming.

    Args:
        hook: a name of `vizoo.nas.distributed.registry.HOOKS`, such as `subnet` for supernets, or
            a hook with its arguments.
        **kwargs: those of `DDPStrategy` and of `DistributedDataParallel`, such as
            `process_group_backend`, `bucket_cap_mb`, `find_unused_parameters`.

    Raises:
        ValueError: an unknown hook, or settings that do not fit it.
    """

    def __init__(self, hook: str | CommHook = "dense", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hook = make_hook(hook)
        self._resuming = False
        self._resumed: dict[str, Any] | None = None
        if self.hook.needs_unused and self._ddp_kwargs.get("static_graph"):
            raise ValueError("static_graph: subnets change from step to step; leave it out")

    def train_subnets(self, net: nn.Module, architectures: Sequence[Architecture]) -> None:
        """Told by a supernet's task what the step that begins trains, on every process."""
        self.hook.train_subnets(net, architectures)

    def setup(self, trainer: Trainer) -> None:
        if self._layer_sync is not None:
            self._layer_sync = SyncedBatchNorm()
        super().setup(trainer)

    def configure_ddp(self) -> None:
        if self.hook.needs_unused or isinstance(self.lightning_module, SupernetTask):
            # A config states every default of these, so that they cannot be told from wishes.
            # Statistics of batch normalisation need not be one process's: they are measured anew.
            self._ddp_kwargs.pop("broadcast_buffers", None)
            known = inspect.signature(DistributedDataParallel).parameters
            buffers = {"forward_sync_buffers", "broadcast_buffers"} & set(known)
            self._ddp_kwargs |= {"find_unused_parameters": True, max(buffers): False}
        if self.hook.single_bucket:
            self._ddp_kwargs["bucket_cap_mb"] = 1 << 20
        super().configure_ddp()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.hook.start_epoch(self.lightning_module.current_epoch)
        return super().training_step(*args, **kwargs)

    def _register_ddp_hooks(self) -> None:
        self.hook.setup(self.model.module, self.root_device)
        scaler = getattr(self.precision_plugin, "scaler", None)
        if scaler is not None:
            self.hook.loss_scale = scaler.get_scale
        if self.hook.error_feedback and self._resuming:
            # Where one process has lost its file, all start anew: some state is common to them.
            if not same_everywhere(0 if self._resumed is None else 1, self.root_device):
                self._resumed = None
            if self._resumed is None:
                rank_zero_warn("no error feedback of this checkpoint and these processes: it is 0")
            else:
                self.hook.load_state_dict(self._resumed)
            self._resuming, self._resumed = False, None
        self.model.register_comm_hook(self.hook, _run)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, and beside it what this process's hook keeps."""
        if self.hook.error_feedback:
            kept = {"step": checkpoint.get("global_step"), "world_size": self.world_size}
            with atomic_write(_beside(filepath, self.global_rank)) as temporary:
                torch.save({**kept, "hook": self.hook.state_dict()}, temporary)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, **arguments: Any) -> dict[str, Any]:
        """Read a checkpoint, and what this process's hook kept if that belongs to it."""
        checkpoint = super().load_checkpoint(checkpoint_path, **arguments)
        if self.hook.error_feedback:
            path, self._resuming = _beside(checkpoint_path, self.global_rank), True
            kept = torch.load(path, weights_only=True) if path.is_file() else {}
            now = checkpoint.get("global_step"), self.world_size
            if (kept.get("step"), kept.get("world_size")) == now:
                self._resumed = kept["hook"]
        return checkpoint

    def remove_checkpoint(self, filepath: Any) -> None:
        """Delete a checkpoint and what lies beside it."""
        super().remove_checkpoint(filepath)
        _beside(filepath, self.global_rank).unlink(missing_ok=True)

    def teardown(self) -> None:
        self.hook.close()
        super().teardown()


def _run(state: CommHook, bucket):  # annotations that are text would be refused
    return state.reduce(bucket)


def _beside(checkpoint: Any, rank: int) -> Path:
    return Path(f"{checkpoint}.rank{rank}")
