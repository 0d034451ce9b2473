"""CovidNet3D's blocks in the form they run fastest in inference; `inference.optimize` uses them.

Batch norms are folded, activations and residuals part of the convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..vision.fused import FusedConv3d, fold_batch_norm

__all__ = ["FusedCell", "FusedConvNorm"]


class FusedConvNorm(nn.Module):
    """A `ConvNorm`."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        conv = layer.conv
        weight, bias = fold_batch_norm(conv.weight, conv.bias, layer.norm)
        self.conv = FusedConv3d(
            weight,
            bias,
            stride=conv.stride[0],
            padding=conv.padding[0],
            groups=conv.groups,
            limit=6.0 if isinstance(layer.activation, nn.ReLU6) else None,
            dtype=dtype,
        )

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        return self.conv(x, add)


class FusedCell(nn.Module):
    """A `Cell` of one operation."""

    def __init__(self, cell: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        conv, operation = cell.calibrate, cell.operation
        self.calibrate = FusedConv3d(conv.weight, conv.bias, stride=conv.stride[0], dtype=dtype)
        self.operation = operation
        if hasattr(operation, "expand"):
            self.operation = _FusedInvertedResidual(operation, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(self.calibrate(x))


class _FusedInvertedResidual(nn.Module):
    def __init__(self, block: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.expand = block.expand.fused(dtype)
        self.depthwise = block.depthwise.fused(dtype)
        self.project = block.project.fused(dtype)
        self.residual = block.residual

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.depthwise(self.expand(x)), x if self.residual else None)
