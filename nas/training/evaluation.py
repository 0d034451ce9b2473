"""Watching subnets while their supernet trains: extracted, recalibrated, measured by its task."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from rich.progress import Progress
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from ...common.files import read_json
from ..space import Architecture, Scalar, SearchSpace
from ..supernet import extract

__all__ = [
    "Task",
    "Watched",
    "first_batches",
    "named_subnet",
    "open_subnet",
    "standing_in",
    "training_loss",
    "watch",
]


class Task(LightningModule):
    """What measuring and training subnets ask of a task."""

    net: nn.Module  #: the network
    outputs: Callable[[Any], Any]  #: batch → what the network predicts in training
    loss: Callable[[Any, Any], Tensor]  #: outputs, batch → scalar
    #: outputs, another network's outputs, batch → scalar
    distillation_loss: Callable[[Any, Any, Any], Tensor]
    mixed: Callable[[Any], Any]  #: batch → one of mixed samples; not every task has it


@dataclass(eq=False)
class Watched:
    """A subnet that is measured, and what measures it."""

    net: nn.Module  #: the extracted network
    #: what its metrics are logged as; several where names mean the same subnet
    names: list[str] = field(default_factory=list)
    #: the task's own modules besides its network, a copy for this subnet alone
    metrics: dict[str, nn.Module] = field(default_factory=dict)


def named_subnet(space: SearchSpace, wanted: str | Mapping[str, Sequence[Scalar]]) -> Architecture:
    """The subnet that a config names.

    Args:
        space: its search space.
        wanted: `largest`, `middle` or `smallest`, or what `SearchSpace.restrict` takes, for the
            largest of that part.

    Raises:
        ValueError: any other word, or patterns that do not fit the space.
    """
    if wanted == "middle":
        wanted = {c.name: [c.values[len(c.values) // 2]] for c in space}
    if isinstance(wanted, Mapping):
        return space.restrict(wanted).largest()
    if wanted not in ("largest", "smallest"):
        raise ValueError(
            f"{wanted!r} names no subnet: choose largest, middle, smallest, or give patterns of "
            "choices and their values"
        )
    return space.largest() if wanted == "largest" else space.smallest()


def open_subnet(space: SearchSpace, source: str) -> Architecture:
    """The subnet of a word or a file.

    Args:
        space: its search space.
        source: a word of `named_subnet`, or a JSON file of an architecture, of a subnet that
            `vizoo subnet` cut out, or of patterns as `SearchSpace.restrict` takes them.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such word, or a file of something else.
    """
    if not Path(source).suffix and not Path(source).is_file():
        return named_subnet(space, source)
    content = read_json(source, "an architecture")
    if isinstance(content, dict) and isinstance(content.get("architecture"), dict):
        content = content["architecture"]
    try:
        if isinstance(content, dict) and "choices" not in content:
            return named_subnet(space, content)
        return space.validate(Architecture.from_json(content))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error


def watch(task: Task, subnets: Mapping[str, Architecture]) -> list[Watched]:
    """Extract the subnets to measure, each once whatever the number of its names."""
    watched: dict[Architecture, Watched] = {}
    for name, architecture in subnets.items():
        if architecture not in watched:
            metrics = {
                child: copy.deepcopy(module)
                for child, module in task.named_children()
                if child != "net" and not any(True for _ in module.parameters())
            }
            watched[architecture] = Watched(extract(task.net, architecture), metrics=metrics)
        watched[architecture].names.append(name)
    return list(watched.values())


@contextmanager
def standing_in(task: LightningModule, net: nn.Module, **others: nn.Module) -> Iterator[None]:
    """Let the task have another network, and other modules, within the block."""
    others["net"] = net
    own = {name: getattr(task, name) for name in others}
    try:
        for name, module in others.items():
            setattr(task, name, module)
        yield
    finally:
        for name, module in own.items():
            setattr(task, name, module)


def training_loss(task: LightningModule, net: nn.Module, batch: Any) -> Tensor:
    """The loss of a task's training step with a network; what the task logs is dropped."""
    silent = dict.fromkeys(("log", "log_dict"), lambda *_, **__: None)
    own = {name: vars(task)[name] for name in silent if name in vars(task)}
    vars(task).update(silent)
    try:
        with standing_in(task, net):
            output: Any = task.training_step(batch, 0)
    finally:
        for name in silent:
            del vars(task)[name]
        vars(task).update(own)
    return output["loss"] if isinstance(output, Mapping) else output


@contextmanager
def first_batches(
    trainer: Trainer,
    count: int | None = None,
    rank: int = 0,
    processes: int = 1,
    *,
    shown_as: str = "",
) -> Iterator[Iterator[Any]]:
    """The first training batches, or an epoch's, on the trainer's device, the same each time.

    Training draws on afterwards as if nothing had been, also from generators of the loader's own.
    Of several processes each may have the share of its rank. With a name they are counted in the
    trainer's progress bar.

    Raises:
        ValueError: there is no training data.
    """
    with seeded():
        loader = _loader(trainer)
        sampler: Any = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        sampler = getattr(loader, "sampler", None) if sampler is None else sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(0)
        if isinstance(sampler, DistributedSampler):  # which has divided them already
            rank, count = 0, None if count is None else len(range(rank, count, processes))
            processes = 1
        with _seeded_generators(loader, getattr(loader, "batch_sampler", None), sampler):
            batches = map(trainer.precision_plugin.convert_input, loader)
            batches = map(trainer.strategy.batch_to_device, islice(batches, rank, count, processes))
            total = None if count is None else len(range(rank, count, processes))
            yield _counted(batches, total, trainer, shown_as) if shown_as else batches


def _counted(
    batches: Iterator[Any], total: int | None, trainer: Trainer, name: str
) -> Iterator[Any]:
    """The same batches, in a bar of their own below the trainer's, where that is rich's."""
    progress = getattr(trainer.progress_bar_callback, "progress", None)
    if not isinstance(progress, Progress):
        yield from batches
        return
    bar = progress.add_task(name, total=total)
    progress.refresh()
    try:
        for batch in batches:
            yield batch
            progress.advance(bar)
            progress.refresh()
    finally:
        progress.remove_task(bar)


@contextmanager
def seeded() -> Iterator[None]:
    """Seed torch's, Python's and NumPy's own generators; afterwards they are as before."""
    with isolate_rng():
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        yield


@contextmanager
def _seeded_generators(*owners: object) -> Iterator[None]:
    """Seed the generators that any of these draw from; afterwards they are as before."""
    generators = (getattr(owner, "generator", None) for owner in owners)
    states = {g: g.get_state() for g in generators if isinstance(g, Generator)}
    try:
        for generator in states:
            generator.manual_seed(0)
        yield
    finally:
        for generator, state in states.items():
            generator.set_state(state)


def _loader(trainer: Trainer) -> Any:
    """A loader of training batches besides the one that training is in the middle of."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    if data is not None:
        if trainer.state.fn != "fit":
            data.setup("fit")
        return first_loader(data.train_dataloader())
    loader = first_loader(trainer.train_dataloader)
    if loader is None and trainer.state.fn == "fit":  # the sanity check comes before it is set up
        given = trainer.fit_loop._data_source.dataloader()
        loader = first_loader(getattr(given, "iterables", given))
    if loader is None:
        raise ValueError(
            "no training data to recalibrate batch normalisation on: give the trainer a data "
            "module, or recalibration_batches 0"
        )
    if isinstance(loader, DataLoader) and loader.batch_sampler is not None:
        return DataLoader(
            loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
        )
    return loader


def first_loader(loaders: Any) -> Any:
    """The loader itself, or of several the first."""
    return next(iter(loaders.values())) if isinstance(loaders, Mapping) else loaders
