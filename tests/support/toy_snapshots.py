"""A training whose outcome depends on all that a snapshot has to keep, and its data."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from vizoo.datasets.datamodule import MixedDataModule


class Numbers(Dataset):
    """Samples of noise, each with its number."""

    def __init__(self, size=22):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"image": torch.randn(3, 4, 6, generator=generator), "number": index}


def shifted(sample, generator):
    return {**sample, "image": sample["image"] + torch.randn((), generator=generator)}


class Numbered(MixedDataModule):
    """Numbers, shuffled and shifted at random."""

    def __init__(self, size: int = 22, batch_size: int = 2, workers: int = 0):
        common = {"batch_size": batch_size, "workers": workers, "seed": 5}
        super().__init__(augment=shifted, train=[Numbers(size)], val=[Numbers(4)], **common)


class Task(LightningModule):
    """Dropout, batch normalisation, channels-last convolution, Adam, a schedule.

    Args:
        log: folder that gets a line for each step: run, step, numbers of the samples.
        pause: seconds that a step takes longer.
        width: of the network.

    Where the environment says so in KILL_AT, the process ends, as by `kill -9`, before the
    training step of this number.
    """

    def __init__(self, log: str = "", pause: float = 0.0, width: int = 8):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.Dropout(0.3),
            nn.Conv2d(width, 3, 1),
        ).to(memory_format=torch.channels_last)
        self.seen = []

    def training_step(self, batch, batch_idx):
        if self.global_step == int(os.environ.get("KILL_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append((self.global_step, batch["number"].tolist()))
        if self.hparams.log:
            run = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            with open(Path(self.hparams.log) / f"rank{self.global_rank}.log", "a") as file:
                file.write(f"{run} {self.global_step} {batch['number'].tolist()}\n")
        time.sleep(self.hparams.pause)
        loss = F.mse_loss(self.net(batch["image"]), batch["image"].roll(1, 1))
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        torch.rand(3)  # a validation that draws must not change what follows
        self.log("val/loss", F.mse_loss(self.net(batch["image"]), batch["image"]))

    def on_fit_end(self):
        if self.hparams.log:
            torch.save(self.net.state_dict(), Path(self.hparams.log) / f"end{self.global_rank}.pt")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.net.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def state(net):
    """All of a network's numbers, to the last bit."""
    return [(name, value.tolist()) for name, value in net.state_dict().items()]
