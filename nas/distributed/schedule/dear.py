"""DeAR: gradients are scattered in the backward pass and gathered in the next forward pass.

Source: Zhang et al., "Decoupling the All-Reduce Primitive for Accelerating Distributed Deep
Learning", ICDCS 2023 (arXiv 2302.12445). An all-reduce is a reduce-scatter and an all-gather. The
first hides behind the backward pass, the second behind the next forward pass, in which a module's
parameters are updated just before it runs. Nothing more travels than in plain training.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ....common.ranks import broadcast_first
from ...training.task import SupernetTask, check_averages
from ..gradients.norm import SyncedBatchNorm

__all__ = ["DeARStrategy"]


class DeARStrategy(DDPStrategy):
    """Data parallel training by DeAR, with any of PyTorch's optimisers but LBFGS.

    The result is that of `ddp`. Between two steps parameters are those before the last update,
    and gradients do not exist: what callbacks read there is a step old. Validation and checkpoints
    have the last update, also what runs a module. Every parameter has to get a gradient in every
    step. Pays where a forward pass is long enough to hide a message in, on links that overlap them
    with computing; gloo's reduce-scatter costs as much as its all-reduce.

    Args:
        group_mb: megabytes of gradients that travel in one message.
        process_group_backend: such as `gloo` or `nccl`; by default that of the device.

    Raises:
        ValueError: `group_mb` is not positive; in `setup` clipping, a scaler of mixed precision,
            several optimisers or one that is not PyTorch's, supernets, and callbacks that average
            weights.
    """

    delays_gradients = True
    """Callbacks find no gradients before the optimiser's step."""

    def __init__(self, group_mb: float = 25.0, process_group_backend: str | None = None) -> None:
        super().__init__(process_group_backend=process_group_backend)
        if not group_mb > 0:
            raise ValueError(f"group_mb {group_mb}: must be more than 0")
        self.group_mb = group_mb
        self._updates: _DelayedUpdates | None = None

    def setup(self, trainer: Trainer) -> None:
        """Refuse what does not fit, and begin to send and update by modules."""
        if self._layer_sync is not None:
            self._layer_sync = SyncedBatchNorm()
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            self._check(trainer)
        super().setup(trainer)
        if not fitting:
            return
        optimizers = self.optimizers
        own = [type(o).__module__.startswith("torch.optim") for o in optimizers]
        if own != [True] or isinstance(optimizers[0], LBFGS):
            names = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
            raise ValueError(
                f"DeARStrategy updates a few parameters at a time, by one of PyTorch's optimisers "
                f"other than LBFGS, not by {names}: choose sgd or adamw, or take HookDDPStrategy"
            )
        size = int(self.group_mb * 2**20)
        self._updates = _DelayedUpdates(self._task, optimizers[0], size)

    def configure_ddp(self) -> None:
        """Start from the first process's parameters."""
        model = cast("nn.Module", self.model)
        broadcast_first(itertools.chain(model.parameters(), model.buffers()))

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Update what the task itself uses before its step."""
        self._delayed.enter(self._task)
        return super().training_step(*args, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Gradients of micro-batches stay here until the last one."""
        self._delayed.paused = True
        try:
            yield
        finally:
            self._delayed.paused = False

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Let the gradients begin to come back."""
        # The optimiser itself finds no gradients: the backward pass has taken them.
        output = super().optimizer_step(optimizer, closure, model, **kwargs)
        self._delayed.step()
        return output

    def flush(self) -> None:
        """Update all parameters now; nothing travels for it but what is on its way."""
        if self._updates is not None:
            self._updates.flush()

    def on_validation_start(self) -> None:
        """Bring parameters and buffers up to date."""
        self.flush()
        if self._updates is not None:
            broadcast_first(self._task.buffers())  # as DistributedDataParallel does

    def on_train_end(self) -> None:
        """Take the last update."""
        self.flush()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The task's states after the last update."""
        self.flush()
        return super().lightning_module_state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The optimiser's state after the last update."""
        self.flush()
        return super().optimizer_state(optimizer)

    def teardown(self) -> None:
        """Leave modules and parameters without hooks."""
        if self._updates is not None:
            self._updates.close()
            self._updates = None
        super().teardown()

    @property
    def _task(self) -> LightningModule:
        return cast("LightningModule", self.lightning_module)

    @property
    def _delayed(self) -> _DelayedUpdates:
        return cast("_DelayedUpdates", self._updates)

    def _check(self, trainer: Trainer) -> None:
        module, why = self._task, None
        if isinstance(module, SupernetTask):
            why = "needs a gradient of every parameter, and supernets do not give it"
        elif not module.automatic_optimization:
            why = "steps the optimiser itself, and so does this task"
        elif trainer.gradient_clip_val:
            why = (
                f"has no gradients to clip: take gradient_clip_val {trainer.gradient_clip_val} out"
            )
        elif getattr(self.precision_plugin, "scaler", None) is not None:
            why = "has no gradients for the scaler of 16-mixed: take bf16-mixed"
        if why:
            raise ValueError(f"DeARStrategy {why}; or take HookDDPStrategy")
        late = "reads weights that DeARStrategy has yet to update"
        check_averages(trainer, late, ", or take HookDDPStrategy")


class _Group:
    """Parameters whose gradients travel in one message."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.waiting = set(parameters)
        ranks, first = dist.get_world_size(), parameters[0]
        self.sizes = [p.numel() for p in parameters]
        share = -(-sum(self.sizes) // ranks)
        self.flat = first.new_zeros(share * ranks, requires_grad=False)
        self.shard = first.new_zeros(share, requires_grad=False)
        self.gathered: dist.Work | None = None

    def scatter(self) -> None:
        filled = self.flat[: sum(self.sizes)]
        torch.cat([cast("Tensor", p.grad).flatten() for p in self.parameters], out=filled)
        filled.div_(dist.get_world_size())
        for parameter in self.parameters:
            parameter.grad = None
        self.scattered = dist.reduce_scatter_tensor(self.shard, self.flat, async_op=True)

    def gather(self, settings: list[dict[str, Any]]) -> None:
        cast("dist.Work", self.scattered).wait()
        self.gathered = dist.all_gather_into_tensor(self.flat, self.shard, async_op=True)
        self.settings, self.waiting = settings, set(self.parameters)


class _DelayedUpdates:
    """Sends gradients as they get ready, and updates parameters as modules need them.

    Groups are in the order of the first forward pass. All processes have to run the same modules.
    The optimiser keeps its state, as if it took all parameters in one step. While `paused`
    gradients only add up.
    """

    def __init__(self, root: nn.Module, optimizer: Optimizer, group_bytes: int) -> None:
        self.paused = False
        self._root = root
        self._optimizer = optimizer
        self._bytes = group_bytes
        self._calls: dict[nn.Module, int] = {root: 0}
        self._groups: list[_Group] = []
        self._of: dict[nn.Parameter, _Group] = {}
        self._before: dict[nn.Module, dict[_Group, None]] = {}  # in order
        self._trained = [
            p for group in optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        self._handles = [
            *(module.register_forward_pre_hook(self.enter) for module in root.modules()),
            *(p.register_post_accumulate_grad_hook(self._ready) for p in self._trained),
        ]

    def enter(self, module: nn.Module, *_: Any) -> None:
        """Update the parameters of a module that is about to run."""
        if not self._groups and torch.is_grad_enabled():
            self._calls.setdefault(module, len(self._calls))
        for group in self._before.get(module, ()):
            self._update(group)

    def step(self) -> None:
        """End a step: its gradients begin to come back, in the order of the forward pass.

        Raises:
            ValueError: some parameters got no gradient.
        """
        missing = set().union(*(group.waiting for group in self._groups))
        if len(missing) == len(self._of):
            return  # no backward pass
        if missing:
            names = [name for name, p in self._root.named_parameters() if p in missing]
            raise ValueError(
                f"DeARStrategy needs a gradient of every parameter in every step; {names[0]} got "
                f"none ({len(names)} did not): take HookDDPStrategy with find_unused_parameters"
            )
        # What schedules change meanwhile belongs to the next step.
        settings = self._settings()
        for group in self._groups:
            group.gather(settings)

    def flush(self) -> None:
        """Update all parameters that wait for it."""
        for group in self._groups:
            self._update(group)

    def close(self) -> None:
        """Leave the module as it was."""
        for handle in self._handles:
            handle.remove()

    def _update(self, group: _Group) -> None:
        if group.gathered is None:
            return
        group.gathered.wait()
        group.gathered = None
        now = self._settings()
        pieces = group.flat[: sum(group.sizes)].split(group.sizes)
        with torch.inference_mode(False), torch.no_grad():
            for parameter, piece in zip(group.parameters, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)
            self._set(group.settings)
            self._optimizer.step()  # passes over what has no gradient
            self._set(now)
            for parameter in group.parameters:
                parameter.grad = None

    def _settings(self) -> list[dict[str, Any]]:
        return [dict(group) for group in self._optimizer.param_groups]

    def _set(self, settings: list[dict[str, Any]]) -> None:
        for group, values in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(values)

    @torch.no_grad()
    def _ready(self, parameter: nn.Parameter) -> None:
        if not self._groups:
            self._make_groups()
        if self._of[parameter].gathered is not None:
            raise RuntimeError("DeARStrategy: a parameter was used, and its module was not run")
        if self.paused:
            return
        self._of[parameter].waiting.discard(parameter)
        # One order on all processes, whichever group is ready first.
        for group in reversed(self._groups):
            if group.waiting:
                return
            if group.parameters[0].grad is not None:
                group.scatter()

    def _make_groups(self) -> None:
        users: dict[nn.Parameter, set[nn.Module]] = {p: set() for p in self._trained}
        self._collect(self._root, self._root, users)
        order = sorted(self._trained, key=lambda p: min(self._calls[m] for m in users[p]))
        for _, parameters in itertools.groupby(order, key=lambda p: (p.dtype, p.device)):
            held: list[nn.Parameter] = []
            for parameter in parameters:
                size = sum(p.nbytes for p in (*held, parameter))
                if held and size > self._bytes:
                    self._groups.append(_Group(held))
                    held = []
                held.append(parameter)
            self._groups.append(_Group(held))
        self._of = {p: group for group in self._groups for p in group.parameters}
        for parameter, modules in users.items():
            for module in modules:
                self._before.setdefault(module, {})[self._of[parameter]] = None

    def _collect(
        self, module: nn.Module, caller: nn.Module, users: dict[nn.Parameter, set[nn.Module]]
    ) -> None:
        """Find for each parameter the innermost modules that ran, and that it is part of."""
        caller = module if module in self._calls else caller
        for parameter in module.parameters(recurse=False):
            if parameter in users:
                users[parameter].add(caller)
        for child in module.children():
            self._collect(child, caller, users)
