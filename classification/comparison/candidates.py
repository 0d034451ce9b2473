"""The network of a row and a seed: as it is, or searched, picked and cut out of its space."""

from __future__ import annotations

import itertools
import math
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import lightning.pytorch
import torch
from lightning.pytorch import LightningDataModule, LightningModule, seed_everything
from torch import nn

from ...common.counts import count_parameters, on_meta
from ...common.devices import choose_device
from ...common.interrupts import raised_interrupts
from ...common.progress import quiet
from ...common.timing import measure
from ...nas.conversion.importance import taylor_scores
from ...nas.differentiable import Cost, DifferentiableSearch, GumbelSoftmax, HalvedData
from ...nas.efficiency.table import LatencyTable
from ...nas.lid import FewShotTraining, Leaves, Splitter
from ...nas.search import Constraint, each, evolve
from ...nas.search.constraints import Limits
from ...nas.space import Architecture, SearchSpace
from ...nas.supernet import extract
from ...nas.training import SandwichSampler, SupernetTask, UniformSampler
from ...vision.configs.task import LOUD, FitConfig
from ...vision.hub.converted import as_supernet
from ...vision.subnets.bench import Bench, space_of
from ...vision.subnets.best import best_subnet, checked_limits, constraints
from ...vision.subnets.leaves import open_tree, unsplit
from ...vision.subnets.ranking import rank
from ..task import ClassificationTask
from .config import CompareConfig, Pick, Row, Search, share_of

__all__ = ["Shared", "check_rows", "cpu_minutes", "fit", "found"]

_SECONDS = 0.2  # that each subnet of a table of latencies is measured
_TIMED = 60  # runs of which a latency is the median
_SCORED = 8  # training batches that importance is measured on
_SHARES = 64  # of a width, that uniform ones are tried of
_Errors = Callable[[Architecture], float]


def _task(config: CompareConfig, row: Row, lr: float | None, **model: Any) -> ClassificationTask:
    """What trains a network of a row by the recipe, at another learning rate where one is given."""
    recipe = {key: value for key, value in config.training.items() if key != "epochs"}
    recipe |= {} if lr is None else {"lr": lr}
    classes = len(cast("Any", config.data).sets("train")[0].classes)
    return ClassificationTask(row.model, {"classes": classes, **row.model_args, **model}, **recipe)


def check_rows(config: CompareConfig) -> None:
    """Refuse a row whose network or recipe cannot be made, before others are trained for hours.

    Raises:
        ValueError: which row, and what is wrong with it.
    """
    for name, row in config.rows.items():
        try:
            with torch.device("meta"):
                _task(config, _plain(row), row.lr)
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{config.name}: row {name}: {error}") from error


def _plain(row: Row) -> Row:
    """The network of a row before it is converted."""
    return Row(row.model, {k: v for k, v in row.model_args.items() if k != "convert"})


def fit(module: LightningModule, data: LightningDataModule, epochs: int) -> None:
    """Train on one device, without files of its own and without validation."""
    with quiet(LOUD), raised_interrupts(), tempfile.TemporaryDirectory() as folder:
        lightning.pytorch.Trainer(
            accelerator="auto",
            devices=1,
            max_epochs=epochs,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            limit_val_batches=0,
        ).fit(module, datamodule=data)
    module.cpu()


def found(
    config: CompareConfig, row: Row, seed: int, shared: Shared
) -> tuple[ClassificationTask, float]:
    """The task of a row's network, ready to be trained; with the weights that it inherits, if any.

    Args:
        config: settings of the comparison.
        row: what is to be found.
        seed: of all draws.
        shared: what rows that were found before leave to this one.

    Returns:
        The task, and the processor's minutes that finding it took, those of what is shared too.

    Raises:
        ValueError: no architecture keeps to the limits, or the model is no supernet.
    """
    start, shared.minutes = cpu_minutes(), 0.0

    def fresh(**model: Any) -> ClassificationTask:
        seed_everything(seed, verbose=False)  # whatever the search drew, or was spared to draw
        return _task(config, row, row.lr, **model)

    if row.search is None and row.pick is None:
        return fresh(), 0.0
    cut = _subnet(config, row, seed, shared)
    architecture = cast("dict[str, Any]", cut.architecture)
    task = fresh(**{key: value for key, value in architecture.items() if key != "name"})
    if row.weights == "inherited":
        batches = 8 if row.search is None else row.search.recalibration_batches
        FitConfig(config.name, task, config.data).recalibrate(cut, batches)
        task.net.load_state_dict(cut.state_dict())
        task.net.train()
    return task, cpu_minutes() - start + shared.minutes


def _subnet(config: CompareConfig, row: Row, seed: int, shared: Shared) -> nn.Module:
    """The subnet that is searched or picked, with the supernet's weights."""
    if row.search is not None and row.search.method == "dnas":
        task = _supernet(config, row, seed, shared)
        architecture = _derived(config, row, task, seed, shared)
        return extract(task.net.cpu(), architecture)
    about = [row.model, row.model_args, row.pretrain, row.importance, row.lr, seed, row.search]
    weights = shared.get("supernet", about, partial(_trained, config, row, seed, shared))
    architecture = _picked(config, row, weights, seed, shared)
    weights.leaves.activate(architecture)
    return extract(weights.leaves.net.cpu(), architecture)


def cpu_minutes() -> float:
    """Processor time of this process, and of those it has waited for."""
    return sum(os.times()[:4]) / 60


class Shared:
    """The latest of each kind that was trained or measured, for all rows that need the same."""

    def __init__(self) -> None:
        self.minutes = 0.0  #: that what was taken from here had taken
        self._kept: dict[str, tuple[Any, Any, float]] = {}

    def get(self, kind: str, about: Any, make: Callable[[], Any]) -> Any:
        """What is known of this kind, if it is about the same, else what is made now."""
        if kind in self._kept and self._kept[kind][0] == about:
            _, made, minutes = self._kept[kind]
            self.minutes += minutes
            return made
        before, start = self.minutes, cpu_minutes()
        made = make()
        self._kept[kind] = about, made, cpu_minutes() - start + self.minutes - before
        return made


@dataclass
class _Weights:
    """Weights for every architecture of a row's space."""

    leaves: Leaves  #: gives them
    errors: _Errors  #: measures what an architecture reaches with them
    folder: Any = None  #: where they lie, if they lie in files
    table: LatencyTable | None = None  #: of latencies, once one was asked for

    def latencies(self, bench: Bench, measured: int) -> LatencyTable:
        """Latencies of subnets, measured once."""
        if self.table is None:
            settings: dict[str, Any] = {"samples": measured, "held_out": 4, "seconds": _SECONDS}
            self.table = bench.complete(bench.table(), **settings)
        return self.table


def _supernet(config: CompareConfig, row: Row, seed: int, shared: Shared) -> ClassificationTask:
    """The task of a row's supernet; of a converted network after the training that comes before."""
    seed_everything(seed, verbose=False)
    lr = row.search.lr if row.search else None
    if not row.pretrain:
        return _task(config, row, lr)
    plain = _plain(row)

    def pretrained() -> nn.Module:
        task = _task(config, plain, row.lr)
        fit(task, config.data, row.pretrain)
        return task.net

    about = [plain.model, plain.model_args, row.pretrain, row.lr, seed]
    before = shared.get("network", about, pretrained)
    seed_everything(seed, verbose=False)
    scores = _scores(config, row, before) if row.importance == "taylor" else None
    net: Any = as_supernet(before, row.model_args["convert"], scores=scores)
    task = _task(config, row, lr, convert=net.architecture["convert"])
    task.net.load_state_dict(net.state_dict())
    return task


def _scores(config: CompareConfig, row: Row, net: nn.Module) -> dict[str, torch.Tensor]:
    """How important weights are to the loss of some training batches."""
    measuring = FitConfig(config.name, _task(config, _plain(row), None), config.data)
    with measuring.training_batches(net.eval()) as batches:
        return taylor_scores(net, itertools.islice(batches, _SCORED), measuring.loss)


def _bounds(row: Row, bench: Bench, shared: Shared) -> dict[str, float]:
    """The limits of a row as numbers; rows with shares of one network's latency have one limit."""
    if not row.limits:
        return {}
    limits = dict(row.limits)
    for kind, bound in row.limits.items():
        if (share := share_of(bound)) is not None:
            about = f"{kind} of {row.model} {row.model_args}"
            whole = shared.get(about, None, partial(_cost, bench, kind, bench.space.largest()))
            limits[kind] = whole * share / 100
    return checked_limits(limits)


def _cost(bench: Bench, kind: str, architecture: Architecture) -> float:
    """One cost of an architecture, counted or, if it is the latency, measured."""
    if kind != "latency":
        return _costs(bench)[kind](architecture)
    ready, inputs = bench.prepare(bench.network(architecture)), bench.inputs()
    return measure(lambda: ready(*inputs), bench.device, repetitions=_TIMED).median


def _derived(
    config: CompareConfig, row: Row, task: ClassificationTask, seed: int, shared: Shared
) -> Architecture:
    """What a differentiable search finds."""
    search = cast("Search", row.search)
    bounds = _bounds(row, Bench.here(task.net, size=config.size, batch=config.batch), shared)
    if len(bounds) > 1 or bounds.keys() - {"parameters", "macs"}:
        raise ValueError(f"dnas takes one limit, of parameters or macs, not {', '.join(bounds)}")
    costs = [Cost(bound, cast("Any", kind)) for kind, bound in bounds.items()]
    module = DifferentiableSearch(
        task,
        GumbelSoftmax(hard=False),
        logits_lr=search.logits_lr,
        warmup_epochs=search.warmup_epochs,
        cost=costs[0] if costs else None,
        seed=seed,
    )
    fit(module, HalvedData(config.data, seed=seed), cast("int", search.epochs))
    return cast("Architecture", module.result)


def _trained(config: CompareConfig, row: Row, seed: int, shared: Shared) -> _Weights:
    """Train what an architecture is picked by."""
    task, search, folder = _supernet(config, row, seed, shared), row.search, None
    if search is None:
        return _Weights(unsplit(task.net, space_of(task.net)), lambda architecture: math.nan)
    if search.method == "alone":
        alone = partial(_error_alone, config, row, search)
        return _Weights(unsplit(task.net, space_of(task.net)), alone)
    if search.method == "nas_lid":
        folder = tempfile.TemporaryDirectory()
        module = FewShotTraining(
            task,
            cast("list[int]", search.epochs),
            Splitter(**{"seed": seed, **search.splitter}),
            sampler=UniformSampler(seed=seed),
            folder=folder.name,
        )
        fit(module, config.data, -1)
        leaves, _, _ = open_tree(Path(folder.name) / "tree.json")
    else:
        one = search.method == "one_shot"
        sampler = UniformSampler(seed=seed) if one else SandwichSampler(1, seed)
        wrapped = SupernetTask(task, sampler, "none" if one else "in_place")
        fit(wrapped, config.data, cast("int", search.epochs))
        leaves = unsplit(task.net, space_of(task.net))
    measuring = FitConfig(config.name, _task(config, row, None), config.data)
    batches = {"batches": search.recalibration_batches, "val_batches": search.val_batches}
    device = choose_device("auto")
    errors = measuring.errors(leaves, "val/accuracy", mode="max", device=device, **batches)
    return _Weights(leaves, errors, folder)


def _error_alone(
    config: CompareConfig, row: Row, search: Search, architecture: Architecture
) -> float:
    """The validation error of an architecture after a short training alone."""
    task = _task(config, row, search.lr or row.lr, subnet=architecture.to_json())
    fit(task, config.data, cast("int", search.epochs))
    measuring = FitConfig(config.name, task, config.data)
    net, device = task.net.eval(), choose_device("auto")
    return -measuring.evaluate(net, "val/accuracy", device, search.val_batches)


def _picked(
    config: CompareConfig, row: Row, weights: _Weights, seed: int, shared: Shared
) -> Architecture:
    """The architecture that a row's pick takes."""
    pick, leaves, rng = cast("Pick", row.pick), weights.leaves, random.Random(seed)
    space = leaves.tree.space
    bench = Bench.here(leaves.net, space, size=config.size, batch=config.batch)
    bounds = _bounds(row, bench, shared)
    if pick.by == "largest":
        if not bounds:
            return space.largest()
        table = weights.latencies(bench, pick.measured) if "latency" in bounds else None
        subnet = best_subnet(bench, bounds, table=table, seed=seed)
        if subnet.missed:
            raise ValueError(f"no subnet that was measured keeps the {subnet.missed[0]}'s limit")
        return subnet.architecture
    if pick.by == "uniform":
        return _uniform(bench, bounds)
    costs = _costs(bench)
    if "latency" in bounds:
        costs["latency"] = weights.latencies(bench, pick.measured).regressor("latency")
    limits = constraints(costs, bounds)
    if pick.by == "evolution":
        return evolve(
            space,
            each(weights.errors),
            constraints=limits,
            seed=seed,
            population=pick.population,
            generations=pick.generations,
        ).best
    drawn = _drawn(space, limits, 1 if pick.by == "random" else pick.samples, rng)
    if pick.by == "ranking":
        return rank(leaves, weights.errors, drawn)[0].architecture
    return max(drawn, key=costs["parameters"])


def _costs(bench: Bench) -> dict[str, Callable[[Architecture], float]]:
    """Exact counts of architectures."""
    counted, shapes = cache(bench.counts), on_meta(bench.net)

    @cache
    def parameters(architecture: Architecture) -> float:  # several times faster than all counts
        return count_parameters(extract(shapes, architecture))

    return {
        "parameters": parameters,
        "macs": lambda architecture: counted(architecture).macs,
        "memory": lambda architecture: counted(architecture).memory,
    }


def _drawn(
    space: Any, constraints: list[Constraint], number: int, rng: random.Random
) -> list[Architecture]:
    """Different architectures that keep to limits: those drawn, or else what comes near to them."""
    limits = Limits(space, constraints)
    refuge = limits.refuge()
    made: dict[Architecture, None] = {}
    for _ in range(20 * number):
        made[limits.repaired(space.sample(rng), refuge, rng)] = None
        if len(made) == number:
            break
    return list(made)


def _uniform(bench: Bench, bounds: Mapping[str, float]) -> Architecture:
    """The widest architecture within limits of those whose widths all have the same share.

    Widths have steps; one after another takes the next, as long as the limits are kept.
    """
    space, counted = bench.space, _costs(bench)
    costs = {kind: counted.get(kind, partial(_cost, bench, kind)) for kind in bounds}

    def keeps(widths: Mapping[str, Any]) -> bool:
        architecture = _of_widths(space, widths)
        return all(costs[kind](architecture) <= bound for kind, bound in bounds.items())

    widths: dict[str, tuple[Any, ...]] = {
        c.name: c.values for c in space if c.name.endswith((".width", ".num_heads"))
    }
    wider: dict[str, Any] = {}
    for part in range(_SHARES, -1, -1):
        nearest = {n: _nearest(values, part / _SHARES) for n, values in widths.items()}
        if widths and nearest == wider:
            continue
        if keeps(nearest):
            for name in wider:
                if keeps({**nearest, name: wider[name]}):
                    nearest[name] = wider[name]
            return _of_widths(space, nearest)
        wider = nearest
    raise ValueError(f"no uniform width keeps to {dict(bounds)}")


def _nearest(widths: Sequence[Any], share: float) -> Any:
    """The width that is nearest to a share of the largest."""
    return min(widths, key=lambda width: abs(width - share * max(widths)))


def _of_widths(space: SearchSpace, widths: Mapping[str, Any]) -> Architecture:
    """The largest architecture that has these widths."""
    return space.restrict({name: [value] for name, value in widths.items()}).largest()
