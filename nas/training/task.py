"""Training of any elastic network as Lightning: another task's training, for many subnets a step.

`SupernetTask` wraps a task: a LightningModule whose network is its attribute `net`. The task stays
as it is. Its `training_step` is run once for each subnet of a step, its `validation_step` once
for each subnet that is watched; its optimiser and schedules are used. To distil, the wrapper asks
three further methods of a task:

- `outputs(batch)`: what the network predicts in training;
- `loss(outputs, batch)`: scalar, from the labels;
- `distillation_loss(outputs, teacher_outputs, batch)`: scalar, from another network's outputs.

A task that mixes samples has `mixed(batch)`: what the teacher and all subnets of a step are given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ParallelStrategy, Strategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import OptimizerLRScheduler, OptimizerLRSchedulerConfig
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torchmetrics import Metric

from ...common.random_states import random_state, set_random_state
from ...common.ranks import check_same_subnets, rank_and_size
from ..recalibration import recalibrate
from ..space import Architecture, Scalar, SearchSpace
from ..supernet import activate, search_space
from .evaluation import (
    Task,
    Watched,
    first_batches,
    named_subnet,
    standing_in,
    training_loss,
    watch,
)
from .sampling import LargestSampler, Sampler, UniformSampler

__all__ = ["SupernetTask"]

_Logged = dict[str, list[tuple[Any, tuple[Any, ...], dict[str, Any]]]]
_PROTOCOL = ("outputs", "loss", "distillation_loss")
_HOOKS = (
    *("configure_callbacks", "teardown", "on_train_start", "on_train_end"),
    *("on_train_epoch_start", "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad"),
    *("on_validation_start", "on_validation_end", "on_test_start", "on_test_end"),
    *("on_predict_start", "on_predict_end"),
    *("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
)


class SupernetTask(LightningModule):
    """Trains the subnets of a task's network together.

    In each step every subnet drawn runs the same batch, and their gradients are averaged for one
    step of the optimiser. Clipping, accumulation and precision are the trainer's as ever. For
    validation and test each watched subnet is extracted and its batch normalisation recalibrated
    on training batches, always the same; what the task logs as `val/epe` is logged as
    `val/largest/epe` and so on. The supernet's own statistics are then those of its largest, so
    that a checkpoint predicts as that.

    On several processes all train the same subnets, which is checked in each step, and gradients
    travel once a step. The strategy has to allow unused parameters: `HookDDPStrategy` of
    `vizoo.nas.distributed` with the hook `subnet`, by which only active ones travel, or
    `ddp_find_unused_parameters_true`. Processes share the batches of recalibration.

    Args:
        task: what trains and measures the network, see this module.
        sampler: draws the subnets of a step; one uniform subnet by default.
        distillation: `in_place` lets the first subnet of a step, which has to be the largest,
            learn from the labels and the others from its outputs; `teacher` adds the distance to
            a teacher's outputs to every loss.
        teacher: a trained network that is called as the task's; it is not trained further. In a
            config: `class_path: vizoo.load_weights` and `init_args: {path: FILE}`.
        distillation_weight: factor of the distance to the teacher's outputs.
        watched: for each name the subnet to validate and test: `largest`, `middle` or `smallest`
            of what is being trained, or patterns of choices and values that stay allowed in the
            whole space, for the largest of these. By default `largest` and `smallest`. The first
            one predicts.
        recalibration_batches: how many training batches; 0 keeps the statistics of training.

    Raises:
        ValueError: settings do not fit together, or the task cannot be wrapped.
    """

    def __init__(
        self,
        task: LightningModule,
        sampler: Sampler | None = None,
        distillation: Literal["none", "in_place", "teacher"] = "none",
        teacher: nn.Module | None = None,
        distillation_weight: float = 1.0,
        watched: dict[str, str | dict[str, list[Scalar]]] | None = None,
        recalibration_batches: int = 16,
    ) -> None:
        super().__init__()
        self.task = checked_task(task, distillation)
        if distillation == "teacher" and teacher is None:
            raise ValueError("distillation from a teacher needs a teacher: a trained network")
        self._save_hyperparameters(task, inspect.currentframe())
        self.full_space = search_space(self.task.net)
        vars(self.task.net).pop("subspace", None)  # of earlier weights: all of it is trained here
        self.sampler = sampler or UniformSampler()
        self.distillation = distillation
        self.distillation_weight = distillation_weight
        # Within a tuple no one finds its parameters: not the optimiser, not a checkpoint.
        self._teacher: tuple[nn.Module, ...] = () if teacher is None else (teacher,)
        self.watched = watched or {"largest": "largest", "smallest": "smallest"}
        for name, wanted in self.watched.items():
            try:
                named_subnet(self.full_space, wanted)
            except ValueError as error:
                raise ValueError(f"watched {name!r}: {error}") from error
        if recalibration_batches < 0:
            raise ValueError(f"recalibration_batches {recalibration_batches}: give 0 or more")
        self.recalibration_batches = recalibration_batches
        self._subnets: list[Watched] = []
        self._current: Watched | None = None
        self._logged: _Logged | None = None
        self._loss_logged_as: tuple[tuple[Any, ...], dict[str, Any]] = (), {"prog_bar": True}
        vars(task)["log"] = self._relay  # Lightning lets no module log but the one it was given
        for hook in _HOOKS:
            mine = getattr(type(self), hook) is not getattr(LightningModule, hook)
            if not mine and is_overridden(hook, task, LightningModule):
                setattr(self, hook, getattr(task, hook))

    @property
    def space(self) -> SearchSpace:
        """What subnets are drawn from at present."""
        return self.full_space

    def subnets(self, step: int) -> list[Architecture]:
        """The subnets that a training step trains."""
        return self.sampler.subnets(self.space, step)

    def watched_subnets(self, first: bool = False) -> dict[str, Architecture]:
        """The subnets to measure, or only the one that predicts, by name."""
        return {
            name: named_subnet(self.space if isinstance(wanted, str) else self.full_space, wanted)
            for name, wanted in list(self.watched.items())[: 1 if first else None]
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The task's forward pass, of the active subnet."""
        return self.task(*args, **kwargs)

    def setup(self, stage: str) -> None:
        """Set the task up, and take its optimiser's steps over."""
        self.task.setup(stage)
        # Not before, because the trainer refuses clipping and accumulation to modules that step
        # the optimiser themselves: nobody would see to them. Here `training_step` does.
        self.automatic_optimization = False

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The task's optimiser and schedule; see `task_optimisation`."""
        return self.task_optimisation()

    def task_optimisation(self) -> OptimizerLRSchedulerConfig:
        """The task's optimiser and schedule.

        Raises:
            ValueError: there are several optimisers, or a schedule waits for a metric.
        """
        own: Any = self.task.configure_optimizers()
        own = own if isinstance(own, Mapping) else {"optimizer": own}
        if not isinstance(own.get("optimizer"), torch.optim.Optimizer):
            raise ValueError(
                f"configure_optimizers of {type(self.task).__name__} has to return an optimizer, "
                "or a dict with `optimizer` and `lr_scheduler`, where a supernet is trained"
            )
        schedule = own.get("lr_scheduler")
        schedule = schedule.get("scheduler") if isinstance(schedule, Mapping) else schedule
        if isinstance(schedule, ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau cannot train a supernet: take another schedule")
        return cast("OptimizerLRSchedulerConfig", dict(own))

    def optimisation_by_epochs(
        self, method: str, rate: Callable[[float, float], float]
    ) -> OptimizerLRSchedulerConfig:
        """The task's optimiser under a learning rate of the method's own.

        `rate` makes of the epochs that have passed and the task's learning rate a share of that.
        Where layers have rates of their own, the task's is the largest.

        Raises:
            ValueError: as `task_optimisation` says, or the length of an epoch is not known.
        """
        optimizer = self.task_optimisation()["optimizer"]
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"])
        base = max(group["lr"] for group in optimizer.param_groups)
        if math.isinf(self.trainer.estimated_stepping_batches):
            raise ValueError(f"{method} needs epochs of a known length")
        per_epoch = self._steps_per_epoch()
        schedule = LambdaLR(optimizer, lambda step: rate(step / per_epoch, base))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def task_callbacks(self) -> list[Callback]:
        """Callbacks of the task, one or several."""
        own = self.task.configure_callbacks()
        return [own] if isinstance(own, Callback) else list(own or [])

    def on_fit_start(self) -> None:
        """Refuse a strategy that wants all gradients in each step; convert the teacher."""
        self.task.on_fit_start()
        if not isinstance(self.sampler, LargestSampler):
            check_strategy(self.trainer.strategy)
        convert = self.trainer.precision_plugin.convert_module
        self._teacher = tuple(map(convert, self._teacher))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Train the subnets of this step on a batch."""
        architectures = self.subnets(self.global_step)
        accumulate = self.trainer.accumulate_grad_batches
        stepping = (batch_idx + 1) % accumulate == 0 or self.trainer.is_last_batch
        self._tell_processes(architectures)
        with self._collecting() as logged:
            for number, loss in enumerate(self._losses(architectures, batch, batch_idx), start=1):
                with self._gradients_travel(stepping and number == len(architectures)):
                    if loss is not None:
                        self.manual_backward(loss / (len(architectures) * accumulate))
                    elif self.trainer.world_size > 1:
                        raise ValueError("on several processes no step can be left out (no loss)")
        self._log_collected(logged)
        if stepping:
            optimizer = cast("LightningOptimizer", self.optimizers())
            optimizer.step()
            optimizer.zero_grad()
            self._step_schedules("step", self.global_step)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of all subnets together."""
        # Lightning calls this once gradients are unscaled, which clipping needs.
        self.task.on_before_optimizer_step(optimizer)
        self.clip_gradients(optimizer)

    def on_train_epoch_end(self) -> None:
        """Step schedules that count epochs."""
        self.task.on_train_epoch_end()
        self._step_schedules("epoch", self.current_epoch + 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the generators that dropout and mixed samples draw from."""
        self.task.on_save_checkpoint(checkpoint)
        checkpoint["random_state"] = random_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """In a fit, draw on as where the checkpoint was written."""
        self.task.on_load_checkpoint(checkpoint)
        fitting = self._trainer is not None and self._trainer.state.fn == "fit"
        if fitting and "random_state" in checkpoint:
            set_random_state(checkpoint["random_state"])

    def on_fit_end(self) -> None:
        """Activate the largest subnet, whose statistics the supernet has."""
        self.task.on_fit_end()
        activate(self.task.net, self.full_space.largest())

    def on_validation_epoch_start(self) -> None:
        """Extract and recalibrate the watched subnets; to predict, the first of them alone."""
        trainer = self.trainer
        self._subnets = watch(self.task, self.watched_subnets(first=trainer.predicting))
        count = self.recalibration_batches
        count = min(count, 1) if trainer.sanity_checking else count
        if count:
            nets = [subnet.net for subnet in self._subnets]
            if trainer.state.fn == "fit" and not trainer.sanity_checking:
                activate(self.task.net, self.full_space.largest())
                nets.append(self.task.net)
            self._recalibrate(nets, count)
        self._for_each("on_{}_epoch_start")

    def validation_step(self, batch: Any, batch_idx: int, *index: int) -> None:
        """The task's step for each watched subnet."""
        self._for_each("{}_step", batch, batch_idx, *index)

    def on_validation_epoch_end(self) -> None:
        """Log each subnet's metrics under its name, and drop it."""
        self._for_each("on_{}_epoch_end")
        self._subnets = []

    test_step = validation_step
    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: Any, batch_idx: int, *index: int) -> Any:
        """What the first of the watched subnets predicts."""
        with standing_in(self.task, self._subnets[0].net):
            return self.task.predict_step(batch, batch_idx, *index)

    def _losses(
        self, architectures: list[Architecture], batch: Any, batch_idx: int
    ) -> Iterator[Tensor | None]:
        """The loss of each subnet, which is active until the next one is asked for."""
        task, guide = self.task, None
        if self.distillation != "none" and hasattr(task, "mixed"):
            batch = task.mixed(batch)  # else its own step does
        if self.distillation == "in_place" and architectures[0] != self.space.largest():
            raise ValueError(
                "distillation in place needs a sampler whose first subnet is the largest, "
                f"such as SandwichSampler; {type(self.sampler).__name__} began with another"
            )
        if self.distillation == "teacher":
            with torch.no_grad(), standing_in(task, self._teacher[0].to(self.device).eval()):
                guide = task.outputs(batch)
        for architecture in architectures:
            activate(task.net, architecture)
            if self.distillation == "none":
                loss: Any = task.training_step(batch, batch_idx)
                yield loss["loss"] if isinstance(loss, Mapping) else loss
                continue
            outputs = task.outputs(batch)
            distance = None
            if guide is not None:
                distance = task.distillation_loss(outputs, guide, batch)
                self._relay("train/distillation", distance.detach())
            if self.distillation == "in_place" and distance is not None:
                yield self.distillation_weight * distance
                continue
            loss = task.loss(outputs, batch)
            args, arguments = self._loss_logged_as
            self._relay("train/loss", loss.detach(), *args, **arguments)
            if self.distillation == "in_place":
                guide = apply_to_collection(outputs, Tensor, Tensor.detach)
            yield loss if distance is None else loss + self.distillation_weight * distance

    def _tell_processes(self, architectures: list[Architecture]) -> None:
        """Prove that all processes train the same subnets, and let the strategy know them."""
        if self.trainer.world_size > 1:
            check_same_subnets(architectures, self.device)
            tell = getattr(self.trainer.strategy, "train_subnets", None)
            if tell is not None:
                tell(self.task.net, architectures)

    def _forget_steps(self) -> None:
        """Let optimiser and strategy begin anew, since weights are others, or in another order."""
        cast("torch.optim.Optimizer", self.optimizers(use_pl_optimizer=False)).state.clear()
        begin_anew = getattr(self.trainer.strategy, "begin_anew", None)
        if begin_anew is not None:
            begin_anew()

    def _gradients_travel(self, now: bool) -> AbstractContextManager[None]:
        """Whether a backward pass averages over processes what was collected since the last did."""
        strategy = self.trainer.strategy
        if isinstance(strategy, ParallelStrategy) and not now:
            return strategy.block_backward_sync()
        return nullcontext()

    @property
    def _brief(self) -> bool:
        return bool(self.trainer.fast_dev_run)  # type: ignore[attr-defined]

    def _steps_per_epoch(self) -> int:
        accumulated = self.trainer.accumulate_grad_batches
        return max(1, math.ceil(self.trainer.num_training_batches / accumulated))

    def _step_schedules(self, interval: str, count: int) -> None:
        for schedule in self.trainer.lr_scheduler_configs:
            if schedule.interval == interval and count % schedule.frequency == 0:
                self.task.lr_scheduler_step(schedule.scheduler, None)

    def _recalibrate(self, nets: list[nn.Module], count: int) -> None:
        """Recalibrate networks in one pass over the first training batches.

        Several processes share the batches, and all end with the statistics of all of them.
        """

        def forward(_: nn.Module, batch: Any) -> None:
            with self.trainer.precision_plugin.forward_context():
                for net in nets:
                    self._run(net, batch)

        rank, processes = rank_and_size()
        group = dist.group.WORLD if processes > 1 else None
        given = first_batches(self.trainer, count, rank, processes, shown_as="Batch statistics")
        with given as batches:
            recalibrate(nn.ModuleList(nets), batches, forward=forward, group=group)

    @contextmanager
    def _exactly(self) -> Iterator[None]:
        """Run networks as training does, without autocast, whose half could hide what is small."""
        with (
            self.trainer.precision_plugin.forward_context(),
            torch.autocast(self.device.type, enabled=False),
        ):
            yield

    def _exact_loss(self, net: nn.Module, batch: Any) -> Tensor:
        """The loss of the task's training step with a network, computed `_exactly`."""
        with self._exactly():
            return training_loss(self.task, net, batch)

    def _run(self, net: nn.Module, batch: Any) -> None:
        with standing_in(self.task, net), self._collecting():
            if callable(getattr(self.task, "outputs", None)):
                self.task.outputs(batch)
            else:
                self.task.training_step(batch, 0)

    def _for_each(self, method: str, *args: Any) -> None:
        """Call the task's method of this name for the present stage, with each subnet."""
        trainer = self.trainer
        stage = "test" if trainer.testing else "predict" if trainer.predicting else "validation"
        for subnet in self._subnets:
            self._current = subnet
            try:
                with standing_in(self.task, subnet.net, **subnet.metrics):
                    getattr(self.task, method.format(stage))(*args)
            finally:
                self._current = None

    @contextmanager
    def _collecting(self) -> Iterator[_Logged]:
        """Keep what the task logs within the block, by name, instead of logging it."""
        self._logged = {}
        try:
            yield self._logged
        finally:
            self._logged = None

    def _log_collected(self, logged: _Logged, who: str = "") -> None:
        """Log what was kept, `train/loss` as `train/who/loss`; the mean where there are several."""
        for name, entries in logged.items():
            _, args, arguments = entries[-1]
            values = [value for value, *_ in entries]
            self.log(inserted(name, who), _mean(values), *args, **arguments)
            if name == "train/loss":  # Lightning allows no other arguments later in the fit
                same = {key: value for key, value in arguments.items() if key != "batch_size"}
                self._loss_logged_as = args, same

    def _relay(self, name: str, value: Any, *args: Any, **arguments: Any) -> None:
        """`log` of the task, whose positional arguments after the value are those of Lightning."""
        if isinstance(value, Metric):  # perhaps a copy, whose attribute Lightning would look for
            arguments.setdefault("metric_attribute", name)
        if self._logged is not None:
            self._logged.setdefault(name, []).append((value, args, arguments))
            return
        for subnet in [""] if self._current is None else self._current.names:
            self.log(inserted(name, subnet), value, *args, **arguments)

    def _save_hyperparameters(self, task: LightningModule, frame: FrameType | None) -> None:
        """Keep what a config said, or else what the checkpoint's readers need, as plain values."""
        objects = ["task", "sampler", "teacher", "stages", "temperature", "cost", "splitter"]
        self.save_hyperparameters(ignore=objects, frame=frame)
        if "_class_path" in self.hparams:
            self.save_hyperparameters()
            own, said = task.hparams.get("model_args") or {}, self.hparams.get("task")
            if "convert" in own and isinstance(said, dict):  # its plan is not in the config
                arguments = {**(said.get("init_args") or {}), "model_args": own}
                self.hparams["task"] = {**said, "init_args": arguments}
            return
        path = f"{type(task).__module__}.{type(task).__qualname__}"
        inner = {"class_path": path, "init_args": dict(task.hparams)}
        self.save_hyperparameters({"task": inner})


def checked_task(task: LightningModule, distillation: str) -> Task:
    """The task; raises a ValueError where it cannot train a supernet, or not so."""
    kind = type(task).__name__
    net = getattr(task, "net", None)
    if not isinstance(net, nn.Module):
        raise ValueError(f"{kind} has no network `net`, so it cannot be trained as a supernet")
    if not len(search_space(net)):
        raise ValueError(f"the network of {kind} has nothing elastic, so there are no subnets")
    if not task.automatic_optimization:
        raise ValueError(f"{kind} steps its optimiser itself, so it cannot train a supernet")
    if distillation != "none":
        missing = [name for name in _PROTOCOL if not callable(getattr(task, name, None))]
        if missing:
            raise ValueError(f"{kind} cannot distil: it has no method {', '.join(missing)}")
    return cast("Task", task)


def check_strategy(strategy: Strategy, otherwise: str = "") -> None:
    """Raise a ValueError where a strategy wants gradients of all parameters in each step.

    Its model is wrapped. The message names another strategy, and what is to be done `otherwise`.
    """
    model = strategy.model
    if isinstance(model, DistributedDataParallel) and not model.find_unused_parameters:
        raise ValueError(
            "a step leaves parameters of other subnets unused, which this strategy does not allow: "
            f"set trainer.strategy to ddp_find_unused_parameters_true{otherwise}"
        )


def check_averages(trainer: Trainer, why: str, otherwise: str = "") -> None:
    """Raise a ValueError where a callback averages weights, which is wrong for the reason given."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, (WeightAveraging, StochasticWeightAveraging)):
            name = type(callback).__name__
            raise ValueError(f"{name} {why}: take it out of trainer.callbacks{otherwise}")


def inserted(name: str, subnet: str) -> str:
    """The name of a subnet's metric: `val/epe` of `largest` is `val/largest/epe`."""
    stage, _, rest = name.rpartition("/")
    return "/".join(part for part in (stage, subnet, rest) if part)


def _mean(values: list[Any]) -> Any:
    if not all(isinstance(value, (int, float, Tensor)) for value in values):
        return values[-1]  # a metric object, which has seen all of them
    return sum(values) / len(values)
