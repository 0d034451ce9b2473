"""A supernet that fits, runs and is measured in a blink, with a task and data to train it on."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode
from trainers import quiet_trainer

from vizoo.nas.elastic import BatchNorm2d, Conv2d, Sequential
from vizoo.nas.lid import FewShotTraining, Splitter
from vizoo.nas.space import Choice
from vizoo.nas.supernet import extract
from vizoo.vision.hub import registry
from vizoo.vision.hub.create import create_model
from vizoo.vision.subnets import evaluations
from vizoo.vision.training import NetworkTask, OptimisedTask


class Block(nn.Module):
    """A block of elastic width and kernel."""

    def __init__(self, width, kernel):
        super().__init__()
        self.conv1 = Conv2d(8, width, kernel, padding="half", bias=False)
        self.norm1 = BatchNorm2d(width)
        self.conv2 = Conv2d(width, 8, 1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.norm1(self.conv1(x))))


class Toy(nn.Module):
    """Up to three blocks between two convolutions; images (B, 3, H, W), maps (B, outputs, H, W)."""

    def __init__(self, widths, outputs):
        super().__init__()
        depth = Choice("depth", (1, 2, 3))
        blocks = [
            Block(Choice(f"blocks.{i}.width", widths), Choice(f"blocks.{i}.kernel", (3, 5)))
            for i in range(3)
        ]
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = Sequential(*blocks, length=depth)
        self.head = nn.Conv2d(8, outputs, 1)

    def forward(self, image):
        return self.head(self.blocks(self.stem(image)))


def toy(*, widths=(4, 16, 64), outputs=1, subnet: dict | None = None):
    """The toy supernet, or one of its subnets."""
    net = Toy(tuple(widths), outputs)
    return net if subnet is None else extract(net, subnet["choices"])


def toy_plain():
    """A network without choices."""
    return nn.Conv2d(3, 1, 1)


def register(monkeypatch) -> None:
    """Make these the only models for a test."""
    monkeypatch.setitem(sys.modules, "vizoo.toy_supernet", sys.modules[__name__])
    monkeypatch.setattr(registry, "FAMILIES", {"toy": "toy_supernet"})
    monkeypatch.setattr(registry, "_ENTRIES", {})
    for function in (toy, toy_plain):
        registry.register_model(task="toy")(function)


def enter(monkeypatch, folder: Path, *, length: int, counted: int) -> None:
    """Work in a folder with `toy.yaml`, a config of as many images, and the toys registered.

    Subnets are measured a few times, not for seconds, and predictors are small.

    Args:
        counted: architectures that a command counts exactly.
    """
    register(monkeypatch)
    monkeypatch.setattr("vizoo.vision.subnets.best._COUNTED", counted)
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 3)
    small = {"hidden": (16, 16), "epochs": 40}
    for name, value in small.items():
        monkeypatch.setitem(evaluations._FIT, name, value)
    monkeypatch.chdir(folder)
    config = {
        "model": {"class_path": "toy_supernet.ToyTask"},
        "data": {"class_path": "toy_supernet.ToyData", "init_args": {"length": length}},
    }
    (folder / "toy.yaml").write_text(yaml.safe_dump(config))


class ToyTask(LightningModule):
    """Learns the mean of the colours."""

    def __init__(self, model: str = "toy", init_weights: str | None = None):
        super().__init__()
        self.net = create_model(model, weights=init_weights)

    def forward(self, image):
        return self.net(image)

    def training_step(self, batch, index):
        return F.mse_loss(self(batch[0]), batch[0].mean(1, keepdim=True))

    def validation_step(self, batch, index):
        self.log("val/error", F.mse_loss(self(batch[0]), batch[0].mean(1, keepdim=True)))

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class ToyData(LightningDataModule):
    """Noise."""

    def __init__(self, length: int = 8):
        super().__init__()
        self.length = length

    def loader(self, seed):
        images = torch.rand(self.length, 3, 16, 24, generator=torch.Generator().manual_seed(seed))
        return DataLoader(TensorDataset(images), 4)

    def train_dataloader(self):
        return self.loader(0)

    def val_dataloader(self):
        return self.loader(1)


def exact_times(monkeypatch) -> None:
    """A call takes 1 ms and a nanosecond for every multiply-add, as no machine measures it."""

    @functools.cache
    def milliseconds(call, device):
        with FlopCounterMode(display=False) as counter:
            call()
        return 1 + 1e-6 * (counter.get_total_flops() // 2)

    monkeypatch.setattr("vizoo.common.timing.milliseconds", milliseconds)


class StoredTask(ToyTask):
    """Its checkpoints say what their readers need."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"model": "toy"})


def train_leaves(folder: Path) -> Path:
    """Train two leaves, between which the widths of the first block are parted; their folder."""
    trainer = quiet_trainer(folder, enable_checkpointing=False, limit_val_batches=0, max_epochs=-1)
    splitter = Splitter("random", choices=["blocks.0.width"], min_group=1)
    trainer.fit(FewShotTraining(StoredTask(), [1, 1], splitter), ToyData())
    return folder / "leaves"


class StepTask(OptimisedTask):
    """It has its steps alone."""

    def __init__(self):
        super().__init__()
        self.net = create_model("toy")

    def training_step(self, batch, index):
        loss = F.mse_loss(self.net(batch[0]), batch[0].mean(1, keepdim=True))
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val/error", self.training_step(batch, index))


class OutputsTask(NetworkTask):
    """It measures in its own way, and names its network itself."""

    def __init__(self, lr: float = 1e-2):
        super().__init__("toy", {"widths": [4, 8]}, lr=lr)

    def outputs(self, batch):
        return self.net(batch[0])

    def training_step(self, batch, index):
        return F.mse_loss(self.outputs(batch), batch[0].mean(1, keepdim=True))

    def validation_step(self, batch, index):
        self.log("val/error", self.training_step(batch, index))

    def on_validation_epoch_end(self):
        pass
