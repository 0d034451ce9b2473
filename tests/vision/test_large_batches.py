"""LARS and LAMB: what they adapt, in every precision that trains here."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainers import quiet_trainer

from vizoo.vision.training import OptimisedTask

LR, DECAY, TRUST = 0.5, 1e-2, 1e-3


class Task(OptimisedTask):
    """A convolution, a norm and a layer; keeps what the first step started from."""

    def __init__(self, optimizer="lars", **settings):
        super().__init__(optimizer, lr=LR, lr_schedule="constant", **settings)
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
        )

    def training_step(self, batch, index):
        return (self.net(batch[0]) - 1).square().mean()

    def on_before_optimizer_step(self, optimizer):
        parameters = dict(self.net.named_parameters())
        self.before = {name: value.detach().clone() for name, value in parameters.items()}
        self.gradients = {name: value.grad.clone() for name, value in parameters.items()}


def step(folder, task, precision="32-true"):
    trainer = quiet_trainer(folder, precision=precision, max_steps=1, enable_checkpointing=False)
    kind = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
    trainer.fit(task, DataLoader(TensorDataset(torch.rand(4, 3, 8, 8, dtype=kind)), 4))
    return {name: value.detach() - task.before[name] for name, value in task.net.named_parameters()}


@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
@pytest.mark.parametrize("optimizer", ["lars", "larc"])
def test_weights_are_adapted_biases_and_norms_are_not(tmp_path, precision, optimizer):
    task = Task(optimizer, optimizer_args={"weight_decay": DECAY})
    moved = step(tmp_path, task, precision)
    near = {"rtol": 0.05, "atol": 0.01} if "bf16-true" in precision else {}
    for name, change in moved.items():
        weight, gradient = task.before[name], task.gradients[name]
        expected = -LR * gradient
        if weight.ndim > 1:
            ratio = TRUST * weight.norm() / (gradient.norm() + DECAY * weight.norm())
            ratio = min(ratio / LR, 1) if optimizer == "larc" else ratio
            expected = -LR * ratio * (gradient + DECAY * weight)
            assert change.norm() > 0
        assert change.dtype == weight.dtype and change.isfinite().all()
        torch.testing.assert_close(change, expected.to(change.dtype), **near)


@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_what_adapts_nothing_is_said(tmp_path, optimizer):
    with pytest.warns(UserWarning, match=f"{optimizer} adapts no layer .* weight_decay"):
        step(tmp_path, Task(optimizer))
    for arguments in ({"weight_decay": 1e-4}, {"always_adapt": True}):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*adapts no layer")
            step(tmp_path, Task(optimizer, optimizer_args=arguments))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*adapts no layer")
        step(tmp_path, Task("adam"))
