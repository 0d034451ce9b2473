"""How well a supernet, in one piece or in parts, ranks NASBench-201's cells as published.

    python -m benchmarks.ranking --cifar DIR --nasbench201 FILE [--zero-cost FILE]
        [--out docs/results/ranking.json] [--runs ranking]

DIR has `train`, a folder of CIFAR-10's images for each class; the files are those that
`vizoo.nas.tabular` reads and NASLib's scores of untrained networks (`index`, `cifar10_nwot` …).
Small cells learn from few and small images, so that a run takes minutes on one core. One supernet
is compared with four parts of two levels of splits, with as many steps in total. What each run
found is kept in a folder, so that a benchmark that was stopped goes on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks._few_shot import Images, judged, kept, levelled, spread
from benchmarks._machine import arguments, record, start
from vizoo.classification.task import ClassificationTask
from vizoo.datasets.images import ImageFolders, ImagePreset
from vizoo.nas.lid import compare
from vizoo.nas.tabular import Tabular, nasbench201

NETWORKS = 1000
SIDE, BATCH = 16, 50
PLANS = {
    "one supernet": ("lid", [72]),
    "parts drawn at random": ("random", [18, 9, 9]),
    "parts by gradients": ("gradient", [18, 9, 9]),
    "parts by dimensions": ("lid", [18, 9, 9]),
}
"""By how splits are found: epochs of a node of each level, 72 in total."""
COLUMNS = ("cifar10_test", "cifar100_test")
SCORES = ("nwot", "synflow", "jacov")
SHOWN = ["ranked by", "CIFAR-10", "CIFAR-100", "best quarter", "CIFAR-10, levelled"]
SHOWN += ["mean accuracy, %", "CPU minutes"]


def images(cifar: Path) -> dict[str, Images]:
    """5,000 images to train on and 500 on which supernets judge, in one order."""
    found = {}
    for part in ("train", "val"):
        preset = ImagePreset(size=(SIDE, SIDE), crop=1.0, scale=(1.0, 1.0))
        folders = ImageFolders(str(cifar / "train"), part, preset, shares=(0.1, 0.01, 0.89))
        order = torch.randperm(len(folders), generator=torch.Generator().manual_seed(0)).tolist()
        samples = [folders[place] for place in order]
        labels = torch.tensor([sample["label"] for sample in samples])
        found[part] = torch.stack([sample["image"] for sample in samples]), labels
    return found


def task() -> ClassificationTask:
    """What trains the supernet, by the recipe of compare/cifar10_small.yaml."""
    return ClassificationTask(
        "nasbench201",
        {"classes": 10, "channels": 8, "cells": 1},
        classes=[str(number) for number in range(10)],
        optimizer="adamw",
        optimizer_args={"weight_decay": 0.05, "foreach": True},
        lr=3e-3,
        lr_schedule="constant",  # falls by the levels' cosine
        label_smoothing=0.05,
    ).to(memory_format=torch.channels_last)


def run(method: str, seed: int, data: dict[str, Images], cells: list) -> dict:
    """Train by one method, and judge every network by its part."""
    pairs = zip(*data["train"], strict=True)
    samples = [{"image": image, "label": label} for image, label in pairs]
    criterion, epochs = PLANS[method]
    return judged(
        task,
        DataLoader(samples, BATCH, shuffle=True, drop_last=True),
        epochs,
        criterion,
        cells,
        [data["train"][0][:250]],
        data["val"],
        seed=seed,
        layers=["cells.*"],
        batches=10,
        batch_size=100,
    )


def taus(scores: Sequence[float], truths: Sequence[Sequence[float]]) -> list[float]:
    """Kendall's tau against the truth by CIFAR-10 and by CIFAR-100, and among the best quarter."""
    best = np.argsort(-np.asarray(truths[0]))[: len(scores) // 4]
    whole = [compare(scores, truth).kendall for truth in truths]
    return [*whole, compare(np.asarray(scores)[best], np.asarray(truths[0])[best]).kendall]


def table(tabular: Tabular, cells: list, runs: dict[str, list[dict]]) -> list[list[str]]:
    """A row for what needs no training, and one for each method that has runs."""
    truths = [[tabular.look_up(cell, column) for cell in cells] for column in COLUMNS]
    rows = []
    for name, column in (("number of parameters", "params"), ("multiply-adds", "flops")):
        agree = taus([tabular.look_up(cell, column) for cell in cells], truths)
        rows.append([name, *(f"{tau:.3f}" for tau in agree), "-", "-", "-"])
    for method, found in runs.items():
        if not found:
            continue
        agree = [taus(one["scores"], truths) for one in found]
        moved = [
            levelled(tabular.space, cells, one["scores"], truths[0], one["splits"])
            for one in found
            if one["splits"]
        ]
        level = spread([compare(scores, truths[0]).kendall for scores in moved]) if moved else "-"
        reached = fmean(fmean(one["scores"]) for one in found)
        minutes = fmean(one["seconds"] for one in found) / 60
        means = map(spread, zip(*agree, strict=True))
        rows.append([method, *means, level, f"{reached:.1f}", f"{minutes:.1f}"])
    return rows


def published(file: str, tabular: Tabular) -> list[list[str]]:
    """The same of published scores of untrained networks, of those networks that have them."""
    with np.load(file, allow_pickle=False) as known:
        index = known["index"]
        truths = [tabular.columns[column][index] for column in COLUMNS]
        scores = {
            f"{name}, published": [
                known[f"{column.removesuffix('_test')}_{name}"] for column in COLUMNS
            ]
            for name in SCORES
        }
    scores["number of parameters"] = [tabular.columns["params"][index]] * len(COLUMNS)
    rows = []
    for name, own in scores.items():
        ten, _, best = taus(own[0], truths)
        agree = (ten, compare(own[1], truths[1]).kendall, best)
        told = f"{name}; other {len(index)} networks"
        rows.append([told, *(f"{tau:.3f}" for tau in agree), "-", "-", "-"])
    return rows


def about(seeds: int) -> str:
    return (
        f"{NETWORKS:,} cells of NASBench-201, drawn once: Kendall tau of their accuracy "
        "with a supernet's weights against the published test accuracies, mean ± deviation of "
        f"{seeds} seeds of everything else that is drawn. Far from the published scale: 8 channels "
        f"and one cell a stage, 5,000 of CIFAR-10's training images at {SIDE}x{SIDE} pixels, "
        "72 epochs (7,200 steps) in total, of which a part has seen 36; statistics of batch norms "
        "by 250 training images, accuracies by 500 others. Best quarter: the 250 best on CIFAR-10. "
        "Levelled: each part moved by what it misses on average, which needs the truth. Minutes: "
        "of the processor, for training and splitting, while other programs ran. The last rows "
        "are of networks that have published scores, for reference; they are another sample."
    )


def main() -> None:
    parser = arguments(__doc__, threads=1, seeds=3)
    parser.add_argument("--cifar", metavar="DIR", type=Path)
    parser.add_argument("--nasbench201", metavar="FILE")
    parser.add_argument("--zero-cost", metavar="FILE", help="published scores, for reference")
    parser.add_argument("--runs", type=Path, default=Path("ranking"), help="the folder of the runs")
    parser.add_argument("--out", metavar="FILE", help="gets the table as a record")
    options, _ = start(parser)
    if not (options.cifar and options.nasbench201):
        print("give images and the file of a table: --cifar and --nasbench201")
        return
    data, tabular = images(options.cifar), nasbench201(options.nasbench201)
    cells = random.Random(0).sample(list(tabular.rows), NETWORKS)
    others = published(options.zero_cost, tabular) if options.zero_cost else []
    runs: dict[str, list[dict]] = {method: [] for method in PLANS}
    for seed in range(options.seeds):
        for method in PLANS:
            runs[method].append(kept(options.runs, method, seed, run, data, cells))
            rows = table(tabular, cells, runs) + others
            print(f"seed {seed}, {method}", *map(" | ".join, rows), sep="\n", flush=True)
            if options.out:
                record(
                    options.out,
                    "NAS-LID: how well parts rank NASBench-201",
                    about(options.seeds),
                    "ranking --cifar DIR --nasbench201 FILE --zero-cost FILE --out FILE",
                    SHOWN,
                    rows,
                )


if __name__ == "__main__":
    main()
