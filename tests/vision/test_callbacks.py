"""Jitter of features while training, and never else."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from vizoo.vision.callbacks import FeatureJitter


class Task(LightningModule):
    """One convolution, whose outputs are kept."""

    def __init__(self):
        super().__init__()
        self.net = nn.Conv2d(1, 4, 1)
        self.seen = {"train": [], "val": []}

    def training_step(self, batch, _):
        self.seen["train"].append(self.net(batch).detach())
        return self.net(batch).sum()

    def validation_step(self, batch, _):
        self.seen["val"].append(self.net(batch).detach())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(task, **settings):
    loader = DataLoader([torch.rand(1, 8, 8) for _ in range(2)], batch_size=2)
    jitter = FeatureJitter(**settings)
    Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[jitter],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    ).fit(task, loader, loader)


def test_features_are_disturbed_in_training_alone():
    task = Task()
    fit(task, modules=["net"], spread=0.2)
    (trained,), (plain,) = task.seen["train"], task.seen["val"]
    assert not torch.allclose(trained, plain, atol=1e-3)
    # A factor and a shift for each sample and channel: what remains of each map is its form.
    within = (2, 3)
    forms = [
        (maps - maps.mean(within, keepdim=True)) / maps.std(within, keepdim=True)
        for maps in (trained, plain)
    ]
    assert torch.allclose(*forms, atol=1e-4)
    factors = trained.std(within) / plain.std(within)
    assert factors.unique().numel() == 8 and 0 < (factors - 1).abs().max() < 1
    assert not task.net._forward_hooks  # the task is left as it was


def test_an_unknown_module_is_refused():
    with pytest.raises(ValueError, match="jitter: there is no 'nett'; did you mean net"):
        fit(Task(), modules=["nett"])
