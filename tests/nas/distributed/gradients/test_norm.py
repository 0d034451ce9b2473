"""Batch normalisation by the statistics of all processes, here two with the same batch."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vizoo.nas import Choice, elastic
from vizoo.nas.distributed.gradients import norm
from vizoo.panorama.layers import FaceNorm


class NormAct(nn.BatchNorm2d):
    """As timm has them."""

    def forward(self, x):
        return super().forward(x).relu()


def without_bias(layer):
    layer.register_parameter("bias", None)
    nn.init.constant_(layer.weight, 3)
    return layer


@pytest.fixture(autouse=True)
def two_processes(monkeypatch):
    alike = SimpleNamespace(get_world_size=lambda: 2, all_reduce=lambda x: x.mul_(2))
    monkeypatch.setattr(norm, "dist", alike)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm2d(4), (3, 4, 5, 6)),
        (nn.BatchNorm1d(4, momentum=None), (3, 4)),
        (nn.BatchNorm3d(4, affine=False, track_running_stats=False), (3, 4, 2, 2, 3)),
        (elastic.BatchNorm2d(Choice("width", (2, 4))), (3, 4, 5, 6)),
        (NormAct(4), (3, 4, 5, 6)),
        (FaceNorm(4), (3, 7, 4)),
        (without_bias(nn.BatchNorm2d(4)), (3, 4, 5, 6)),
    ],
    ids=["plain", "cumulative", "bare", "elastic", "activation", "faces", "without bias"],
)
def test_a_layer_does_all_that_its_class_does(layer, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    synced = norm.SyncedBatchNorm().apply(copy.deepcopy(layer))
    wanted = layer(torch.cat([x, x]))[: len(x)]
    torch.testing.assert_close(synced(x), wanted)
    for own, other in zip(synced.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(own, other)
    assert type(norm.SyncedBatchNorm().revert(synced)) is type(layer)


def test_layers_of_pytorch_that_see_all_processes_train_on_a_cpu(monkeypatch):
    x = torch.randn(3, 4, 5, 6)
    synced = norm.SyncedBatchNorm().apply(nn.SyncBatchNorm(4))
    with monkeypatch.context() as within:
        within.setattr(torch.distributed, "is_initialized", lambda: True)
        together = synced(x)
    torch.testing.assert_close(together, nn.BatchNorm2d(4)(torch.cat([x, x]))[: len(x)])
