"""DispMVS's building blocks: feature extractor and update block.

What may depend on choices beside `nas.elastic`'s layers comes first: each function returns a plain
module where its numbers are ints, and where one is a choice's an elastic one, whose export is that
plain module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.layers import Number
from ..nas import elastic
from ..nas.elastic.base import Copies, ElasticModule, Part, Setting, fill, number_of, parts, take
from ..nas.elastic.containers import ElasticNumber
from ..nas.elastic.conv import ElasticConv2d
from ..nas.values import Value, concat, maximum
from ..vision.layers import deformable_convolution

Width = int | Value


def number(value: Width) -> Number | ElasticNumber:
    """A module whose `value` is the number, or what is active of it."""
    return ElasticNumber(value) if isinstance(value, Value) else Number(value)


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

    def settings(self, architecture: Setting) -> tuple[Part, ...]:
        return parts(self.numbers["out_channels"], architecture)

    def _weight_in_use(self) -> Tensor:
        return take(self.weight, 0, self.active)

    def export(self, architecture: Setting, copies: Copies = None) -> DeformableConv2d:
        weight = take(self.weight, 0, self.settings(architecture))
        with torch.device("meta"):
            layer = DeformableConv2d(weight.shape[1], len(weight) // 2)
        offset = self.conv_offset
        fill(layer.conv_offset, offset, weight=offset.weight, bias=offset.bias)
        return fill(layer, self, weight=weight)


def _deformable_layer(in_channels: int, channels: Width) -> DeformableConv2d:
    """A `DeformableConv2d` to twice as many channels."""
    if isinstance(channels, Value):
        return _ElasticDeformableConv2d(in_channels, channels)
    return DeformableConv2d(in_channels, channels)


class _ElasticCostConv2d(ElasticModule, nn.Conv2d):
    """1x1 convolution of a cost; of a smaller radius the middle planes of each level."""

    bias: nn.Parameter

    def __init__(self, levels: int, radius: Width, out_channels: Width) -> None:
        super().__init__(levels * (2 * maximum(radius) + 1), maximum(out_channels), 1)
        self.levels, self.largest = levels, maximum(radius)
        self.set_numbers(radius=radius, out_channels=out_channels)

    def settings(self, architecture: Setting) -> tuple[int, tuple[Part, ...]]:
        radius = number_of(self.numbers["radius"], architecture)
        return radius, parts(self.numbers["out_channels"], architecture)

    def _in_use(self, radius: int, rows: tuple[Part, ...]) -> tuple[Tensor, Tensor]:
        weight = take(self.weight, 0, rows).unflatten(1, (self.levels, -1))
        weight = weight.narrow(2, self.largest - radius, 2 * radius + 1)
        return weight.flatten(1, 2), take(self.bias, 0, rows)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, *self._in_use(*self.active))

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Conv2d:
        with torch.no_grad():
            weight, bias = self._in_use(*self.settings(architecture))
        layer = nn.Conv2d(weight.shape[1], len(weight), 1, device="meta")
        return fill(layer, self, weight=weight, bias=bias)


def _cost_convolution(levels: int, radius: Width, out_channels: Width) -> nn.Conv2d:
    """1x1 convolution of a cost with `levels` times 2 `radius` + 1 planes."""
    if isinstance(radius, Value) or isinstance(out_channels, Value):
        return _ElasticCostConv2d(levels, radius, out_channels)
    return nn.Conv2d(levels * (2 * radius + 1), out_channels, 1)


UPSAMPLING = 4
_TAPS = 9
_LONGEST = 256.0  # E-flow that convolutions in float16 are fed; their sums would overflow


class ConvNorm(nn.Module):
    """3x3 convolution, batch norm, ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, 1, 1)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; a ReLU comes before the sum, and one after."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: type) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1)
        self.norm1 = norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.norm2 = norm(out_channels)
        self.downsample = None
        if stride != 1:
            conv = nn.Conv2d(in_channels, out_channels, 1)
            self.downsample = nn.Sequential(conv, norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        if self.downsample is not None:
            # Subsampled first: a strided 1x1 convolution crashes oneDNN's channels-last backward.
            x = self.downsample(x[:, :, :: self.stride, :: self.stride])
        return F.relu(x + y)


class Extractor(nn.Module):
    """Down to 1/16 and up again to 1/4.

    Args:
        widths: channels at 1/2, 1/4, and from 1/8 on.
        norm: of the way down: `nn.InstanceNorm2d` or `nn.BatchNorm2d`.
        context: None for features to be matched, else the channels of the context at 1/4 and at
            1/16, which deformable convolutions give.
    """

    o_layer2: ConvNorm | DeformableConv2d
    o_layer4: ConvNorm | DeformableConv2d

    def __init__(
        self, widths: tuple[int, int, int], norm: type, context: tuple[Width, Width] | None = None
    ) -> None:
        super().__init__()
        half, quarter, deep = widths
        self.conv1 = nn.Conv2d(3, half, 7, 2, 3)
        self.norm1 = norm(half)
        below, layers = half, []
        for index, width in enumerate((half, quarter, deep, deep), start=1):
            stride = 1 if index == 1 else 2
            blocks = ResidualBlock(below, width, stride, norm), ResidualBlock(width, width, 1, norm)
            layers.append(nn.Sequential(*blocks))
            below = width
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.d_layer4 = ConvNorm(deep, deep)
        self.d_layer3 = ConvNorm(2 * deep, deep)
        self.d_layer2 = ConvNorm(quarter + deep, quarter)
        if context is None:
            self.o_layer2, self.o_layer4 = ConvNorm(quarter, quarter), ConvNorm(deep, deep)
        else:
            self.o_layer2 = _deformable_layer(quarter, context[0])
            self.o_layer4 = _deformable_layer(deep, context[1])
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None and name.endswith("conv_offset"):
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Maps at 1/4 and 1/16 of images (N, 3, H, W) in [-1, 1], sizes multiples of 16."""
        return down_and_up(self, F.relu(self.norm1(self.conv1(images))))


def down_and_up(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Maps at 1/4 and 1/16 by the layers of an `Extractor` behind its first convolution."""
    x2 = net.layer2(net.layer1(x))
    x3 = net.layer3(x2)
    y4 = net.d_layer4(net.layer4(x3))
    y3 = net.d_layer3(torch.cat((x3, _double(y4)), 1))
    y2 = net.d_layer2(torch.cat((x2, _double(y3)), 1))
    return net.o_layer2(y2), net.o_layer4(y4)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


class _MotionEncoder(nn.Module):
    """What costs and E-flow tell; the E-flow itself is the last channel."""

    def __init__(self, width: Width, levels: int, radius: Width) -> None:
        super().__init__()
        self.convc1 = _cost_convolution(levels, radius, width * 32)
        self.convc2 = elastic.Conv2d(width * 32, width * 24, 3, 1, 1)
        self.convf1 = elastic.Conv2d(1, width * 16, 7, 1, 3)
        self.convf2 = elastic.Conv2d(width * 16, width * 8, 3, 1, 1)
        self.conv = elastic.Conv2d(concat(width * 24, width * 8), width * 16 - 1, 3, 1, 1)

    def forward(self, cost: Tensor, flow: Tensor) -> Tensor:
        cost = F.relu(self.convc2(F.relu(self.convc1(cost))))
        seen = F.relu(self.convf2(F.relu(self.convf1(flow))))
        joined = F.relu(self.conv(torch.cat((cost, seen), 1)))
        return torch.cat((joined, flow), 1)


Step = Callable[[Tensor, Tensor], Tensor]
"""Hidden states (B S, c, h, w) and motion, of as many, to the next states."""


class _SeparableGRU(nn.Module):
    """Convolutional GRU along rows, then along columns.

    Its input is context and motion. The context is the same for all pairs and iterations of a
    stage, so its share of the convolutions is computed once.
    """

    def __init__(self, hidden: Width, motion: Width) -> None:
        super().__init__()
        channels = concat(hidden, hidden, motion)
        for index, kernel, padding in ((1, (1, 5), (0, 2)), (2, (5, 1), (2, 0))):
            for gate in "zrq":
                conv = elastic.Conv2d(channels, hidden, kernel, padding=padding)
                self.add_module(f"conv{gate}{index}", conv)

    def prepare(self, context: Tensor) -> list[Step]:
        """Both passes, given the context (B, c, h, w), for `forward`."""
        return [self._pass(index, context) for index in (1, 2)]

    def forward(self, hidden: Tensor, motion: Tensor, prepared: list[Step]) -> Tensor:
        """The next hidden state (B S, c, h, w); motion has as many, the context B."""
        for step in prepared:
            hidden = step(hidden, motion)
        return hidden

    def _pass(self, index: int, context: Tensor) -> Step:
        convs = [getattr(self, f"conv{gate}{index}") for gate in "zrq"]
        padding, channels = convs[0].padding, context.shape[1]
        weights = [elastic.weight_in_use(conv) for conv in convs]
        bias = torch.cat([_bias(conv) for conv in convs])
        shared = torch.cat([weight[:, channels : 2 * channels] for weight in weights])
        told = F.conv2d(context, shared, bias, padding=padding)
        own = [torch.cat((w[:, :channels], w[:, 2 * channels :]), 1) for w in weights]
        to_gates, to_candidate = told.split((2 * channels, channels), 1)
        gate_weight, candidate_weight = torch.cat(own[:2]), own[2]

        def step(hidden: Tensor, motion: Tensor) -> Tensor:
            gates = F.conv2d(torch.cat((hidden, motion), 1), gate_weight, padding=padding)
            z, r = add_shared(gates, to_gates).sigmoid().chunk(2, 1)
            both = torch.cat((r * hidden, motion), 1)
            candidate = F.conv2d(both, candidate_weight, padding=padding)
            candidate = add_shared(candidate, to_candidate).tanh()
            return hidden + z * (candidate - hidden)

        return step


def add_shared(x: Tensor, shared: Tensor) -> Tensor:
    """(B S, c, h, w) plus (B, c, h, w) for each of S."""
    return (x.unflatten(0, (shared.shape[0], -1)) + shared[:, None]).flatten(0, 1)


def bounded_flow(flow: Tensor, dtype: torch.dtype) -> Tensor:
    """E-flow as convolutions of a type can take it."""
    return (flow.clamp(-_LONGEST, _LONGEST) if dtype == torch.float16 else flow).to(dtype)


def _bias(conv: nn.Conv2d) -> Tensor:
    bias = conv.bias_in_use(conv.active) if isinstance(conv, ElasticConv2d) else conv.bias
    return cast(Tensor, bias)


class _FlowHead(nn.Module):
    """Change of the E-flow, and the logit of the pair's weight."""

    def __init__(self, hidden: Width, middle: Width) -> None:
        super().__init__()
        self.conv1 = elastic.Conv2d(hidden, middle, 3, 1, 1)
        self.conv2 = elastic.Conv2d(middle, 2, 3, 1, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(hidden)))


class UpdateBlock(nn.Module):
    """One iteration for any number of pairs, each with a hidden state of its own.

    Args:
        hidden: channels of the hidden state and of the context.
        width: of the other layers in eighths of the published channels.
        levels: of the cost.
        radius: of the cost.
    """

    def __init__(self, hidden: Width, width: Width, levels: int, radius: Width) -> None:
        super().__init__()
        self.encoder = _MotionEncoder(width, levels, radius)
        self.gru = _SeparableGRU(hidden, concat(width * 16 - 1, 1))
        self.flow_head = _FlowHead(hidden, width * 32)
        self.mask = nn.Sequential(
            elastic.Conv2d(hidden, width * 32, 3, 1, 1),
            nn.ReLU(),
            elastic.Conv2d(width * 32, _TAPS * UPSAMPLING**2, 1),
        )

    def prepare(self, context: Tensor) -> list[Step]:
        """What a stage computes once of its context (B, c, h, w)."""
        return self.gru.prepare(context)

    def forward(
        self, hidden: Tensor, prepared: list[Step], cost: Tensor, flow: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advance hidden states and flows of B S pairs, given the prepared contexts of B.

        The cost has `levels (2 radius + 1)` channels, the E-flow one.

        Returns:
            The next hidden state; and (B S, 2, h, w): the change of the E-flow, and a logit.
        """
        motion = self.encoder(cost, bounded_flow(flow, hidden.dtype))
        hidden = self.gru(hidden, motion, prepared)
        return hidden, self.flow_head(hidden)

    def upsampling(self, hidden: Tensor, *, corner: bool = False) -> Tensor:
        """Logits for `convex_upsample`, (B S, 144, h, w); `corner`: of a block's first pixel, 9."""
        first, _, last = cast("Iterable[nn.Conv2d]", self.mask)
        weight, bias = elastic.weight_in_use(last), _bias(last)
        if corner:
            weight, bias = weight[:: UPSAMPLING**2], bias[:: UPSAMPLING**2]
        return 0.25 * F.conv2d(F.relu(first(hidden)), weight, bias)
