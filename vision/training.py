"""What training shares among the tasks: optimiser, learning rate, logged numbers and pictures."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate
from math import ceil, cos, pi
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from timm.optim import create_optimizer_v2, list_optimizers
from torch import nn
from torchmetrics import Metric

from .hub.create import create_model
from .hub.registry import REMOTE

__all__ = [
    "check_optimisation",
    "keep_arguments",
    "log_metrics",
    "log_picture",
    "optimisation",
    "read_subnet",
    "round_at",
    "starting_network",
]

_SCHEDULES = ("milestones", "cosine", "constant")


def starting_network(
    model: str, arguments: Mapping[str, Any] | None, weights: str | None
) -> nn.Module:
    """Make the network that a task trains.

    Args:
        model: its registered name.
        arguments: of its architecture; `subnet` may be the file in which a search wrote it.
        weights: file to start from, or `pretrained` for a network that brings weights of another
            task (its `load_pretrained`); None starts from random numbers.

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
    net = create_model(model, **arguments)
    load = getattr(net, "load_pretrained", None)
    if load is None:
        raise ValueError(f"{model} brings no pretrained weights: give a file as init_weights")
    load()
    return net


def keep_arguments(task: LightningModule) -> None:
    """Let a task's hyper-parameter `model_args` hold all arguments of its network `net`.

    Some may come from files that `starting_network` read; checkpoints have to stand without these.
    """
    net: Any = task.net
    arguments = {key: value for key, value in net.architecture.items() if key != "name"}
    if arguments != (task.hparams["model_args"] or {}):
        task.hparams["model_args"] = arguments


def read_subnet(path: str) -> dict[str, Any]:
    """What a search wrote to `architecture.json`, as networks take it for `subnet`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is not such a file.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path}: no such file of a subnet: a search by `vizoo fit` writes architecture.json "
            "in its folder; name it by --model.model_args.subnet"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: not an architecture: no JSON ({error})") from error
    if not isinstance(found, dict) or "choices" not in found:
        raise ValueError(f'{path}: not an architecture, which reads {{"version": 1, "choices": …}}')
    return found


def check_optimisation(optimizer: str, lr_schedule: str) -> None:
    """Raise ValueError where `optimisation` would not know a name."""
    if lr_schedule not in _SCHEDULES:
        raise ValueError(
            f"lr_schedule {lr_schedule!r} is unknown: choose milestones, cosine or constant"
        )
    known = cast("list[str]", list_optimizers())
    if optimizer.lower().rpartition("_")[2] not in known:  # `lookahead_adam` is one too
        near = get_close_matches(optimizer, known) or known
        raise ValueError(f"timm has no optimizer {optimizer!r}; did you mean {', '.join(near)}?")


def optimisation(
    task: LightningModule, net: nn.Module, round_epochs: Sequence[int] = (1,)
) -> OptimizerLRSchedulerConfig:
    """What `configure_optimizers` of a task returns; the learning rate changes with every step.

    Args:
        task: its hyper-parameters `optimizer` (any name that `timm.optim` knows),
            `optimizer_args`, `lr`, `lr_schedule`, `lr_milestones`, `lr_gamma` and `warmup_steps`
            (of linear warm-up) are used.
        net: what to train.
        round_epochs: lengths of rounds, at each of which warm-up and schedule start anew; the last
            goes on until training ends.

    Raises:
        ValueError: `optimizer_args` do not fit, or a cosine schedule has no end.
    """
    hparams: Any = task.hparams
    trainer = task.trainer
    try:
        optimizer = create_optimizer_v2(
            net,
            opt=hparams.optimizer,
            lr=hparams.lr,
            **{"weight_decay": 0.0, **(hparams.optimizer_args or {})},
        )
    except TypeError as error:
        raise ValueError(f"optimizer_args of {hparams.optimizer}: {error}") from error
    for group in optimizer.param_groups:  # of `layer_decay`, which timm leaves to its schedulers
        group["lr"] *= group.get("lr_scale", 1.0)
    total = trainer.estimated_stepping_batches
    if hparams.lr_schedule == "cosine" and total == float("inf"):
        raise ValueError("a cosine schedule needs an end: set trainer.max_epochs or max_steps")
    if trainer.num_training_batches == float("inf"):  # not asked yet, where max_steps is the end
        trainer.fit_loop.setup_data()
    per_epoch = max(1, ceil(trainer.num_training_batches / trainer.accumulate_grad_batches))

    def factor(step: int) -> float:
        epoch = step // per_epoch
        index, start = round_at(round_epochs, epoch)
        done = step - start * per_epoch
        warm = min(1.0, (done + 1) / (hparams.warmup_steps + 1))
        if hparams.lr_schedule == "milestones":
            passed = bisect_right(hparams.lr_milestones or [], epoch - start)
            return warm * hparams.lr_gamma**passed
        if hparams.lr_schedule == "cosine":
            last = index == len(round_epochs) - 1
            length = total - start * per_epoch if last else round_epochs[index] * per_epoch
            return warm * 0.5 * (1 + cos(pi * min(1.0, done / max(1, length))))
        return warm

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def round_at(round_epochs: Sequence[int], epoch: int) -> tuple[int, int]:
    """The round that an epoch belongs to, and the epoch at which that round starts."""
    starts = [0, *accumulate(round_epochs[:-1])]
    index = bisect_right(starts, epoch) - 1
    return index, starts[index]


def log_metrics(
    task: LightningModule, stage: str, metrics: Mapping[str, Metric], shown: str
) -> None:
    """Log what metrics have counted, by names such as `val/epe`, and reset them.

    Args:
        task: logs them.
        stage: `val` or `test`.
        metrics: by what is put behind their names: `{"": plain, "_sphere": weighted}`.
        shown: which one to show beside the progress bar.
    """
    values: dict[str, Any] = {}
    for ending, metric in metrics.items():
        values |= {f"{stage}/{name}{ending}": value for name, value in metric.compute().items()}
        metric.reset()
    main = values.pop(f"{stage}/{shown}")
    # Equal on all processes already; Lightning cannot know and would warn.
    task.log_dict(values, sync_dist=True)
    task.log(f"{stage}/{shown}", main, prog_bar=True, sync_dist=True)


def log_picture(task: LightningModule, name: str, draw: Callable[[], np.ndarray]) -> None:
    """Hand a picture, (H, W, 3) uint8, to the loggers that take some, drawing it only for them."""
    loggers: Sequence[Any] = task.loggers
    experiments = [logger.experiment for logger in loggers]
    writers = [e for e in experiments if hasattr(e, "add_image")]
    if not writers or not task.trainer.is_global_zero:
        return
    picture = draw()
    for writer in writers:
        writer.add_image(name, picture, task.global_step, dataformats="HWC")
