"""Whether a differentiable search of CovidNet3D finds better networks than chance does.

    python -m benchmarks.dnas_search [--seeds 0 1 2] [--random 10] [--out dnas_search.json]

For each seed the tiny supernet is searched on generated scans of three classes, and the derived
network trained from the start, on as many scans and as long as each of the random architectures.
All are measured on scans that neither search nor training saw. Finished runs are kept in the file
of `--out`, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import tempfile
import time
import warnings
from pathlib import Path
from statistics import mean, median
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from rich.table import Table

from benchmarks._machine import arguments, start, table, trainer
from vizoo.classification.task import ClassificationTask
from vizoo.common.files import write_json
from vizoo.datasets.ct import CTDataModule, CTPreset, GeneratedCT
from vizoo.nas import Architecture, SearchSpace, search_space
from vizoo.nas.differentiable import DifferentiableSearch, GumbelSoftmax, HalvedData, Linear
from vizoo.vision.hub.create import create_model

CLASSES = 3
OPTIMISATION = {"optimizer": "adam", "optimizer_args": {"weight_decay": 5e-4}}
VALIDATED = 10  # epochs of a search between validations


def scans(options: argparse.Namespace, seed: int) -> CTDataModule:
    """Training, validation and test scans; the same for all seeds, in another order."""
    preset = CTPreset((options.size, options.size), options.slices)
    counts = {"train": options.scans, "val": options.scans // 4, "test": options.scans}
    sets = {
        role: [GeneratedCT(count, CLASSES, preset, seed=number, cache=options.cache)]
        for number, (role, count) in enumerate(counts.items(), start=1)
    }
    return CTDataModule(**sets, batch_size=options.batch, eval_batch_size=10, workers=0, seed=seed)


def task(lr: float, subnet: dict[str, Any] | None = None) -> ClassificationTask:
    """What trains the supernet, or a subnet alone."""
    arguments = {"classes": CLASSES} if subnet is None else {"classes": CLASSES, "subnet": subnet}
    return ClassificationTask("covidnet3d_tiny", arguments, lr=lr, **OPTIMISATION)


def fit(module: LightningModule, data: LightningDataModule, epochs: int, watch: bool) -> Trainer:
    """Train on one core, without files; validate only where `watch` says so."""
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(
            max_epochs=epochs,
            gradient_clip_val=5.0,
            default_root_dir=folder,
            num_sanity_val_steps=0,
            limit_val_batches=1.0 if watch else 0,
            check_val_every_n_epoch=VALIDATED,
        )
        made.fit(module, data)
    return made


def search(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The architecture that a search derives."""
    seed_everything(seed, verbose=False)
    found = DifferentiableSearch(
        task(options.search_lr),
        GumbelSoftmax(hard=False),
        Linear(5.0, 0.5),
        logits_lr=options.logits_lr,
        warmup_epochs=options.search_epochs // 3,
        samples=8,
        metric="val/loss",
        recalibration_batches=8,
        seed=seed,
    )
    fit(found, HalvedData(scans(options, seed), seed=seed), options.search_epochs, watch=True)
    chances = {name: max(shares) for name, shares in found.probabilities().items()}
    return {"architecture": found.result.to_json(), "highest_probability": chances}


def train(options: argparse.Namespace, seed: int, architecture: Architecture) -> dict[str, Any]:
    """Scores of an architecture that is trained from the start."""
    seed_everything(seed, verbose=False)
    data, module = scans(options, seed), task(options.lr, architecture.to_json())
    (scores,) = fit(module, data, options.epochs, watch=False).test(module, data, verbose=False)
    names = ("loss", "accuracy", "macro_auc")
    return {
        **{name: scores[f"test/{name}"] for name in names},
        "cells": list(architecture.values()),
    }


class Runs:
    """Finished runs by name, kept in a file, whose settings have to be the same."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.content = path, {"settings": settings, "runs": {}}
        if path.exists():
            self.content = json.loads(path.read_text())
            if self.content["settings"] != settings:
                raise ValueError(f"{path}: runs of other settings; name another file by --out")

    def get(self, name: str, make: Any, *arguments: Any) -> dict[str, Any]:
        """A run's result, made if it is not there."""
        runs = self.content["runs"]
        if name not in runs:
            start = time.process_time()
            runs[name] = make(*arguments)
            runs[name]["cpu_seconds"] = round(time.process_time() - start, 1)
            write_json(self.path, self.content)
        return runs[name]


def random_architectures(space: SearchSpace, count: int, seed: int) -> list[Architecture]:
    """Different ones, drawn uniformly."""
    found: dict[Architecture, None] = {}
    rng = random.Random(seed)
    while len(found) < count:
        found[space.sample(rng)] = None
    return list(found)


def report(rows: list[tuple[int, dict[str, Any], list[dict[str, Any]]]]) -> list[Table]:
    """A table for each score: derived networks against random ones."""
    tables = []
    for name, sign in (("loss", 1), ("accuracy", -1), ("macro_auc", -1)):
        columns = ["seed", "derived", "median", "mean", "worst", "best", "rank"]
        title = f"test {name}: derived against random architectures"
        tables.append(table(columns, title=title, left=0))
        for seed, derived, others in rows:
            values = sorted((run[name] for run in others), key=lambda value: sign * value)
            rank = 1 + sum(sign * value < sign * derived[name] for value in values)
            numbers = (derived[name], median(values), mean(values), values[-1], values[0])
            place = f"{rank} of {len(values) + 1}"
            tables[-1].add_row(str(seed), *(f"{number:.3f}" for number in numbers), place)
    return tables


def main() -> None:
    parser = arguments(
        __doc__,
        threads=1,
        size=16,
        slices=8,
        batch=8,
        search_epochs=40,
        search_lr=1e-3,
        lr=2e-3,
        logits_lr=3e-2,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--random", type=int, default=10, help="architectures a seed")
    parser.add_argument("--scans", type=int, default=240, help="for training, and for the test")
    parser.add_argument("--epochs", type=int, default=14, help="of the training from the start")
    parser.add_argument("--cache", default=str(Path.home() / ".cache/vizoo/chests"))
    parser.add_argument("--out", type=Path, default=Path("dnas_search.json"))
    options, console = start(parser, width=110)
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
    kept = ("cache", "out", "seeds", "random", "threads")
    settings = {key: value for key, value in vars(options).items() if key not in kept}
    runs, rows = Runs(options.out, settings), []
    space = search_space(create_model("covidnet3d_tiny"))
    for seed in options.seeds:
        found = runs.get(f"search {seed}", search, options, seed)
        architecture = Architecture.from_json(found["architecture"])
        derived = runs.get(f"derived {seed}", train, options, seed, architecture)
        console.print(f"seed {seed}: derived {', '.join(derived['cells'])}: {derived['loss']:.3f}")
        others = []
        for number, other in enumerate(random_architectures(space, options.random, seed)):
            others.append(runs.get(f"random {seed} {number}", train, options, seed, other))
            console.print(
                f"  random {number}: {', '.join(others[-1]['cells'])}: {others[-1]['loss']:.3f}"
            )
        rows.append((seed, derived, others))
    console.print(*report(rows), sep="\n")
    spent = sum(run["cpu_seconds"] for run in runs.content["runs"].values())
    console.print(f"{spent / 60:.0f} minutes of one core")


if __name__ == "__main__":
    main()
