"""A task with an elastic network, of the plainest kind, and its data: trained in a second."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from vizoo.nas import Choice
from vizoo.nas.elastic import BatchNorm2d, Conv2d, Sequential


class Block(nn.Module):
    """Expands, filters channel by channel, projects."""

    def __init__(self, width, kernel):
        super().__init__()
        self.expand = Conv2d(4, width, 1, bias=False)
        self.norm = BatchNorm2d(width)
        self.filter = Conv2d(width, width, kernel, padding="half", groups=width)
        self.project = Conv2d(width, 4, 1)

    def forward(self, x):
        return x + self.project(self.filter(self.norm(self.expand(x))).relu())


class Net(nn.Module):
    """(B, 4, H, W) to (B, 4, H, W); elastic in depth, widths and kernels."""

    def __init__(self):
        super().__init__()
        blocks = [
            Block(Choice(f"blocks.{i}.width", (2, 4, 8)), Choice(f"blocks.{i}.kernel", (1, 3)))
            for i in range(2)
        ]
        self.blocks = Sequential(*blocks, length=Choice("depth", (1, 2)))

    def forward(self, x):
        return self.blocks(x)


class Regression(LightningModule):
    """Fits a fixed filter; logs as tasks do.

    Args:
        lr: of SGD with momentum.
        schedule: `step` or `epoch`, in which the rate halves, or `none`.
        init_weights: not used; tasks have it.

    Where the environment says so in KILL_AT, the process ends, as by `kill -9`, in the step of
    this number; in that of TERM_AT it is sent a SIGTERM, of several processes only TERM_RANK if it
    is set; in that of MEET_AT it waits until another process, which it started, trains too.
    """

    def __init__(self, lr=0.05, schedule="none", init_weights: str | None = None):
        super().__init__()
        self.save_hyperparameters()
        self.net = Net()
        self.val_error = MeanMetric()
        self.seen = []

    def outputs(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return F.mse_loss(outputs, batch[1])

    def distillation_loss(self, outputs, teacher_outputs, batch):
        return F.mse_loss(outputs, teacher_outputs)

    def training_step(self, batch, batch_idx):
        if self.global_step == int(os.environ.get("KILL_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        meant = int(os.environ.get("TERM_RANK", self.global_rank)) == self.global_rank
        if self.global_step == int(os.environ.get("TERM_AT", -1)) and meant:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.global_step == int(os.environ.get("MEET_AT", -1)):
            end = time.monotonic() + 300
            while len(list(Path("leaves/.locks").glob("*.held"))) < 2 and time.monotonic() < end:
                time.sleep(0.02)
        loss = self.loss(self.outputs(batch), batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.val_error.update(F.mse_loss(self.net(batch[0]), batch[1]))

    def on_validation_epoch_end(self):
        self.log("val/error", self.val_error.compute())
        self.val_error.reset()

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.hparams.lr, momentum=0.9)
        if self.hparams.schedule == "none":
            return optimizer
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        lr_scheduler = {"scheduler": scheduler, "interval": self.hparams.schedule}
        return {"optimizer": optimizer, "lr_scheduler": lr_scheduler}


class SignallingSet(TensorDataset):
    """Sends GROUP_SIGNAL to the process group from a process that others wait for."""

    given = 0

    def __getitem__(self, index):
        self.given += 1
        if self.given == 40:
            os.killpg(0, signal.Signals[os.environ["GROUP_SIGNAL"]])
            time.sleep(60)
        return super().__getitem__(index)


class Data(LightningDataModule):
    """Noise and what a fixed filter makes of it."""

    def __init__(self, size=16, batch_size=4, workers=0, shuffle=False):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(size + 8, 4, 6, 6, generator=generator)
        y = x + F.conv2d(x, torch.randn(4, 4, 3, 3, generator=generator) / 4, padding=1)
        kind = SignallingSet if "GROUP_SIGNAL" in os.environ else TensorDataset
        self.train, self.val = kind(x[:-8], y[:-8]), TensorDataset(x[-8:], y[-8:])
        self.batch_size = batch_size
        self.workers = workers
        self.shuffle = shuffle

    def train_dataloader(self):
        settings = {"num_workers": self.workers, "persistent_workers": self.workers > 0}
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=self.shuffle, **settings)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)

    def predict_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)
