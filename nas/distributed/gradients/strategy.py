"""Distributed data parallel training whose gradients travel by a hook, on every device."""

from __future__ import annotations

import difflib
import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ....common.files import atomic_write
from ....common.ranks import same_everywhere
from ...recalibration import samples
from ...space import Architecture
from ...training.task import SupernetTask
from ..compression.lowrank import ACPSGD, PowerSGD
from ..compression.signs import EFSign
from ..compression.sparse import GTopK, TopK
from ..schedule.merging import MergePlan, own_buffers
from .hooks import AllReduce, CommHook, TorchHook
from .norm import SyncedBatchNorm

__all__ = ["HOOKS", "HookDDPStrategy"]

HOOKS: dict[str, Callable[[], CommHook]] = {
    "dense": AllReduce,
    "fp16": lambda: AllReduce("float16"),
    "bf16": lambda: AllReduce("bfloat16"),
    "subnet": lambda: AllReduce(active_only=True),
    "topk": TopK,
    "gaussiank": lambda: TopK(selector="gaussian"),
    "lags": lambda: TopK(per_layer=True),
    "gtopk": GTopK,
    "acpsgd": ACPSGD,
    "powersgd": PowerSGD,
    "efsign": EFSign,
}
"""The hooks by name, as a config calls them."""

_CAPS = "plan: buckets of subnets are in another order; apply hook"


class HookDDPStrategy(DDPStrategy):
    """Lightning's `DDPStrategy` with a hook for the gradients.

    Lightning itself registers hooks on GPUs alone. `Trainer(sync_batchnorm=True)` also works on
    a CPU and for elastic batch normalisation. What a hook keeps from step to step is written
    beside each checkpoint, a file for each process (`last.ckpt.rank0`), and read back on resuming.

    Args:
        hook: a name of `HOOKS` (`vizoo.nas.distributed.gradients.strategy`), such as `subnet` for
            supernets, or a hook with its arguments.
        plan: merge gradients into the best messages, measured in the first steps.
        **kwargs: those of `DDPStrategy` and of `DistributedDataParallel`, such as
            `process_group_backend`, `bucket_cap_mb`, `find_unused_parameters`. A hook of PyTorch's
            own is `ddp_comm_hook`, with its `ddp_comm_state` and `ddp_comm_wrapper`.

    Raises:
        ValueError: an unknown hook, or settings that do not fit it.
    """

    def __init__(
        self, hook: str | CommHook = "dense", plan: MergePlan | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.hook = self._plain_hook(hook) or _make_hook(hook)
        self.plan = plan
        self._way = None if plan is None else plan.apply
        self._resuming = False
        self._resumed: dict[str, Any] | None = None
        if self.hook.needs_unused and self._ddp_kwargs.get("static_graph"):
            raise ValueError("static_graph: subnets change from step to step; leave it out")
        if plan is not None and self.hook.single_bucket:
            raise ValueError("plan: powersgd keeps its state by bucket; leave it out")
        if isinstance(self.hook, TorchHook) and self._way == "hook":
            raise ValueError("plan: a ddp_comm_hook takes PyTorch's own buckets; apply caps")
        unused = self.hook.needs_unused or self._ddp_kwargs.get("find_unused_parameters")
        if unused and self._way == "caps":
            raise ValueError(_CAPS)

    def train_subnets(self, net: nn.Module, architectures: Sequence[Architecture]) -> None:
        """Told by a supernet's task what the step that begins trains, on every process."""
        self.hook.train_subnets(net, architectures)

    def begin_anew(self) -> None:
        """Told by a supernet's task, on every process, that its weights are others from here on."""
        self.hook.begin_anew()

    def setup(self, trainer: Trainer) -> None:
        """Take batch norms of our own, and refuse a scaler that the hook cannot take."""
        if self._layer_sync is not None:
            self._layer_sync = SyncedBatchNorm()
        if self._scaler is not None and not self.hook.takes_scaler:
            raise ValueError(
                "powersgd would keep what a scaled loss overflows: take bf16-mixed, or acpsgd"
            )
        super().setup(trainer)

    def configure_ddp(self) -> None:
        """Set what the hook needs of DistributedDataParallel before it wraps the task."""
        if self.hook.needs_unused or isinstance(self.lightning_module, SupernetTask):
            if self._way == "caps":
                raise ValueError(_CAPS)
            if self.hook.single_bucket:
                raise ValueError(
                    "powersgd keeps its state by bucket and cannot train subnets that change: take "
                    "acpsgd"
                )
            # A config states every default of these, so that they cannot be told from wishes.
            # Statistics of batch normalisation need not be one process's: they are measured anew.
            self._ddp_kwargs.pop("broadcast_buffers", None)
            self._ddp_kwargs |= {"find_unused_parameters": True, **own_buffers()}
        if self.hook.single_bucket and self.root_device.type == "cpu":
            self._ddp_kwargs["bucket_cap_mb"] = 1 << 20
        if self._way == "hook":
            self._ddp_kwargs["bucket_cap_mb"] = 0  # a bucket for each parameter
        if self._way == "caps":
            self._ddp_kwargs.pop("bucket_cap_mb_list", None)  # of an earlier fit
        self._epoch: int | None = None
        super().configure_ddp()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Tell the hook and the plan where training is; a plan that is ready is applied first."""
        epoch = cast("LightningModule", self.lightning_module).current_epoch
        self.hook.start_epoch(epoch)
        if self.plan is not None:
            if epoch != self._epoch:
                conditions = self.world_size, self.precision_plugin.precision, samples(args)
                self.plan.start_epoch(conditions)
                self._epoch = epoch
            # Within an accumulation the processes' gradients are not to be averaged yet.
            if self.plan.ready() and self._wrapped.require_backward_grad_sync:
                self.plan.plan()
                if self.plan.apply == "caps":
                    self._wrap_anew(self.plan.caps)
        return super().training_step(*args, **kwargs)

    def backward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Let the plan measure."""
        with self.plan.measuring() if self.plan is not None else nullcontext():
            return super().backward(*args, **kwargs)

    def _register_ddp_hooks(self) -> None:
        self.hook.setup(self._wrapped.module, self.root_device)
        if self._scaler is not None:
            vars(self.hook)["loss_scale"] = self._scaler.get_scale
        if self.hook.error_feedback and self._resuming:
            # Where one process has lost its file, all start anew: some state is common to them.
            if not same_everywhere(0 if self._resumed is None else 1, self.root_device):
                self._resumed = None
            if self._resumed is None:
                rank_zero_warn("no error feedback of this checkpoint and these processes: it is 0")
            else:
                self.hook.load_state_dict(self._resumed)
            self._resuming, self._resumed = False, None
        hook = self.hook
        if self.plan is not None:
            hook = self.plan.setup(self._wrapped.module, hook, self.root_device)
        self._wrapped.register_comm_hook(hook, _run)

    @property
    def _wrapped(self) -> DistributedDataParallel:
        return cast("DistributedDataParallel", self.model)

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        return getattr(self.precision_plugin, "scaler", None)

    def _plain_hook(self, hook: str | CommHook) -> TorchHook | None:
        if self._ddp_comm_hook is None:
            if self._ddp_comm_state is not None or self._ddp_comm_wrapper is not None:
                raise ValueError(
                    "ddp_comm_state and ddp_comm_wrapper are for a ddp_comm_hook, which is not "
                    "given; hooks of vizoo have their arguments in hook"
                )
            return None
        if hook != "dense":
            raise ValueError("give hook or ddp_comm_hook, not both")
        plain = self._ddp_comm_hook
        if self._ddp_comm_wrapper is not None:
            plain = self._ddp_comm_wrapper(plain)
        return TorchHook(plain, self._ddp_comm_state)

    def _wrap_anew(self, caps: list[float] | None) -> None:
        """Replace the DistributedDataParallel by one of other buckets."""
        self._ddp_kwargs["bucket_cap_mb_list"] = caps
        module, self.model = self._wrapped.module, None
        gc.collect()  # what is left of the old one would still see gradients
        self.model = self._setup_model(module)
        self.model.register_comm_hook(self.hook, _run)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, and beside it what this process's hook keeps."""
        if self.hook.error_feedback:
            kept = {"kind": type(self.hook).__name__, "step": checkpoint.get("global_step")}
            kept |= {"world_size": self.world_size, "hook": self.hook.state_dict()}
            with atomic_write(_beside(filepath, self.global_rank)) as temporary:
                torch.save(kept, temporary)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, and what this process's hook kept if that belongs to it."""
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        if self.hook.error_feedback:
            path = _beside(checkpoint_path, self.global_rank)
            kept = {}
            if path.is_file():
                kept = torch.load(path, map_location=self.root_device, weights_only=True)
            now = type(self.hook).__name__, checkpoint.get("global_step"), self.world_size
            fits = tuple(kept.get(key) for key in ("kind", "step", "world_size")) == now
            self.resume_hook(kept["hook"] if fits else None)
        return checkpoint

    def resume_hook(self, state: dict[str, Any] | None) -> None:
        """Let the hook, once it is set up, go on from its `state_dict`; None if that is lost."""
        self._resuming, self._resumed = True, state

    def remove_checkpoint(self, filepath: Any) -> None:
        """Delete a checkpoint and what lies beside it."""
        super().remove_checkpoint(filepath)
        _beside(filepath, self.global_rank).unlink(missing_ok=True)

    def teardown(self) -> None:
        """End what hook and plan run beside the training."""
        self.hook.close()
        if self.plan is not None:
            self.plan.close()
        super().teardown()


def _make_hook(hook: str | CommHook) -> CommHook:
    """The hook of a name, with its default arguments; a hook stays as it is."""
    if isinstance(hook, CommHook):
        return hook
    if hook not in HOOKS:
        near = difflib.get_close_matches(str(hook), HOOKS, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"there is no hook {hook!r}{meant}: choose {', '.join(HOOKS)}")
    return HOOKS[hook]()


def _run(state: CommHook, bucket):  # noqa: ANN001, ANN202 - as text they would be refused
    return state.reduce(bucket)


def _beside(checkpoint: Any, rank: int) -> Path:
    return Path(f"{checkpoint}.rank{rank}")
