"""Does splitting a supernet help to rank its networks? 243 networks, all trained alone, say.

Data: the ten digits of scikit-learn (`pip install scikit-learn`), 1,797 images of 8x8 pixels: 500
to train on, 500 on which supernets judge, 797 on which networks trained alone do. The space: five
blocks, each a 3x3 average pool, a 1x1 or a 3x3 convolution. One supernet is compared with four
parts of two levels of splits, drawn at random or found by gradients or by dimensions: with as many
epochs in total, and with as many for each network. What each run found is kept in a folder, so that
a benchmark that was stopped goes on.

    python -m benchmarks.few_shot_digits --out digits
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import lightning.pytorch
import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from vizoo.common.files import read_json, write_json
from vizoo.nas import Architecture, Choice, elastic, extract, search_space
from vizoo.nas.lid import compare

from ._few_shot import accuracy, judged, kept, levelled, spread
from ._machine import arguments, start, table

OPERATIONS = ("avg_pool_3x3", "conv_1x1", "conv_3x3")
CHANNELS = 8
BATCH = 125
ALONE_EPOCHS = 15
PLANS = {
    "one-shot 300": [300],
    "random 300": [100, 50, 25],
    "gradient 300": [100, 50, 25],
    "lid 300": [100, 50, 25],
    "one-shot 700": [700],
    "random 700": [100, 100, 100],
    "gradient 700": [100, 100, 100],
    "lid 700": [100, 100, 100],
}
"""Epochs of a node of each level, by how splits are found and epochs in total. With splits a
network's part has trained for 175 of 300 and for 300 of 700."""


def operation(name: str) -> nn.Module:
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    conv = nn.Conv2d(CHANNELS, CHANNELS, int(name[-1]), padding=int(name[-1]) // 2, bias=False)
    return nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(CHANNELS))


class DigitNet(nn.Module):
    """(B, 1, 8, 8) to logits (B, 10): three searched blocks at 4x4, two at 2x2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, CHANNELS, 3, 2, 1), nn.BatchNorm2d(CHANNELS))
        self.blocks = nn.ModuleList(
            elastic.Operation({o: operation(o) for o in OPERATIONS}, Choice(f"b{i}", OPERATIONS))
            for i in range(5)
        )
        self.classifier = nn.Linear(CHANNELS, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            x = block(F.avg_pool2d(x, 2) if index == 3 else x)
        return self.classifier(F.relu(x).mean((2, 3)))


class DigitTask(lightning.pytorch.LightningModule):
    """What trains the supernet; networks trained alone use the same optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.net = DigitNet()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.net)


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), 0.02, weight_decay=0.01, foreach=True)


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels to train on, to validate on and to test on."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = zip(("train", "val", "test"), order.split([500, 500, 797]), strict=True)
    return {name: (images[part], labels[part]) for name, part in parts}


def train_alone(net: nn.Module, data: tuple[Tensor, Tensor], seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    optimizer = optimizer_of(net)
    steps = ALONE_EPOCHS * (len(data[1]) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.002)
    for _ in range(ALONE_EPOCHS):
        for part in torch.randperm(len(data[1]), generator=generator).split(BATCH):
            F.cross_entropy(net(data[0][part]), data[1][part]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return net.eval()


def truth(folder: Path, data: dict[str, tuple[Tensor, Tensor]], seeds: int) -> dict:
    """Test accuracy of every network trained alone, per seed; and its parameters."""
    path = folder / "truth.json"
    found = read_json(path) if path.exists() else {"accuracy": {}, "parameters": {}}
    torch.manual_seed(0)
    net = DigitNet()
    missing = [
        (seed, architecture)
        for seed in range(seeds)
        for architecture in search_space(net).enumerate()
        if f"{key(architecture)}/{seed}" not in found["accuracy"]
    ]
    for number, (seed, architecture) in enumerate(track(missing, "networks alone"), start=1):
        torch.manual_seed(seed)
        alone = train_alone(extract(net, architecture, inherit=False), data["train"], seed)
        found["accuracy"][f"{key(architecture)}/{seed}"] = accuracy(alone, data["test"])
        found["parameters"][key(architecture)] = sum(p.numel() for p in alone.parameters())
        if number % 20 == 0 or number == len(missing):
            write_json(path, found)
    return found


def key(architecture: Architecture) -> str:
    return "".join(str(OPERATIONS.index(value)) for value in architecture.values())


def run(method: str, seed: int, data: dict[str, tuple[Tensor, Tensor]]) -> dict:
    """Train by one method, and judge every network by its part."""
    criterion = method.split()[0]
    return judged(
        DigitTask,
        DataLoader(TensorDataset(*data["train"]), BATCH, shuffle=True, drop_last=True),
        PLANS[method],
        "lid" if criterion == "one-shot" else criterion,
        list(search_space(DigitNet()).enumerate()),
        data["train"][0].split(BATCH),
        data["val"],
        seed=seed,
        batches=4,
        batch_size=BATCH,
    )


def report(known: dict, runs: dict[str, list[dict]], seeds: int) -> Table:
    """Kendall tau against the mean of networks trained alone, and with the parts levelled."""
    space = search_space(DigitNet())
    architectures = list(space.enumerate())
    names = [key(architecture) for architecture in architectures]
    alone = [[known["accuracy"][f"{n}/{s}"] for n in names] for s in range(seeds)]
    mean = [statistics.mean(values) for values in zip(*alone, strict=True)]
    best = sorted(range(len(names)), key=lambda i: -mean[i])[: len(names) // 4]
    columns = ["score", "tau", "each seed", "levelled", "best quarter", "precision@10", "mean"]
    title = f"{len(names)} networks, {min(mean):.1f} to {max(mean):.1f} % alone"
    shown = table(columns, title=title)

    def row(
        name: str,
        scores: list[list[float]],
        against: list[float],
        splits: list[dict] | None = None,
    ) -> None:
        whole = [compare(s, against, top=(10,)) for s in scores]
        part = [compare([s[i] for i in best], [against[i] for i in best]) for s in scores]
        taus = [c.kendall for c in whole]
        moved = [
            compare(levelled(space, architectures, s, against, found), against).kendall
            for s, found in zip(scores, splits or [], strict=False)
        ]
        shown.add_row(
            name,
            spread(taus),
            " ".join(f"{tau:.3f}" for tau in taus),
            f"{statistics.mean(moved):.3f}" if moved else "",
            f"{statistics.mean(c.kendall for c in part):.3f}",
            f"{statistics.mean(c.precision[10] for c in whole):.2f}",
            f"{statistics.mean(map(statistics.mean, scores)):.1f}",
        )

    row("parameters", [[float(known["parameters"][n]) for n in names]], mean)
    if seeds > 1:
        row(
            "one training alone",
            [alone[0]],
            [statistics.mean(v) for v in zip(*alone[1:], strict=True)],
        )
    for method, found in runs.items():
        splits = [r["splits"] for r in found if r["splits"]]
        row(method, [r["scores"] for r in found], mean, splits)
    return shown


def main() -> None:
    parser = arguments(__doc__, threads=1)
    parser.add_argument("--out", type=Path, default=Path("few_shot_digits"))
    parser.add_argument("--seeds", type=int, default=3, help="of each method and of the truth")
    options, console = start(parser, width=110)
    data = digits()
    runs: dict[str, list[dict]] = {name: [] for name in PLANS}
    wanted = [(method, seed) for seed in range(options.seeds) for method in PLANS]
    for method, seed in track(wanted, "supernets"):
        runs[method].append(kept(options.out, method, seed, run, data))
    console.print(report(truth(options.out, data, options.seeds), runs, options.seeds))
    for method, found in runs.items():
        for seed, result in enumerate(found):
            console.print(
                f"{method} {seed}: {result['seconds']:.0f} s, {json.dumps(result['splits'])}"
            )


if __name__ == "__main__":
    main()
