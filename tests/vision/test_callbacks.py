"""Parts and statistics that stay, also where a fit is resumed within an epoch."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainers import quiet_trainer

from vizoo.vision.callbacks import FixedStatistics, Frozen
from vizoo.vision.training import OptimisedTask


class Task(OptimisedTask):
    """A batch norm and what learns behind it."""

    def __init__(self):
        super().__init__(lr_schedule="constant")
        self.net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 1, 1))

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.rand(4, 3, 8, 8)), batch_size=1)


@pytest.mark.parametrize("callback", [FixedStatistics, lambda: Frozen(["net.0"])])
def test_statistics_stay_in_a_fit_resumed_within_an_epoch(tmp_path, callback):
    kept = ModelCheckpoint(tmp_path, "within", every_n_train_steps=2)
    quiet_trainer(tmp_path, max_steps=3, callbacks=[callback(), kept]).fit(Task())
    task = Task()
    trainer = quiet_trainer(tmp_path, max_steps=4, callbacks=[callback()])
    trainer.fit(task, ckpt_path=tmp_path / "within.ckpt")
    assert trainer.global_step == 4
    assert task.net[0].num_batches_tracked == 0 and not task.net[0].running_mean.any()
