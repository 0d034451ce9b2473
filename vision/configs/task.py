"""What a config of `vizoo fit` describes: a task and data that recalibrate and evaluate networks.

Whatever the task is, its Lightning module holds the network as `net`, its training or prediction
runs that on a batch, and the validation loop says how good it is. So no task is known by name here.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import lightning.pytorch
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from ...common.arguments import checked
from ...common.interrupts import raised_interrupts
from ...common.progress import quiet
from ...nas.lid.leaves import Leaves
from ...nas.recalibration import recalibrate, samples
from ...nas.space import Architecture
from ...nas.supernet import activate
from ...nas.training.evaluation import first_loader, seeded, training_loss
from .builtin import read_config
from .messages import condense

__all__ = ["LOUD", "FitConfig", "instantiate", "make"]

LOUD = tuple(
    f"lightning.pytorch{part}" for part in ("", ".utilities.rank_zero", ".accelerators.cuda")
)
"""Loggers of Lightning that tell of devices and loaders each time; here a hundred times."""


@dataclass
class FitConfig:
    """The model and the data of a config, made."""

    name: str  #: as typed
    module: LightningModule  #: the task; its `net` is replaced by the network in question
    data: LightningDataModule  #: its data module

    @classmethod
    def read(cls, name: str | os.PathLike[str]) -> FitConfig:
        """Make the model and the data of a config; its trainer is left out.

        Args:
            name: as `read_config` takes it.

        Raises:
            FileNotFoundError: no such config.
            ValueError: it is no config, has no model or no data, one cannot be made, or the model
                has no `net`.
        """
        content, name = read_config(name), os.fspath(name)
        # What trains a task as a supernet has the task as an argument, which evaluates as well.
        while isinstance(inner := _argument(content.get("model"), "task"), dict):
            content["model"] = inner
        if _argument(content.get("model"), "init_weights") is not None:
            # For the network that is replaced: the file may be gone by now.
            del content["model"]["init_args"]["init_weights"]
        made = instantiate(name, content, ("model", "data"))
        if not isinstance(getattr(made.model, "net", None), nn.Module):
            raise ValueError(
                f"{name}: {type(made.model).__name__} has no network named `net`, where a "
                "subnet could take its place"
            )
        return cls(name, made.model, made.data)

    @checked("net", batches=0)
    def recalibrate(
        self, net: nn.Module, batches: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any]:
        """Estimate the batch norms of a network anew on training data.

        Args:
            net: changed in place; ends on the device.
            batches: of the training loader, as `vizoo fit` would see them; the same each time, so
                that subnets compare.
            device: to run on.

        Returns:
            The config and how many batches and samples were seen.

        Raises:
            ValueError: there is no training data.
        """
        seen: dict[str, Any] = {"config": self.name, "batches": 0, "samples": 0}

        def counted(loaded: Iterator[Any]) -> Iterator[Any]:
            for batch in itertools.islice(loaded, batches):
                seen["batches"] += 1
                seen["samples"] += samples(batch)
                yield batch

        with self.training_batches(net, device) as loaded:
            recalibrate(net, counted(loaded), forward=self.forward)
        return seen

    @checked("net", batches=0)
    def evaluate(
        self, net: nn.Module, metric: str, device: torch.device | str = "cpu", batches: int = 0
    ) -> float:
        """Run the validation loop and return one of the metrics it logs.

        Args:
            net: in evaluation mode.
            metric: such as ``val/epe``.
            device: to run on.
            batches: at most so many; 0 for all.

        Raises:
            ValueError: no such metric; the message lists what there is.
        """
        values, _ = self.metrics(net, device, batches)
        if metric not in values:
            raise ValueError(
                f"metric {metric}: {type(self.module).__name__} logs "
                f"{', '.join(sorted(values)) or 'nothing in validation'}"
            )
        return values[metric]

    @checked("leaves", "metric", "mode", "device", batches=0, val_batches=0)
    def errors(
        self,
        leaves: Leaves | nn.Module,
        metric: str,
        *,
        mode: Literal["min", "max"] = "min",
        batches: int = 20,
        val_batches: int = 0,
        device: torch.device | str = "cpu",
    ) -> Callable[[Architecture], float]:
        """What measures the error of an architecture: batch norms estimated, validation run.

        Args:
            leaves: what gives it its weights, or a supernet.
            metric: such as ``val/epe``.
            mode: ``max`` where a large metric is good: the error is then minus it.
            batches: of training data for batch norms; 0 leaves them as they are.
            val_batches: of validation data at most; 0 for all.
            device: to run on.

        Returns:
            Architecture to error, infinite where it is not finite.
        """
        sign = -1 if mode == "max" else 1
        net = leaves.net if isinstance(leaves, Leaves) else leaves
        run_as = leaves.activate if isinstance(leaves, Leaves) else partial(activate, leaves)

        def error(architecture: Architecture) -> float:
            run_as(architecture)
            if batches:
                self.recalibrate(net, batches, device)
            value = self.evaluate(net, metric, device, val_batches)
            return sign * value if math.isfinite(value) else math.inf

        return error

    def metrics(
        self, net: nn.Module, device: torch.device | str = "cpu", batches: int = 0
    ) -> tuple[dict[str, float], list[str]]:
        """Run the validation loop on at most so many batches, 0 for all; as `evaluate`.

        Returns:
            All metrics that the task logs, and the names of those that it shows beside the
            progress bar.
        """
        device = torch.device(device)
        with quiet(LOUD), self._holding(net):
            trainer = lightning.pytorch.Trainer(
                accelerator="gpu" if device.type == "cuda" else "cpu",
                devices=[device.index or 0] if device.type == "cuda" else 1,
                limit_val_batches=batches or 1.0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            with raised_interrupts():
                rows = trainer.validate(self.module, self.data, verbose=False)
        values = {name: float(value) for row in rows for name, value in row.items()}
        return values, [name for name in values if name in trainer.progress_bar_metrics]

    @contextmanager
    def training_batches(
        self, net: nn.Module, device: torch.device | str = "cpu"
    ) -> Iterator[Iterator[Any]]:
        """An epoch of training batches on a device, the same each time, for a network.

        Within the block the task has the network, which ends on the device.
        """
        with self._holding(net), seeded():
            self.module.to(device)
            self.data.prepare_data()
            self.data.setup("fit")
            place = torch.device(device)
            # A differentiable search has two, of weights and of logits.
            loader = first_loader(self.data.train_dataloader())
            yield (self.module.transfer_batch_to_device(batch, place, 0) for batch in loader)

    @contextmanager
    def _holding(self, net: nn.Module) -> Iterator[None]:
        """The task has a network; within the block one of another task is refused as such."""
        self.module.net = net
        try:
            yield
        except (AttributeError, TypeError) as error:
            names = f"{type(net).forward.__qualname__}()", f"'{type(net).__name__}' object"
            if not str(error).startswith(names):
                raise
            task = type(self.module).__name__
            raise ValueError(f"{self.name}: {task} cannot run this network: {error}") from error

    def forward(self, net: nn.Module, batch: Any) -> object:
        """Run a network on a batch, as the task predicts or trains."""
        task: Any = self.module
        task.net = net
        for name in ("predictions", "outputs"):
            if callable(run := getattr(task, name, None)):
                return run(batch)
        if is_overridden("predict_step", task, LightningModule):
            return task.predict_step(batch, 0)
        return self.loss(net, batch)

    def loss(self, net: nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a training step; what the task logs is dropped."""
        return training_loss(self.module, net, batch)


def _argument(made: Any, name: str) -> Any:
    """An argument of what a config makes: ``{class_path: …, init_args: {name: …}}``."""
    arguments = made.get("init_args") if isinstance(made, dict) else None
    return arguments.get(name) if isinstance(arguments, dict) else None


_KINDS: dict[str, type[LightningModule] | type[LightningDataModule]] = {
    "model": LightningModule,
    "data": LightningDataModule,
}


def instantiate(name: str, content: Mapping[str, Any], parts: Sequence[str]) -> Any:
    """Make parts of a config, of ``model`` and ``data``; messages call it by its name.

    Returns:
        A namespace with each.

    Raises:
        ValueError: a part is missing or cannot be made.
    """
    parser = LightningArgumentParser(exit_on_error=False)
    for part in parts:
        if part not in content:
            raise ValueError(f"{name}: the config has no `{part}`; give one of `vizoo fit`")
        parser.add_lightning_class_args(_KINDS[part], part, subclass_mode=True)
    return make(name, parser, {part: content[part] for part in parts})


def make(subject: str, parser: LightningArgumentParser, content: Mapping[str, Any]) -> Any:
    """Make what a parser, which raises its errors, knows to be in a config.

    Raises:
        ValueError: something cannot be made; begins with the subject, and is short.
    """
    try:
        parsed = parser.parse_object(content)
        # jsonargparse renames the method in 5.
        return getattr(parser, "instantiate", parser.instantiate_classes)(parsed)
    except (argparse.ArgumentError, TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{subject}: {condense(str(error))}") from error
