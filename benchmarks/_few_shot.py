"""Supernets in one piece and in parts, and how well they rank: what benchmarks of splits share."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks._machine import trainer
from vizoo.common.files import read_json, write_json
from vizoo.nas import Architecture, SearchSpace
from vizoo.nas.lid import FewShotTraining, Leaves, Split, Splitter, SplitTree
from vizoo.nas.recalibration import recalibrate
from vizoo.nas.training import UniformSampler

Images = tuple[Tensor, Tensor]
"""Images and their labels."""


def accuracy(net: nn.Module, data: Images) -> float:
    with torch.inference_mode():
        return float((net(data[0]).argmax(1) == data[1]).double().mean() * 100)


def judged(
    make: Callable[[], LightningModule],
    loader: DataLoader,
    epochs: list[int],
    criterion: str,
    architectures: Sequence[Architecture],
    calibration: Sequence[Tensor],
    data: Images,
    *,
    seed: int,
    **splitter: Any,
) -> dict[str, Any]:
    """Train a supernet, the `net` of a task, and its parts, and judge networks, each by its part.

    Epochs are those of a node of each level: one level is one supernet. Of each network statistics
    of batch norms are measured on batches of its own. Returns `scores`, accuracies in %; `splits`
    by node; `seconds` of the processor for training and splitting.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(seed)
    settings = Splitter(criterion=criterion, seed=seed, **splitter)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", PossibleUserWarning)  # that loaders may want processes
        module = FewShotTraining(
            make(), epochs, settings, folder=folder, sampler=UniformSampler(seed=seed)
        )
        fit = trainer(max_epochs=-1, limit_val_batches=0).fit
        start = time.process_time()
        fit(module, loader)
        seconds = time.process_time() - start
        tree = SplitTree.load(Path(folder) / "tree.json")
        net = module.task.net.eval()

        def read(file: str) -> tuple[dict[str, Tensor], dict]:
            content = torch.load(Path(folder) / file, weights_only=True)
            state = content["state_dict"].items()
            return {k.removeprefix("task.net."): v for k, v in state}, content["subspace"]

        leaves, scores = Leaves(tree, net, read), [0.0] * len(architectures)
        parts = [tree.leaf_of(architecture) for architecture in architectures]
        for place in sorted(range(len(parts)), key=parts.__getitem__):
            leaves.activate(architectures[place])
            recalibrate(net, calibration)
            scores[place] = accuracy(net, data)
    splits = {
        name: {"choice": split.choice, "groups": split.groups}
        for name, split in tree.splits.items()
    }
    return {"scores": scores, "splits": splits, "seconds": seconds}


def kept(folder: Path, method: str, seed: int, run: Callable[..., dict], *arguments: Any) -> dict:
    """What a run finds by a method, or what it found when it was last made: the folder keeps it."""
    path = folder / f"{method.replace(' ', '_')}_{seed}.json"
    if not path.exists():
        write_json(path, run(method, seed, *arguments))
    return read_json(path)


def levelled(
    space: SearchSpace,
    architectures: Sequence[Architecture],
    scores: Sequence[float],
    truth: Sequence[float],
    splits: Mapping[str, Any],
) -> list[float]:
    """Scores, each part's moved by as much as makes its mean the truth's."""
    tree = SplitTree(space)
    for node, split in splits.items():
        tree.split(node, Split.from_json(split))
    parts = [tree.leaf_of(architecture) for architecture in architectures]
    misses: dict[str, list[float]] = {}
    for part, score, true in zip(parts, scores, truth, strict=True):
        misses.setdefault(part, []).append(score - true)
    return [s - statistics.mean(misses[part]) for s, part in zip(scores, parts, strict=True)]


def spread(values: Sequence[float]) -> str:
    """Mean and deviation."""
    mean = f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean
