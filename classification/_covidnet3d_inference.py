"""CovidNet3D's blocks in the form they run fastest in inference; `inference.optimize` uses them.

Batch norms are folded, activations and residuals part of the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ..vision.fused import FusedConv3d, fold_batch_norm
from ..vision.layers import InvertedResidual

__all__ = ["FusedCell", "FusedConvNorm"]


class FusedConvNorm(nn.Module):
    """A `ConvNorm`."""

    def __init__(
        self, conv: nn.Conv3d, norm: nn.BatchNorm3d, limit: float | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        weight, bias = fold_batch_norm(conv.weight, conv.bias, norm)
        self.conv = FusedConv3d(
            weight,
            bias,
            stride=conv.stride[0],
            padding=cast("tuple[int, ...]", conv.padding)[0],
            groups=conv.groups,
            limit=limit,
            dtype=dtype,
        )

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return self.conv(x, add)


class FusedCell(nn.Module):
    """A `Cell` of one operation."""

    def __init__(self, conv: nn.Conv3d, operation: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        bias = cast(Tensor, conv.bias)
        self.calibrate = FusedConv3d(conv.weight, bias, stride=conv.stride[0], dtype=dtype)
        if isinstance(operation, InvertedResidual):
            operation = _FusedInvertedResidual(operation, dtype)
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(self.calibrate(x))


class _FusedInvertedResidual(nn.Module):
    def __init__(self, block: InvertedResidual, dtype: torch.dtype) -> None:
        super().__init__()
        self.expand, self.depthwise, self.project = (
            cast("Callable[[torch.dtype], FusedConvNorm]", layer.fused)(dtype)
            for layer in (block.expand, block.depthwise, block.project)
        )
        self.residual = block.residual

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.depthwise(self.expand(x)), x if self.residual else None)
