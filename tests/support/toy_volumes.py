"""A task whose network has every kind of layer that second-order methods meet, and its data."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    """(B, 2, 6, 6) to (B, 3)."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding="same", dilation=2)
        self.channels = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.GroupNorm(2, 6)
        self.volume = nn.Conv3d(1, 4, (3, 3, 2), stride=(2, 2, 1), padding=(1, 0, 1), bias=False)
        self.head = nn.Linear(4 * 3 * 2 * 7, 3)
        self.spare = nn.Linear(3, 3)  # not used

    def forward(self, x):
        x = F.relu(self.first(x), inplace=True)
        x = self.norm(self.channels(x))
        x = self.volume(x[:, None]).tanh()
        return self.head(x.flatten(1))


class Task(LightningModule):
    """Fits noise by mean squared error.

    Args:
        lr: of SGD with momentum, or of AdamW.
        optimizer: `sgd` or `adamw`.
        scheduled: whether the rate changes with each step.
        spare: whether there is a layer that is not used.
    """

    def __init__(self, lr=0.05, optimizer="sgd", scheduled=False, spare=True):
        super().__init__()
        self.save_hyperparameters()
        self.net = Net()
        if not spare:
            del self.net.spare
        self.clipped = []

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", F.mse_loss(self.net(batch[0]), batch[1]))

    def configure_gradient_clipping(self, optimizer, **settings):
        self.clip_gradients(optimizer, **settings)
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.clipped += [torch.stack(norms).norm().item()] if norms else []

    def configure_optimizers(self):
        if self.hparams.optimizer == "adamw":
            optimizer = torch.optim.AdamW(self.parameters(), self.hparams.lr, eps=1e-4)
        else:
            optimizer = torch.optim.SGD(self.parameters(), self.hparams.lr, momentum=0.9)
        if not self.hparams.scheduled:
            return optimizer
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Volumes(LightningDataModule):
    """The same samples in order, divided among processes so that they see whole batches."""

    def __init__(self, size=24, batch_size=8):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(size, 2, 6, 6, generator=generator)
        self.train = TensorDataset(x, torch.randn(size, 3, generator=generator))
        self.batch_size = batch_size

    def train_dataloader(self):
        place = {"num_replicas": self.trainer.world_size, "rank": self.trainer.global_rank}
        sampler = DistributedSampler(self.train, **place, shuffle=False)
        return DataLoader(self.train, batch_size=self.batch_size, sampler=sampler)

    def val_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size)
