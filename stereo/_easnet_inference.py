"""EASNet's blocks in the form they run fastest in inference; `vision.inference.optimize` uses them.

Batch norms are folded, activations and shortcuts part of the convolutions.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from ..vision.fused import FusedConv2d, fold_batch_norm
from ..vision.layers import DeformableConv2d, deformable_convolution

__all__ = ["FusedBottleneck", "FusedDilatedBlock", "FusedInvertedResidual", "folded"]

_Normed = tuple[nn.Conv2d, nn.BatchNorm2d]


def folded(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype, slope: float | None
) -> FusedConv2d:
    """A convolution with the batch norm and the activation after it."""
    weight, bias = fold_batch_norm(conv.weight, conv.bias, norm)
    return FusedConv2d(
        weight,
        bias,
        stride=conv.stride[0],
        padding=cast("tuple[int, ...]", conv.padding)[0],
        dilation=conv.dilation[0],
        groups=conv.groups,
        slope=slope,
        dtype=dtype,
    )


class FusedInvertedResidual(nn.Module):
    """An `InvertedResidual` of plain layers."""

    def __init__(
        self,
        expand: _Normed,
        depthwise: _Normed,
        squeeze: nn.Module,
        project: _Normed,
        residual: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.expand = folded(*expand, dtype, 0.0)
        self.depthwise = folded(*depthwise, dtype, 0.0)
        self.squeeze = copy.deepcopy(squeeze).to(dtype)
        self.project = folded(*project, dtype, None)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        y = self.squeeze(self.depthwise(self.expand(x)))
        return self.project(y, x if self.residual else None)


class _FusedDeformable(nn.Module):
    """A `DeformableConv2d` with the batch norm and the ReLU after it."""

    def __init__(self, conv: DeformableConv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        self.groups, self.taps, self.dilation = conv.groups, conv.kernel_size**2, conv.dilation
        # Offsets in a half type would move the samples.
        self.offsets = FusedConv2d(
            conv.offsets.weight,
            conv.offsets.bias,
            padding=conv.padding,
            dilation=conv.dilation,
            groups=conv.groups,
        )
        weight, bias = fold_batch_norm(conv.weight, None, norm)
        self.weight = weight.to(dtype)
        self.bias = bias.to(dtype).view(-1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        taps = self.groups * self.taps
        offsets, mask = self.offsets(x).split((2 * taps, taps), 1)
        y = deformable_convolution(
            x, offsets, 2 * mask.sigmoid(), self.weight, dilation=self.dilation
        )
        return y.add_(self.bias).relu_()


class FusedBottleneck(nn.Module):
    """A `Bottleneck`, its second convolution ordinary or deformable."""

    conv2: nn.Module

    def __init__(
        self,
        first: _Normed,
        conv: nn.Module,
        norm: nn.BatchNorm2d,
        last: _Normed,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.conv1 = folded(*first, dtype, 0.0)
        if isinstance(conv, DeformableConv2d):
            self.conv2 = _FusedDeformable(conv, norm, dtype)
        else:
            self.conv2 = folded(cast(nn.Conv2d, conv), norm, dtype, 0.0)
        self.conv3 = folded(*last, dtype, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(self.conv2(self.conv1(x)), x)


class FusedDilatedBlock(nn.Module):
    """A `DilatedBlock`."""

    def __init__(self, first: _Normed, second: _Normed, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv1 = folded(*first, dtype, 0.2)
        self.conv2 = folded(*second, dtype, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x), x)
