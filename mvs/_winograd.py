"""Convolutions by fewer multiplications, for modules that define `fused(dtype)`.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, arXiv 1509.09308:
4x4 outputs of a 3x3 kernel take 36 products where the convolution itself needs 144, and 4 outputs
of a kernel of 5 in a row take 8 instead of 20. All of it is matrix products, which run at a
processor's full rate. What the transforms cost in turn is worth it from about 96 channels on, and
the result is rounded to about 1e-5 of its largest value.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..vision.fused import FusedConv2d

__all__ = ["WinogradConv2d", "pays"]

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


class WinogradConv2d(nn.Module):
    """Convolution of stride 1 that keeps the size, optionally with a ReLU; in float32.

    Args:
        weight: (out, in, kh, kw): 3x3, 1x5 or 5x1.
        bias: (out,), or None.
        relu: whether a ReLU follows.
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
