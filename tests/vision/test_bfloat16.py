"""Gradients in bfloat16 on a CPU are those of float32."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from timm.optim import create_optimizer_v2, muon
from torch import nn
from torch.utils.data import DataLoader
from trainers import quiet_trainer

from vizoo import nas
from vizoo.vision.callbacks import _keep_gradients_right
from vizoo.vision.training import OptimisedTask, _orthogonalised_by_timm


def gradients(net, image, dtype):
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        net(image).square().mean().backward()
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(24, 16, 3, padding=2, dilation=2),
        nn.Conv2d(32, 16, 3, padding=2, dilation=2),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2, groups=32),
        nn.Conv2d(48, 24, 3, padding=4, dilation=4, groups=2),
        nas.elastic.Conv2d(24, 16, 3, 1, 2, dilation=2),
    ],
    ids=lambda layer: f"{layer.in_channels}/{layer.groups}",
)
def test_dilated_convolutions(layer):
    torch.manual_seed(0)
    net = nn.Sequential(copy.deepcopy(layer)).to(memory_format=torch.channels_last)
    image = torch.randn(2, layer.in_channels, 48, 48).to(memory_format=torch.channels_last)
    right = gradients(copy.deepcopy(net), image, torch.float32)
    _keep_gradients_right(net)
    for wanted, got in zip(right, gradients(net, image, torch.bfloat16), strict=True):
        assert (got - wanted).norm() < 0.02 * wanted.norm()


class Task(OptimisedTask):
    def __init__(self):
        super().__init__(lr_schedule="constant")
        self.net = nn.Conv2d(24, 24, 3, padding=2, dilation=2, groups=24)
        self.net.to(memory_format=torch.channels_last)

    def training_step(self, batch, batch_idx):
        return self.net(batch.to(memory_format=torch.channels_last)).square().mean()

    def on_after_backward(self):
        net = copy.deepcopy(self.net).requires_grad_()
        net.zero_grad()
        (wanted, _) = gradients(net, self.image, torch.float32)
        assert (self.net.weight.grad - wanted).norm() < 0.02 * wanted.norm()
        self.checked = True


@pytest.mark.parametrize("stopped", [False, True])
def test_in_training_and_not_after(tmp_path, monkeypatch, stopped):
    torch.manual_seed(0)
    task = Task()
    task.image = torch.randn(2, 24, 48, 48)
    trainer = quiet_trainer(
        tmp_path, precision="bf16-mixed", max_steps=1, enable_checkpointing=False
    )
    if stopped:
        monkeypatch.setattr(task, "on_train_end", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError) if stopped else nullcontext():
        trainer.fit(task, DataLoader(task.image, batch_size=2))
    assert task.checked and not task.net._forward_pre_hooks


@pytest.mark.parametrize("instructions", [[], ["avx512_bf16"]])
def test_a_cpu_without_hardware_for_it_is_told(tmp_path, monkeypatch, instructions):
    monkeypatch.setattr("vizoo.vision.callbacks.bfloat16_instructions", lambda: instructions)
    task = Task()
    task.image = torch.randn(2, 24, 8, 8)
    trainer = quiet_trainer(
        tmp_path, precision="bf16-mixed", max_steps=1, enable_checkpointing=False
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(task, DataLoader(task.image, batch_size=2))
    told = [str(warning.message) for warning in caught if "bfloat16" in str(warning.message)]
    assert len(told) == (not instructions), told
    assert all("32-true trains several times as fast as bf16-mixed" in line for line in told)


class Matrix(OptimisedTask):
    def __init__(self, net):
        super().__init__(optimizer="muon", lr=0.1, lr_schedule="constant", warmup_steps=0)
        self.net = net

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()


@pytest.mark.parametrize("instructions", [[], ["avx512_bf16"], None])
def test_muon_computes_in_float32_where_that_is_faster(tmp_path, monkeypatch, instructions):
    monkeypatch.setattr("vizoo.vision.training.bfloat16_instructions", lambda: instructions)
    net, rows = nn.Linear(24, 16, bias=False), torch.randn(4, 24)
    exact, coarse = copy.deepcopy(net), copy.deepcopy(net)
    for other, dtype in ((exact, torch.float32), (coarse, torch.bfloat16)):
        directed = partial(_orthogonalised_by_timm, dtype=dtype)
        monkeypatch.setattr(muon, "zeropower_via_newtonschulz", directed)
        optimizer = create_optimizer_v2(other, opt="muon", lr=0.1, weight_decay=0.0)
        other(rows).square().mean().backward()
        optimizer.step()
    monkeypatch.setattr(muon, "zeropower_via_newtonschulz", _orthogonalised_by_timm)
    trainer = quiet_trainer(tmp_path, max_steps=1, enable_checkpointing=False)
    trainer.fit(Matrix(net), DataLoader(rows, batch_size=4))
    assert not torch.allclose(exact.weight, coarse.weight, atol=1e-5)
    wanted = exact if instructions == [] else coarse
    torch.testing.assert_close(net.weight, wanted.weight, atol=1e-6, rtol=1e-5)
