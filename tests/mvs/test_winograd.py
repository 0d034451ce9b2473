"""Convolutions by fewer multiplications equal PyTorch's."""

import pytest
import torch
from torch.nn import functional as F

from vizoo.mvs import _dispmvs_inference as winograd
from vizoo.mvs._dispmvs_inference import _WinogradConv2d, pays


@pytest.mark.parametrize("size", [(8, 12), (7, 9), (1, 1), (21, 34)])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 5), (5, 1)])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_equals_the_convolution(size, kernel, last, relu, monkeypatch):
    monkeypatch.setattr(winograd, "_CHUNK", 2_000)  # several chunks
    weight, bias = torch.randn(7, 5, *kernel), torch.randn(7)
    x = torch.randn(2, 5, *size)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    wanted = F.conv2d(x, weight, bias, padding=(kernel[0] // 2, kernel[1] // 2))
    found = _WinogradConv2d(weight, bias, relu=relu)(x)
    wanted = wanted.relu() if relu else wanted
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max() + 1e-5


def test_without_bias():
    weight, x = torch.randn(4, 6, 3, 3), torch.randn(1, 6, 10, 10)
    found = _WinogradConv2d(weight, None)(x)
    torch.testing.assert_close(found, F.conv2d(x, weight, padding=1), rtol=1e-3, atol=1e-3)


def test_sizes_may_change(monkeypatch):
    monkeypatch.setattr(winograd, "_CHUNK", 20_000)
    weight = torch.randn(16, 16, 3, 3)
    conv = _WinogradConv2d(weight, None)
    for shape in ((1, 16, 9, 20), (3, 16, 33, 8), (1, 16, 9, 20)):
        x = torch.randn(shape)
        torch.testing.assert_close(conv(x), F.conv2d(x, weight, padding=1), rtol=1e-3, atol=1e-3)


def test_where_it_pays():
    wide = torch.empty(96, 128, 3, 3)
    assert pays(torch.empty(96, 128, 1, 5), 1, torch.float32)
    assert pays(wide, 1, torch.float32)
    assert not pays(wide, 2, torch.float32)
    assert not pays(wide, 1, torch.bfloat16)
    assert not pays(wide[:95], 1, torch.float32)
    assert not pays(torch.empty(96, 128, 1, 1), 1, torch.float32)
