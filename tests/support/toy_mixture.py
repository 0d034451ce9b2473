"""A chain of choices between operations, of which one is provably better, and its task."""

from __future__ import annotations

import os
import signal

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from vizoo.nas import Choice
from vizoo.nas.elastic import Conv2d, Operation


class Noise(nn.Module):
    """Keeps nothing of its input."""

    def forward(self, x):
        return torch.randn_like(x)


class Counted(nn.Conv2d):
    """A convolution that counts its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Chain(nn.Module):
    """(B, 4, H, W) to (B, 4, H, W) by `blocks` choices between three operations.

    Args:
        blocks: how many.
        width: of the convolution after the last of them, an int or a choice.
    """

    def __init__(self, blocks=2, width=6):
        super().__init__()
        self.blocks = nn.ModuleList(self._block(index) for index in range(blocks))
        self.head = nn.Sequential(Conv2d(4, width, 1), Conv2d(width, 4, 1))

    @staticmethod
    def _block(index):
        candidates = {
            "noise": Noise(),
            "small": Counted(4, 4, 1),
            "large": Counted(4, 4, 3, padding=1),
        }
        return Operation(candidates, Choice(f"blocks.{index}.kind", tuple(candidates)))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Two(nn.Module):
    """One choice between noise and a convolution, which fits the task exactly."""

    def __init__(self):
        super().__init__()
        candidates = {"noise": Noise(), "convolution": nn.Conv2d(4, 4, 3, padding=1)}
        self.kind = Operation(candidates, Choice("kind", tuple(candidates)))

    def forward(self, x):
        return self.kind(x)


class Fit(LightningModule):
    """Learns a fixed filter.

    Args:
        net: `chain`, `two` or `elastic`.
        lr: of SGD.

    Where the environment says so in KILL_AT, the process ends, as by `kill -9`, in the training
    step of this number.
    """

    def __init__(self, net: str = "chain", lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        nets = {"chain": Chain, "two": Two, "elastic": lambda: Chain(1, Choice("width", (2, 6)))}
        self.net = nets[net]()
        self.example_input_array = torch.zeros(1, 4, 6, 6)
        self.val_error = MeanMetric()
        self.steps = 0

    def training_step(self, batch, batch_idx):
        if self.current_epoch * 100 + batch_idx == int(os.environ.get("KILL_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.val_error.update(F.mse_loss(self.net(batch[0]), batch[1]))

    def on_validation_epoch_end(self):
        self.log("val/error", self.val_error.compute())
        self.val_error.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), self.hparams.lr, momentum=0.9)


class Filtered(LightningDataModule):
    """Noise and what a fixed filter makes of it, shuffled."""

    def __init__(self, size: int = 32, batch_size: int = 8):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(size + 8, 4, 6, 6, generator=generator)
        y = F.conv2d(x, torch.randn(4, 4, 3, 3, generator=generator) / 4, padding=1)
        self.train, self.val = TensorDataset(x[:-8], y[:-8]), TensorDataset(x[-8:], y[-8:])
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)
