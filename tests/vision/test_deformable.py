"""Deformable convolution against torchvision's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.ops import deform_conv2d

from vizoo.vision.layers import DeformableConv2d, deformable_convolution


def _arguments(channels, groups, kernel, height=7, width=9, dtype=torch.float32):
    x = torch.randn(2, channels, height, width, dtype=dtype)
    offsets = 4 * torch.randn(2, 2 * groups * kernel**2, height, width, dtype=dtype)
    mask = torch.rand(2, groups * kernel**2, height, width, dtype=dtype)
    weight = torch.randn(5, channels, kernel, kernel, dtype=dtype)
    return x, offsets, mask, weight


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (3, 2), (5, 3)])
def test_equals_torchvision(groups, kernel, dilation):
    x, offsets, mask, weight = _arguments(8, groups, kernel)
    padding = kernel // 2 * dilation
    want = deform_conv2d(x, offsets, weight, None, 1, padding, dilation, mask)
    got = deformable_convolution(x, offsets, mask, weight, dilation=dilation)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_gradients():
    arguments = _arguments(4, 2, 3, height=4, width=5, dtype=torch.float64)
    arguments = [argument.requires_grad_() for argument in arguments]
    assert torch.autograd.gradcheck(deformable_convolution, arguments, fast_mode=True)


def test_half_types_keep_positions():
    """On a wide image a position rounded to bfloat16 would read pixels away."""
    x, offsets, mask, weight = _arguments(4, 2, 3, height=6, width=1000)
    want = deformable_convolution(x, offsets.bfloat16().float(), mask, weight)
    got = deformable_convolution(*(a.bfloat16() for a in (x, offsets, mask, weight)))
    assert (got.float() - want).norm() < 0.02 * want.norm()


def test_starts_as_the_ordinary_convolution():
    layer = DeformableConv2d(6, 8, 3, dilation=2, offset_groups=2)
    plain = nn.Conv2d(6, 8, 3, padding=2, dilation=2, bias=False)
    plain.load_state_dict({"weight": layer.weight.data})
    x = torch.randn(2, 6, 10, 12)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-4, atol=1e-5)
