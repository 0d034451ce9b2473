"""DispMVS's parts as they run fastest in inference: see `vision.inference.optimize`.

Some are convolutions by fewer multiplications (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", CVPR 2016, arXiv 1509.09308): 4x4 outputs of a 3x3 kernel take 36 products where
the convolution itself needs 144, and 4 outputs of a kernel of 5 in a row take 8 instead of 20. All
of it is matrix products, which run at a processor's full rate. What the transforms cost in turn is
worth it from about 96 channels on, and the result is rounded to about 1e-5 of its largest value.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import product
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..vision.fused import FusedConv2d, fold_batch_norm
from ._dispmvs_layers import (
    ConvNorm,
    DeformableConv2d,
    Extractor,
    ResidualBlock,
    Step,
    UpdateBlock,
    add_shared,
    bounded_flow,
    down_and_up,
)

_TILE = 4
_CHUNK = 1 << 20  # numbers in a buffer, so that it stays in the cache
_POINTS = {3: (0, 1, -1, 2, -2), 5: (0, 1, -1, 2, -2, 0.5, -0.5)}
_KERNELS = {(3, 3), (1, 5), (5, 1)}


def pays(weight: Tensor, stride: int, dtype: torch.dtype) -> bool:
    """Whether a convolution of this weight (out, in, kh, kw) is likely to be faster this way."""
    wide = min(weight.shape[:2]) >= 96 and tuple(weight.shape[2:]) in _KERNELS
    return wide and stride == 1 and dtype == torch.float32 and weight.device.type == "cpu"


def _matrices(kernel: int) -> tuple[Tensor, Tensor, Tensor]:
    """What transforms outputs (tile, n), weights (n, kernel) and inputs (n, n): Cook and Toom's."""
    if kernel == 1:
        return (torch.ones(1, 1, dtype=torch.float64),) * 3
    points = _POINTS[kernel]
    count = len(points) + 1  # the last one is infinity
    output, weight, inputs = (np.zeros(s) for s in ((_TILE, count), (count, kernel), (count,) * 2))
    for index, point in enumerate(points):
        others = [other for other in points if other != point]
        output[:, index] = [point**power for power in range(_TILE)]
        scale = np.prod([point - other for other in others])
        weight[index] = [point**power / scale for power in range(kernel)]
        inputs[index, :-1] = np.poly(others)[::-1]
    output[-1, -1] = weight[-1, -1] = 1
    inputs[-1] = np.poly(points)[::-1]
    return torch.from_numpy(output), torch.from_numpy(weight), torch.from_numpy(inputs)


class _WinogradConv2d(nn.Module):
    """Convolution of stride 1 that keeps the size, optionally with a ReLU; in float32.

    The kernel is 3x3, 1x5 or 5x1.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        super().__init__()
        self.kernel = weight.shape[2], weight.shape[3]
        weight = weight.detach().double()
        rows, columns = ([m.to(weight.device) for m in _matrices(k)] for k in self.kernel)
        self.outputs, _, self.inputs = (
            torch.kron(a, b).float() for a, b in zip(rows, columns, strict=True)
        )
        self.tile = len(rows[0]), len(columns[0])
        self.window = rows[0].shape[1], columns[0].shape[1]
        # One group of channels for each place of a transformed window.
        products = torch.einsum("ai,bj,ocij->aboc", rows[1], columns[1], weight)
        self.weight: Tensor = products.flatten(0, 2)[..., None, None].float()
        self.products: FusedConv2d | None = None
        self.shape: torch.Size | None = None
        bias = weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()
        self.bias = bias.float()
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H, W), in channels-last memory."""
        (batch, channels, height, width), out_channels = x.shape, len(self.bias)
        (tall, broad), places = self.tile, len(self.inputs)
        down, across = -(-height // tall), -(-width // broad)
        high, wide = tall * down, broad * across
        x = x.float().permute(0, 2, 3, 1)
        y = x.new_empty(batch, high, wide, out_channels)
        rows = max(1, _CHUNK // (places * across * max(channels, out_channels)))
        images, rows = _even(batch, rows // down), _even(down, rows)
        # All chunks have one shape: the last one overlaps the one before.
        for first, start in product(range(0, batch, images), range(0, down, rows)):
            first, start = min(first, batch - images), tall * min(start, down - rows)
            some = y[first : first + images, start : start + tall * rows]
            some = some.unflatten(2, (across, broad)).unflatten(1, (-1, tall)).transpose(2, 3)
            tiles = self._windows(x[first : first + images], start, some.shape[1:3])
            count = len(tiles)
            tiles = torch.bmm(self.inputs.expand(count, -1, -1), tiles)
            tiles = self._multiply(tiles.view(1, count, 1, -1).permute(0, 3, 1, 2))
            tiles = tiles.permute(0, 2, 3, 1).reshape(count, places, out_channels)
            tiles = torch.bmm(self.outputs.expand(count, -1, -1), tiles)
            torch.add(tiles.view(some.shape), self.bias, out=some)
            if self.relu:
                some.relu_()
        return y[:, :height, :width].permute(0, 3, 1, 2)

    def _multiply(self, x: Tensor) -> Tensor:
        # The order of the weights in memory goes by the shape.
        if self.products is None or self.shape != x.shape:
            self.products = FusedConv2d(self.weight, None, groups=len(self.inputs))
            self.shape = x.shape
        return self.products(x)

    def _windows(self, x: Tensor, start: int, tiles: tuple[int, int]) -> Tensor:
        """What the tiles from row `start` on are computed of, (tiles, places, C)."""
        (height, width, channels), (tall, broad) = x.shape[1:], self.tile
        above, left = self.kernel[0] // 2, self.kernel[1] // 2
        begin, end = start - above, start + tall * tiles[0] + above
        right = broad * tiles[1] + left - width
        inside = x[:, max(begin, 0) : end]
        padding = (0, 0, left, right, max(-begin, 0), max(end - height, 0))
        inside = F.pad(inside, padding).contiguous()
        image, row, column, _ = inside.stride()
        windows = inside.as_strided(
            (len(x), *tiles, *self.window, channels),
            (image, tall * row, broad * column, row, column, 1),
        )
        return windows.reshape(-1, len(self.inputs), channels)


def _even(count: int, most: int) -> int:
    """The size of equal parts, `most` at most."""
    most = min(max(most, 1), count)
    return -(-count // -(-count // most))


_Norm = nn.BatchNorm2d | nn.InstanceNorm2d


def _convolution(
    weight: Tensor,
    bias: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
    *,
    padding: str | tuple[int, ...],
    stride: int = 1,
) -> nn.Module:
    if pays(weight, stride, dtype):
        return _WinogradConv2d(weight, bias, relu=relu)
    sides = cast("tuple[int, int]", padding)
    slope = 0 if relu else None
    return FusedConv2d(weight, bias, stride=stride, padding=sides, slope=slope, dtype=dtype)


class _Unit(nn.Module):
    """A convolution, its norm, and a ReLU if wanted; in channels-last memory."""

    def __init__(self, conv: nn.Conv2d, norm: _Norm, dtype: torch.dtype, relu: bool) -> None:
        super().__init__()
        self.relu = relu
        self.instance = isinstance(norm, nn.InstanceNorm2d)
        weight: Tensor = conv.weight
        bias = None  # an instance norm takes off what it adds
        if isinstance(norm, nn.BatchNorm2d):
            weight, bias = fold_batch_norm(weight, conv.bias, norm)
        relu = relu and not self.instance
        stride, padding = conv.stride[0], conv.padding
        self.conv = _convolution(weight, bias, relu, dtype, padding=padding, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if not self.instance:
            return x
        # Image by image a batch norm, which unlike an instance norm keeps channels-last memory.
        images = [F.batch_norm(image.float(), None, None, training=True) for image in x.split(1)]
        y = torch.cat(images)
        return (y.relu_() if self.relu else y).to(x.dtype)


class _Residual(nn.Module):
    def __init__(self, block: ResidualBlock, dtype: torch.dtype) -> None:
        super().__init__()
        self.stride = block.stride
        self.unit1 = _Unit(block.conv1, block.norm1, dtype, relu=True)
        self.unit2 = _Unit(block.conv2, block.norm2, dtype, relu=True)
        self.shortcut = None
        if block.downsample is not None:
            conv, norm = cast("tuple[nn.Conv2d, _Norm]", block.downsample)
            self.shortcut = _Unit(conv, norm, dtype, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.unit2(self.unit1(x))
        if self.shortcut is not None:
            x = self.shortcut(x[:, :, :: self.stride, :: self.stride])
        return y.add_(x).relu_()


class FusedExtractor(nn.Module):
    """`Extractor` with its batch norms folded and its activations within the convolutions."""

    def __init__(self, net: Extractor, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.first = _Unit(net.conv1, net.norm1, dtype, relu=True)
        for name in ("layer1", "layer2", "layer3", "layer4"):
            blocks = (_Residual(block, dtype) for block in getattr(net, name))
            self.add_module(name, nn.Sequential(*blocks))
        for name in ("d_layer4", "d_layer3", "d_layer2", "o_layer4", "o_layer2"):
            self.add_module(name, _layer(getattr(net, name), dtype))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """As of `Extractor`."""
        return down_and_up(self, self.first(images.to(self.dtype)))


def _layer(layer: ConvNorm | DeformableConv2d, dtype: torch.dtype) -> nn.Module:
    if isinstance(layer, ConvNorm):
        return _Unit(layer.conv, layer.norm, dtype, relu=True)
    return copy.deepcopy(layer).to(dtype)


class _Pass(nn.Module):
    """One of the GRU's two passes, with the context's share of its convolutions apart."""

    def __init__(self, convs: list[nn.Conv2d], dtype: torch.dtype) -> None:
        super().__init__()
        self.channels = c = convs[0].out_channels
        padding = convs[0].padding
        shared = torch.cat([conv.weight[:, c : 2 * c] for conv in convs])
        bias = torch.cat([cast(Tensor, conv.bias) for conv in convs])
        own = [torch.cat((conv.weight[:, :c], conv.weight[:, 2 * c :]), 1) for conv in convs]
        self.context = _convolution(shared, bias, False, dtype, padding=padding)
        self.gates = _convolution(torch.cat(own[:2]), None, False, dtype, padding=padding)
        self.candidate = _convolution(own[2], None, False, dtype, padding=padding)

    def prepare(self, context: Tensor) -> Step:
        told = self.context(context)
        to_gates, to_candidate = told.split((2 * self.channels, self.channels), 1)

        def step(hidden: Tensor, motion: Tensor) -> Tensor:
            gates = self.gates(torch.cat((hidden, motion), 1))
            z, r = add_shared(gates, to_gates).sigmoid_().chunk(2, 1)
            candidate = self.candidate(torch.cat((r * hidden, motion), 1))
            return torch.lerp(hidden, add_shared(candidate, to_candidate).tanh_(), z)

        return step


class FusedUpdateBlock(nn.Module):
    """`UpdateBlock` with its activations within the convolutions."""

    def __init__(self, block: UpdateBlock, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

        def fused(conv: nn.Conv2d, relu: bool = True) -> nn.Module:
            return _convolution(conv.weight, conv.bias, relu, dtype, padding=conv.padding)

        encoder, gru, head = block.encoder, block.gru, block.flow_head
        self.cost = nn.Sequential(fused(encoder.convc1), fused(encoder.convc2))
        self.flow = nn.Sequential(fused(encoder.convf1), fused(encoder.convf2))
        # One channel more, for the E-flow; convolutions are slow where they have an odd number.
        joined = encoder.conv
        weight = F.pad(joined.weight, (0,) * 7 + (1,))
        bias = F.pad(cast(Tensor, joined.bias), (0, 1))
        self.joined = _convolution(weight, bias, True, dtype, padding=joined.padding)
        self.passes = nn.ModuleList(
            _Pass([getattr(gru, f"conv{gate}{index}") for gate in "zrq"], dtype) for index in (1, 2)
        )
        self.head = nn.Sequential(fused(head.conv1), fused(head.conv2, relu=False))
        first, _, last = cast("Iterable[nn.Conv2d]", block.mask)
        self.mask = fused(first)
        weight, bias = 0.25 * last.weight, 0.25 * cast(Tensor, last.bias)
        self.whole = FusedConv2d(weight, bias, dtype=dtype)
        self.corner = FusedConv2d(weight[::16], bias[::16], dtype=dtype)

    def prepare(self, context: Tensor) -> list[Step]:
        """As of `UpdateBlock`."""
        return [each.prepare(context) for each in cast("Iterable[_Pass]", self.passes)]

    def forward(
        self, hidden: Tensor, prepared: list[Step], cost: Tensor, flow: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As of `UpdateBlock`."""
        flow = bounded_flow(flow, self.dtype)
        motion = self.joined(torch.cat((self.cost(cost), self.flow(flow)), 1))
        motion[:, -1:] = flow
        for step in prepared:
            hidden = step(hidden, motion)
        return hidden, self.head(hidden)

    def upsampling(self, hidden: Tensor, *, corner: bool = False) -> Tensor:
        """As of `UpdateBlock`."""
        return (self.corner if corner else self.whole)(self.mask(hidden))
