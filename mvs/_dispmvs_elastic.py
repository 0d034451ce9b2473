"""What of DispMVS may depend on choices beside `nas.elastic`'s layers.

Each function returns a plain module where its number is an int, and where it is a choice's an
elastic one, whose export is that plain module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas.elastic.base import ElasticModule, Part, fill, number_of, parts, take
from ..nas.values import Value, concat, maximum
from ..vision.layers import deformable_convolution

Width = int | Value


class Number(nn.Module):
    """Holds an int that no layer's size shows, such as how often a block runs."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def extra_repr(self) -> str:
        return str(self.value)


class _ElasticNumber(ElasticModule):
    def __init__(self, value: Value) -> None:
        super().__init__()
        self.set_numbers(value=value)

    @property
    def value(self) -> int:
        return self.active

    def settings(self, architecture: Mapping[str, Any] | None) -> int:
        return number_of(self.numbers["value"], architecture)

    def export(
        self, architecture: Mapping[str, Any] | None, copies: dict[int, Any] | None = None
    ) -> Number:
        layer = Number(self.settings(architecture))
        layer.training = self.training
        return layer


def number(value: Width) -> Number | _ElasticNumber:
    """A module whose `value` is the number, or what is active of it."""
    return _ElasticNumber(value) if isinstance(value, Value) else Number(value)


class DeformableConv2d(nn.Module):
    """3x3 deformable convolution of version 1: one offset for each tap, no mask, no bias.

    Twice `channels` outputs: two maps, of which the leading channels of each may be all in use.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * channels, in_channels, 3, 3))
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        self.conv_offset = nn.Conv2d(in_channels, 18, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return deformable_convolution(x, self.conv_offset(x), None, self._weight_in_use())

    def _weight_in_use(self) -> Tensor:
        return self.weight


class _ElasticDeformableConv2d(ElasticModule, DeformableConv2d):
    def __init__(self, in_channels: int, channels: Value) -> None:
        super().__init__(in_channels, maximum(channels))
        self.set_numbers(out_channels=concat(channels, channels))

    def settings(self, architecture: Mapping[str, Any] | None) -> tuple[Part, ...]:
        return parts(self.numbers["out_channels"], architecture)

    def _weight_in_use(self) -> Tensor:
        return take(self.weight, 0, self.active)

    def export(
        self, architecture: Mapping[str, Any] | None, copies: dict[int, Any] | None = None
    ) -> DeformableConv2d:
        weight = take(self.weight, 0, self.settings(architecture))
        with torch.device("meta"):
            layer = DeformableConv2d(weight.shape[1], len(weight) // 2)
        offset = self.conv_offset
        fill(layer.conv_offset, offset, weight=offset.weight, bias=offset.bias)
        return fill(layer, self, weight=weight)


def deformable_layer(in_channels: int, channels: Width) -> DeformableConv2d:
    """A `DeformableConv2d` to twice as many channels."""
    if isinstance(channels, Value):
        return _ElasticDeformableConv2d(in_channels, channels)
    return DeformableConv2d(in_channels, channels)


class _CostSettings(NamedTuple):
    radius: int
    rows: tuple[Part, ...]


class _ElasticCostConv2d(ElasticModule, nn.Conv2d):
    """1x1 convolution of a cost; of a smaller radius the middle planes of each level."""

    bias: nn.Parameter

    def __init__(self, levels: int, radius: Width, out_channels: Width) -> None:
        super().__init__(levels * (2 * maximum(radius) + 1), maximum(out_channels), 1)
        self.levels, self.largest = levels, maximum(radius)
        self.set_numbers(radius=radius, out_channels=out_channels)

    def settings(self, architecture: Mapping[str, Any] | None) -> _CostSettings:
        radius = number_of(self.numbers["radius"], architecture)
        return _CostSettings(radius, parts(self.numbers["out_channels"], architecture))

    def _in_use(self, active: _CostSettings) -> tuple[Tensor, Tensor]:
        weight = take(self.weight, 0, active.rows).unflatten(1, (self.levels, -1))
        weight = weight.narrow(2, self.largest - active.radius, 2 * active.radius + 1)
        return weight.flatten(1, 2), take(self.bias, 0, active.rows)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, *self._in_use(self.active))

    def export(
        self, architecture: Mapping[str, Any] | None, copies: dict[int, Any] | None = None
    ) -> nn.Conv2d:
        with torch.no_grad():
            weight, bias = self._in_use(self.settings(architecture))
        layer = nn.Conv2d(weight.shape[1], len(weight), 1, device="meta")
        return fill(layer, self, weight=weight, bias=bias)


def cost_convolution(levels: int, radius: Width, out_channels: Width) -> nn.Conv2d:
    """1x1 convolution of a cost with `levels` times 2 `radius` + 1 planes."""
    if isinstance(radius, Value) or isinstance(out_channels, Value):
        return _ElasticCostConv2d(levels, radius, out_channels)
    return nn.Conv2d(levels * (2 * radius + 1), out_channels, 1)
