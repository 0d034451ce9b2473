"""Cells lie where their receptive fields are centred."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from vizoo.vision.classification._cells import resized, watch_cells
from vizoo.vision.classification.cam import cam
from vizoo.vision.hub.registry import create_model


def centre(net, features, size, channels, cell):
    """The middle of the input's pixels that a cell depends on, by gradients of an even network."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            nn.init.constant_(module.weight, 1 / module.weight[0].numel())
    x = torch.rand(1, channels, *size, dtype=torch.float64, requires_grad=True)
    out = features(net.double().eval(), x)
    (gradient,) = torch.autograd.grad(out[(0, slice(None), *cell)].sum(), x)
    weight = gradient[0].abs().sum(0)
    axes = torch.meshgrid(*(torch.arange(s, dtype=torch.float64) for s in size), indexing="ij")
    return out.shape[2:], [float((weight * axis).sum() / weight.sum()) for axis in axes]


@pytest.mark.parametrize("name", ["covidnet3d_tiny", "covidnet3d_s"])
def test_volumes(name):
    """Odd kernels, padded: the first cell lies on the first pixel."""
    cells = {"covidnet3d_tiny": 5, "covidnet3d_s": 21}[name]
    net = create_model(name, encoding=[8] * cells)
    size = (33, 64, 50)
    with torch.no_grad(), watch_cells(net, torch.rand(1, 1, *size)) as places:
        made = net.eval().forward_features(torch.rand(1, 1, *size)).shape[2:]
    stride = {"covidnet3d_tiny": 8, "covidnet3d_s": 32}[name]
    assert [axis[count] for axis, count in zip(places, made, strict=True)] == [(stride, 0)] * 3
    assert not any(module._forward_hooks for module in net.modules())


def test_by_gradients():
    """Kernels of every kind: what is computed from settings is what gradients show."""
    net = nn.Sequential(
        nn.Conv2d(1, 2, 4, 4),  # patches
        nn.Conv2d(2, 2, 3, 2, 1),
        nn.AvgPool2d(2),
        nn.Conv2d(2, 2, 3, padding=0),
        nn.Conv2d(2, 2, 3, 1, 2, dilation=2),
    )
    size, cell = (256, 288), (5, 7)
    with torch.no_grad(), watch_cells(net, torch.rand(1, 1, *size)) as places:
        net(torch.rand(1, 1, *size))
    made, found = centre(net, lambda n, x: n(x), size, 1, cell)
    for axis, count, at, where in zip(places, made, cell, found, strict=True):
        jump, start = axis[count]
        assert jump == 16 and start + jump * at == pytest.approx(where, abs=1e-6)


@pytest.mark.parametrize("name", ["resnet18", "convnext_femto"])
def test_images(name):
    net = timm.create_model(name, pretrained=False)
    with torch.no_grad(), watch_cells(net, torch.rand(1, 3, 64, 96)) as places:
        net.eval().forward_features(torch.rand(1, 3, 64, 96))
    start = {"resnet18": 0, "convnext_femto": 15.5}[name]  # strided 3x3 kernels, or patches
    assert places[0][2] == places[1][3] == (32, start)


def test_even_cells_are_resized_as_pytorch_does():
    maps = torch.rand(2, 3, 4, 5)
    wanted = F.interpolate(maps[:, None], (12, 10, 20), mode="trilinear")[:, 0]
    torch.testing.assert_close(resized(maps, (12, 10, 20)), wanted)


def test_a_map_peaks_on_what_was_seen():
    """A bright dot at a cell's centre is where the map is highest, at strides 2, 4 and 8."""

    class Net(nn.Module):
        def __init__(self, depth):
            super().__init__()
            convs = [nn.Conv3d(1, 1, 3, 2, 1, bias=False) for _ in range(depth)]
            self.body, self.fc = nn.Sequential(*convs), nn.Linear(1, 2)
            for conv in convs:
                nn.init.constant_(conv.weight, 1 / 27)
            self.fc.weight.data.copy_(torch.tensor([[-1.0], [1.0]]))

        def forward_features(self, x):
            return self.body(x)

        def get_classifier(self):
            return self.fc

        def forward(self, x):
            return self.fc(self.body(x).mean((2, 3, 4)))

    for depth in (1, 2, 3):
        volume = torch.zeros(1, 1, 16, 32, 48)
        volume[0, 0, 8, 16, 24] = 1
        found = cam(Net(depth), volume, torch.tensor([1])).values[0]
        assert found.argmax() == volume[0, 0].argmax()
