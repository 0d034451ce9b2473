"""What tasks share: the network, optimiser and learning rate, logged numbers and pictures."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from itertools import accumulate, pairwise
from math import ceil, cos, isinf, pi
from sys import maxsize
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers, muon
from torch import Tensor, nn
from torchmetrics import Metric

from ..common.files import read_json
from ..common.system import bfloat16_instructions
from ..nas.supernet import architecture_of
from .callbacks import RightGradients
from .hub.converted import as_supernet
from .hub.create import create_model
from .hub.registry import REMOTE, model_info
from .lora import Adapters, adapt_by
from .schedule import run_steps, steps_of

__all__ = [
    "NetworkTask",
    "OptimisedTask",
    "log_metrics",
    "log_picture",
    "read_subnet",
    "reset_metrics",
    "round_at",
    "starting_network",
]


class OptimisedTask(LightningModule):
    """Trains its network `net` by one optimiser; the learning rate changes with every step.

    Args:
        optimizer: any name that `timm.optim` knows, such as `adam`, `adamw`, `lars` or `lamb`.
            `muon` computes in bfloat16, but in float32 on a processor without hardware for that.
        optimizer_args: its further arguments. `lars` and `lamb` adapt the rate of each layer only
            with `weight_decay` (all but biases and norms) or `always_adapt` (all).
        lr: learning rate at the start of a round.
        lr_schedule: `milestones` multiplies by `lr_gamma` after epochs; `cosine` falls to zero at
            the end of the round; `constant` stays.
        lr_milestones: epochs after which to do so, counted from the start of the round.
        lr_gamma: factor at each milestone.
        warmup_steps: linear warm-up at the start of a round: steps, or below 1 a share of the
            round's, such as 0.05.

    Attributes:
        round_epochs: lengths of rounds, at each of which warm-up and schedule start anew; the last
            goes on until training ends.

    Raises:
        ValueError: optimizer or schedule is unknown, or the warm-up neither steps nor a share; when
            training starts, also where `optimizer_args` do not fit, or a cosine schedule or a share
            has no end.
    """

    net: nn.Module
    round_epochs: Sequence[int] = (1,)
    hparams: Any  # Lightning's types know neither names of arguments
    trainer: Any  # nor what the trainer's connectors add

    def __init__(
        self,
        optimizer: str = "adam",
        optimizer_args: dict[str, Any] | None = None,
        lr: float = 1e-3,
        lr_schedule: Literal["milestones", "cosine", "constant"] = "cosine",
        lr_milestones: list[int] | None = None,
        lr_gamma: float = 0.5,
        warmup_steps: int | float = 0,
    ) -> None:
        given = {**locals()}
        super().__init__()
        self.save_hyperparameters()
        # A command saves the arguments of the subclass alone, which need not have these among them;
        # what is added to the saved ones the subclass would be given when a run is resumed.
        self._given = {name: given[name] for name in signature(OptimisedTask).parameters}
        if lr_schedule not in ("milestones", "cosine", "constant"):
            raise ValueError(
                f"lr_schedule {lr_schedule!r} is unknown: choose milestones, cosine or constant"
            )
        if warmup_steps < 0 or warmup_steps > 1 and warmup_steps % 1:
            raise ValueError(
                f"warmup_steps {warmup_steps}: give a number of steps, or a share below 1"
            )
        known, plain = cast("list[str]", list_optimizers()), optimizer.lower().rpartition("_")[2]
        if plain not in known:  # `lookahead_adam` is one too
            near = get_close_matches(optimizer, known) or known
            raise ValueError(
                f"timm has no optimizer {optimizer!r}; did you mean {', '.join(near)}?"
            )
        if get_optimizer_info(plain).second_order:
            raise ValueError(
                f"optimizer {optimizer!r} wants second derivatives, which are not computed here: "
                "choose another, or precondition gradients by distributed/eva.yaml"
            )

    def configure_callbacks(self) -> list[Callback]:
        """What the precision asks for."""
        return [RightGradients()]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what `create_model` made the network of, which hyper-parameters need not say."""
        if architecture := architecture_of(self.net):
            checkpoint["architecture"] = architecture

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimiser, and the factor of its learning rate at each step."""
        hparams, trainer = SimpleNamespace(**{**self._given, **self.hparams}), self.trainer
        try:
            optimizer = create_optimizer_v2(
                self.net,
                opt=hparams.optimizer,
                lr=hparams.lr,
                **{"weight_decay": 0.0, **(hparams.optimizer_args or {})},
            )
        except TypeError as error:
            raise ValueError(f"optimizer_args of {hparams.optimizer}: {error}") from error
        if "muon" in hparams.optimizer.lower() and bfloat16_instructions() == []:
            cast("Any", muon).zeropower_via_newtonschulz = _orthogonalised
        adapting = (
            group.get("always_adapt", True) or group["weight_decay"]
            for group in optimizer.param_groups
        )
        if not any(adapting):
            rank_zero_warn(
                f"{hparams.optimizer} adapts no layer as it is: give optimizer_args a "
                "weight_decay, such as 1e-4, or always_adapt: true"
            )
        for group in optimizer.param_groups:  # of `layer_decay`, which timm leaves to schedulers
            group["lr"] *= group.get("lr_scale", 1.0)
        total = run_steps(trainer)
        if hparams.lr_schedule == "cosine" and isinf(total):
            raise ValueError("a cosine schedule needs an end: set trainer.max_epochs or max_steps")
        if trainer.num_training_batches == float("inf"):  # not asked yet, as max_steps is the end
            trainer.fit_loop.setup_data()
        batches = min(trainer.num_training_batches, maxsize)  # data without an end have one epoch
        per_epoch = max(1, ceil(batches / trainer.accumulate_grad_batches))
        starts = [per_epoch * epoch for epoch in (0, *accumulate(self.round_epochs[:-1]))]
        lengths = [max(0, end - start) for start, end in pairwise((*starts, total))]
        warmups = [steps_of(hparams.warmup_steps, n, "warmup_steps") for n in lengths]
        if not getattr(trainer, "fast_dev_run", False):
            _check_warmups(
                warmups, [min(n, total - s) for s, n in zip(starts, lengths, strict=True)]
            )

        def factor(step: int) -> float:
            epoch = step // per_epoch
            index, start = round_at(self.round_epochs, epoch)
            done = step - start * per_epoch
            warm = min(1.0, (done + 1) / (warmups[index] + 1))
            if hparams.lr_schedule == "milestones":
                passed = bisect_right(hparams.lr_milestones or [], epoch - start)
                return warm * hparams.lr_gamma**passed
            if hparams.lr_schedule == "cosine":
                return warm * 0.5 * (1 + cos(pi * min(1.0, done / max(1, lengths[index]))))
            return warm

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


_orthogonalised_by_timm = muon.zeropower_via_newtonschulz


def _orthogonalised(gradient: Tensor, *args: Any, **settings: Any) -> Tensor:
    """Muon's direction, on a processor in float32.

    Without instructions for bfloat16 large matrices take a tenth of the time or less so; timm's
    Muon offers no choice of the type.
    """
    if gradient.device.type == "cpu":
        settings["dtype"] = torch.float32
    return _orthogonalised_by_timm(gradient, *args, **settings)


def _check_warmups(warmups: Sequence[int], runs: Sequence[float]) -> None:
    """Warn where a round that is reached is over before the learning rate has been up for long."""
    for warmup, steps in zip(warmups, runs, strict=True):
        if warmup and 0 < steps < 2 * warmup:
            rank_zero_warn(
                f"the warm-up takes {min(warmup, steps)} of {steps:.0f} steps, so the network "
                "learns little: set model.warmup_steps to a share such as 0.05, or train longer"
            )
            return


class _MissingPart(AttributeError, ValueError):
    """A task lacks what its steps ask for; shown as one line."""


class NetworkTask(OptimisedTask):
    """Trains a network of the zoo on truth that stands in the batch, and measures it.

    A subclass has `outputs(batch)` and their `loss(outputs, batch)` for training, and
    `predictions(batch)` for measuring: what `val_metrics` and `test_metrics` take, alone or with
    its confidence. `picture(batch, *predictions)` shows all.

    Args:
        model: name of a network, see `vizoo models`.
        model_args: its architecture arguments; `subnet` may be the file in which a search wrote it.
        init_weights: file to start from (safetensors or a Lightning checkpoint), weights only, or
            `pretrained` for a network that brings weights of another task. To go on with an
            interrupted run use `--ckpt_path` instead.
        adapter: `lora_fa` (or `lora`, or a mapping of a `name` and arguments of `vision.lora.LoRA`)
            to train low-rank adapters alone; see `vision.lora.Adapters` for what is written.
        **optimisation: see `OptimisedTask`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a setting is unknown, or arguments or a file do not fit.
    """

    kind: ClassVar[str | None] = None
    """What models it trains, as `vizoo models` says what they are for; None: any."""
    quantity: ClassVar[str]
    """Key of the truth in a batch; `valid` says where it is known."""
    shown: ClassVar[str]
    """The metric beside the progress bar."""
    val_metrics: Metric
    test_metrics: Metric
    outputs: Callable[[dict[str, Any]], Any]
    loss: Callable[[Any, dict[str, Any]], Tensor]
    predictions: Callable[[dict[str, Any]], Sequence[Tensor]]
    picture: Callable[..., np.ndarray]

    def __init__(
        self,
        model: str,
        model_args: dict[str, Any] | None = None,
        init_weights: str | None = None,
        adapter: str | dict[str, Any] | None = None,
        **optimisation: Any,
    ) -> None:
        super().__init__(**optimisation)
        self.net = starting_network(model, model_args, init_weights)
        if self.kind is not None and (own := model_info(model).task) != self.kind:
            raise ValueError(f"model {model} is for {own}, not for {self.kind}")
        if adapter is not None:
            adapt_by(self.net, adapter)
        self._adapter = adapter
        # Some arguments may come from files; checkpoints have to stand without these. A subclass
        # that has none of its own is not given any when a run is resumed.
        arguments = dict(cast("dict[str, Any]", self.net.architecture))
        del arguments["name"]
        given = self.hparams
        if "model_args" in given and arguments != (given["model_args"] or {}):
            given["model_args"] = arguments

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in NetworkTask.__annotations__:
                raise
            raise _MissingPart(
                f"{type(self).__name__} has no `{name}`, which a NetworkTask is trained, measured "
                f"or shown by: define it, as {NetworkTask.__module__}.NetworkTask says"
            ) from None

    def configure_callbacks(self) -> list[Callback]:
        """With what writes the adapters, where there are some."""
        adapters = [] if self._adapter is None else [Adapters(self._adapter)]
        return super().configure_callbacks() + adapters

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        loss = self.loss(self.outputs(batch), batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch[self.quantity]))
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Measure a batch, and draw the first one."""
        predictions = self.predictions(batch)
        self.val_metrics.update(predictions[0], batch[self.quantity], batch["valid"])
        if batch_idx == 0:
            log_picture(self, f"val/{self.quantity}", lambda: self.picture(batch, *predictions))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        log_metrics(self, "val", self.val_metrics, self.shown)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Measure a batch."""
        self.test_metrics.update(self.predictions(batch)[0], batch[self.quantity], batch["valid"])

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """The predictions, and how sure they are where the task says, with the samples' names."""
        named = zip((self.quantity, "confidence"), self.predictions(batch), strict=False)
        return {"name": batch["name"], **dict(named)}

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        log_metrics(self, "test", self.test_metrics, self.shown)


def starting_network(
    model: str, arguments: Mapping[str, Any] | None, weights: str | None
) -> nn.Module:
    """Make the network that a task trains, by the settings of `NetworkTask`.

    What is `pretrained` has a `load_pretrained`; without weights it starts from random numbers.

    Returns:
        The network; its `architecture` holds all arguments, also those that `weights` brought.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the name is an address of weights, or arguments or a file that do not fit.
    """
    if model.startswith(REMOTE):
        raise ValueError(f"model {model!r}: name the model, and give this as init_weights")
    arguments = dict(arguments or {})
    if isinstance(arguments.get("subnet"), str):
        arguments["subnet"] = read_subnet(arguments["subnet"])
    if weights != "pretrained":
        return create_model(model, weights=weights, **arguments)
    settings = arguments.pop("convert", None)
    net = create_model(model, **arguments)
    load = getattr(net, "load_pretrained", None)
    if load is None:
        raise ValueError(f"{model} brings no pretrained weights: give a file as init_weights")
    load()
    return net if settings is None else as_supernet(net, settings)


def read_subnet(path: str) -> dict[str, Any]:
    """What a search wrote to `architecture.json`, or beside a subnet, as networks take it.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is not such a file.
    """
    what = "the architecture that a search by `vizoo fit` wrote (`subnet` in model_args)"
    architecture = read_json(path, what)
    if isinstance(architecture, dict):
        architecture = architecture.get("architecture", architecture)
    if not isinstance(architecture, dict) or "choices" not in architecture:
        raise ValueError(f'{path}: not an architecture, which reads {{"version": 1, "choices": …}}')
    return architecture


def round_at(round_epochs: Sequence[int], epoch: int) -> tuple[int, int]:
    """The round that an epoch belongs to, and the epoch at which that round starts."""
    starts = [0, *accumulate(round_epochs[:-1])]
    index = bisect_right(starts, epoch) - 1
    return index, starts[index]


def log_metrics(task: LightningModule, stage: str, metrics: Metric, shown: str) -> None:
    """Log what `metrics` has counted, by names such as `val/epe`, and reset it.

    The stage is `val` or `test`; the metric `shown` stands beside the progress bar.
    """
    values = {f"{stage}/{name}": value for name, value in metrics.compute().items()}
    reset_metrics(metrics)
    main = values.pop(f"{stage}/{shown}")
    # Equal on all processes already; Lightning cannot know and would warn.
    task.log_dict(values, sync_dist=True)
    task.log(f"{stage}/{shown}", main, prog_bar=True, sync_dist=True)


def reset_metrics(*metrics: Metric) -> None:
    """Forget what metrics have counted; a fit may follow a validation of its own."""
    with torch.inference_mode(False):  # tensors made in it cannot be added to outside of it
        for metric in metrics:
            metric.reset()


def log_picture(task: LightningModule, name: str, draw: Callable[[], np.ndarray]) -> None:
    """Hand a picture, (H, W, 3) uint8, to the loggers that take some, drawing it only for them."""
    loggers: Sequence[Any] = task.loggers
    writers = [w for w in (logger.experiment for logger in loggers) if hasattr(w, "add_image")]
    if not writers or not task.trainer.is_global_zero:
        return
    picture = draw()
    for writer in writers:
        writer.add_image(name, picture, task.global_step, dataformats="HWC")
