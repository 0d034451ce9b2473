"""Fine-tuning by LoRA-FA against LoRA, all weights and the last layer: memory, time, accuracy.

    python -m benchmarks.lora [--cifar DIR] [--out FILE] [--seeds 3]

(a) A small ViT and a small ResNet learn five classes of CIFAR-10 and are moved to the other five by
a few images of each; (b) `fadnet_plus_tiny` goes from the layered scenes that its weights were
trained on to generated worlds, and so does `fadnet_plus_slight`, which has no weights and learns a
few layered scenes first; of it there is one seed. Seeds are the outer loop; FILE has every run as
soon as it ended, and what it has is not run again. Shown: values that are trained; what autograd
keeps for the backward pass (storages other than parameters, each once) and what the optimiser
holds, in MB; a step in ms (CPU time); the accuracy in per cent, or the end-point error in pixels,
on data held out; the adapters' file in kB.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.table import Table
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._machine import arguments, machine, seconds, start, table
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.datasets.worlds.stereo import WorldStereo
from vizoo.stereo.losses import multiscale_loss
from vizoo.vision.hub.create import create_model
from vizoo.vision.lora import LoRA, adapt, save_adapters

WAYS = ("all weights", "LoRA", "LoRA-FA", "LoRA-FA, corrected", "last layer")
RATES = {"all weights": 1e-3, "last layer": 1e-2}
FIRST = ("airplane", "bird", "deer", "frog", "ship")
SECOND = ("automobile", "cat", "dog", "horse", "truck")
SCALE_WEIGHTS = (0.5, 0.4, 0.3, 0.25, 0.2, 0.1, 0.1)
NETS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "ViT": (
        lambda: VisionTransformer(
            img_size=32, patch_size=4, embed_dim=96, depth=4, num_heads=3, num_classes=5
        ),
        ["head"],
    ),
    "ResNet": (
        lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5, channels=[16, 32, 64, 128]),
        ["fc"],
    ),
}


def small_stem(net: nn.Module) -> nn.Module:
    """A ResNet for images of 32 pixels: its first layers keep their size."""
    if isinstance(net, ResNet):
        net.conv1 = nn.Conv2d(3, net.conv1.out_channels, 3, 1, 1, bias=False)
        net.maxpool = nn.Identity()
    return net


def read(archive: Path, classes: tuple[str, ...], count: int) -> tuple[Tensor, Tensor]:
    """So many images of each class, (N, 3, 32, 32) normalised, and their labels."""
    images, labels, seen = [], [], dict.fromkeys(classes, 0)
    with tarfile.open(archive) as file:
        for member in file:
            name = Path(member.name).parent.name
            if not member.isfile() or seen.get(name, count) >= count:
                continue
            seen[name] += 1
            images.append(np.asarray(Image.open(io.BytesIO(file.extractfile(member).read()))))
            labels.append(classes.index(name))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return (pixels - 0.47) / 0.25, torch.tensor(labels)


def prepare(net: nn.Module, way: str, last: Sequence[str], rank: int, seed: int) -> None:
    """Make a network ready to be trained in one of the ways; new last layers are always trained."""
    if way == "all weights":
        return
    if way == "last layer":
        net.requires_grad_(False)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(any(f".{part}" in f".{name}" for part in last))
        return
    train_a, corrected = way == "LoRA", way.endswith("corrected")
    trains = [part for part in last if part in ("head", "fc")]
    adapt(net, LoRA(rank, trains=trains, train_a=train_a, corrected=corrected, seed=seed))


def kept(net: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps of a step, without parameters."""
    own = {tensor.untyped_storage().data_ptr() for tensor in net.state_dict().values()}
    seen: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(size for place, size in seen.items() if place not in own)


def train(
    net: nn.Module, way: str, rate: float, batches: Iterator[Any], loss: Callable[..., Tensor]
) -> dict[str, float]:
    """Train on batches; values trained, MB kept and held, ms of a step."""
    learnt = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learnt, rate)
    net.train(way != "last layer")  # whose batch norms stay as they are, as weights are frozen
    batches, times = list(batches), []
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    memory = kept(net, lambda: loss(net, batches[0]))
    for batch in batches:

        def step(batch: Any = batch) -> None:
            optimizer.zero_grad()
            loss(net, batch).backward()
            nn.utils.clip_grad_norm_(learnt, 10)
            optimizer.step()

        times.append(seconds(step))
        schedule.step()
    states = [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
    return {
        "trained": sum(parameter.numel() for parameter in learnt),
        "kept": memory / 1e6,
        "held": sum(value.nbytes for value in states) / 1e6,
        "ms": 1e3 * median(times),
    }


def shuffled(images: Tensor, labels: Tensor, size: int, epochs: int, seed: int) -> Iterator[Any]:
    """Batches, mirrored at random."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for places in torch.randperm(len(images), generator=draw).split(size)[
            : len(images) // size
        ]:
            batch, mirrored = images[places], torch.rand(size, generator=draw) < 0.5
            yield torch.where(mirrored.view(-1, 1, 1, 1), batch.flip(3), batch), labels[places]


def entropy(net: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In per cent."""
    net.eval()
    right = [
        (net(x).argmax(1) == y).sum()
        for x, y in zip(images.split(250), labels.split(250), strict=True)
    ]
    return 100 * float(sum(right)) / len(labels)


def size_of_file(net: nn.Module, way: str) -> float | None:
    """kB of the adapters' file."""
    if not way.startswith("LoRA"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        return save_adapters(net, Path(folder) / "adapter.safetensors").stat().st_size / 1e3


class Classifiers:
    """A network that has learnt the first classes of CIFAR-10, to be moved to the second."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        make, self.last = NETS[name]
        torch.manual_seed(0)
        self.base, folder = small_stem(make()), options.cifar
        first = read(folder / "train.tar", FIRST, options.pretrain)
        batches = shuffled(*first, 64, options.pretrain_epochs, 0)
        train(self.base, "all weights", 2e-3, batches, entropy)
        self.before = accuracy(self.base, *read(folder / "test.tar", FIRST, 200))
        self.learning = read(folder / "train.tar", SECOND, options.images)
        self.test, self.epochs = read(folder / "test.tar", SECOND, 200), options.epochs

    def run(self, way: str, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        net = copy.deepcopy(self.base)
        net.reset_classifier(5)
        prepare(net, way, self.last, 8, seed)
        batches = shuffled(*self.learning, 50, self.epochs, seed)
        row = train(net, way, RATES.get(way, 5e-3), batches, entropy)
        return {**row, "score": accuracy(net, *self.test), "file": size_of_file(net, way)}


def disparity_loss(net: nn.Module, batch: Any) -> Tensor:
    left, right, truth, valid = batch
    return multiscale_loss(net.forward_stages(left, right), truth, valid, SCALE_WEIGHTS, 96)


@torch.no_grad()
def error(net: nn.Module, batches: list[Any]) -> float:
    """End-point error, pixels."""
    net.eval()
    errors = []
    for left, right, truth, valid in batches:
        seen = valid & (truth < 96)
        errors.append((net(left, right) - truth)[seen].abs().mean())
    return float(torch.stack(errors).mean())


def pairs(scenes: Callable[..., Any], count: int, seed: int) -> list[Any]:
    """Batches of two generated pairs of images, 192x320."""
    drawn = scenes(count, 192, 320, max_disparity=96.0, seed=seed)
    names = ("left", "right", "disparity", "valid")
    samples = [[torch.as_tensor(drawn[i][name]) for name in names] for i in range(count)]
    groups = [samples[i : i + 2] for i in range(0, count, 2)]
    layout = torch.channels_last
    joined = [[torch.stack(each) for each in zip(*group, strict=True)] for group in groups]
    return [(a.to(memory_format=layout), b.to(memory_format=layout), d, v) for a, b, d, v in joined]


class Stereo:
    """FADNet++ tiny with its weights, or a larger one that learns here, to be moved to worlds."""

    last = ("pred_flow", "pred_res")

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        known = name.endswith("tiny")
        self.base = create_model(name, pretrained=known).to(memory_format=torch.channels_last)
        if not known:
            layered = pairs(GeneratedStereo, options.pairs, 10)
            order = np.random.default_rng(0).integers(len(layered), size=options.stereo_pretrain)
            train(self.base, "all weights", 1e-3, [layered[i] for i in order], disparity_loss)
        self.learning = pairs(WorldStereo, options.pairs, 11)
        self.held, self.steps = pairs(WorldStereo, 8, 12), options.stereo_steps
        self.before = error(self.base, self.held)

    def run(self, way: str, seed: int) -> dict[str, Any]:
        net = copy.deepcopy(self.base)
        prepare(net, way, self.last, 8, seed)
        order = np.random.default_rng(seed).integers(len(self.learning), size=self.steps)
        rate = 3e-4 if way == "all weights" else 3e-3
        row = train(net, way, rate, [self.learning[i] for i in order], disparity_loss)
        return {**row, "score": error(net, self.held), "file": size_of_file(net, way)}


def main() -> None:
    parser = arguments(
        __doc__, threads=1, pretrain_epochs=10, epochs=6, seeds=3, pairs=64, stereo_steps=120
    )
    parser.add_argument("--cifar", type=Path, help="folder of train.tar and test.tar; else no (a)")
    parser.add_argument("--out", type=Path, help="JSON of all runs")
    every = ["fadnet_plus_tiny", "fadnet_plus_slight", "ResNet", "ViT"]
    parser.add_argument("--networks", nargs="+", default=every, choices=every)
    parser.add_argument("--pretrain", type=int, default=2000, help="images of each first class")
    parser.add_argument("--images", type=int, default=300, help="images of each second class")
    parser.add_argument("--stereo-pretrain", type=int, default=300, help="steps without weights")
    options, console = start(parser)
    out: Path | None = options.out
    runs = json.loads(out.read_text())["runs"] if out is not None and out.exists() else {}
    ready: dict[str, Any] = {}
    for seed in range(options.seeds):
        for name in options.networks:
            for way in WAYS:
                key = f"{name}, {way}, {seed}"
                if key in runs or (name.endswith("slight") and seed):
                    continue
                if name in NETS and options.cifar is None:
                    continue
                if name not in ready:
                    ready[name] = (Classifiers if name in NETS else Stereo)(name, options)
                found = ready[name].run(way, seed)
                runs[key] = {**found, "before": ready[name].before}
                if out is not None:
                    out.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1))
    console.print(shown(runs))


def shown(runs: dict[str, Any]) -> Table:
    """The table of all runs, seeds put together."""
    columns = ["trained", "kept", "held", "ms", "file", "before", "score"]
    made = table(["network", "way", *columns, "seeds"], left=2)
    for pair in dict.fromkeys(key.rpartition(", ")[0] for key in runs):
        rows = [row for key, row in runs.items() if key.rpartition(", ")[0] == pair]
        cells = ["" if rows[0][c] is None else f"{median(r[c] for r in rows):.4g}" for c in columns]
        scores = [row["score"] for row in rows]
        cells[-1] = f"{mean(scores):.3g}" + (f" ± {stdev(scores):.2g}" if scores[1:] else "")
        made.add_row(*pair.split(", ", 1), *cells, str(len(rows)))
    return made


if __name__ == "__main__":
    main()
