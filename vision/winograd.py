"""Convolutions by fewer multiplications, for modules that define `fused(dtype)`.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, arXiv 1509.09308:
4x4 outputs of a 3x3 kernel take 36 products where the convolution itself needs 144, and 4 outputs
of a kernel of 5 in a row take 8 instead of 20. All of it is matrix products, which run at a
processor's full rate. What the transforms cost in turn is worth it from about 64 channels on, and
the result is rounded to about 1e-5 of its largest value.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["WinogradConv2d", "pays"]

_TILE = 4
_CHUNK = 1 << 18  # numbers in a buffer, so that it stays in the cache
_POINTS = {3: (0, 1, -1, 2, -2), 5: (0, 1, -1, 2, -2, 0.5, -0.5)}
_KERNELS = {(3, 3), (1, 5), (5, 1)}


def pays(weight: Tensor, stride: int, dtype: torch.dtype) -> bool:
    """Whether a convolution of this weight (out, in, kh, kw) is likely to be faster this way."""
    wide = min(weight.shape[:2]) >= 64 and tuple(weight.shape[2:]) in _KERNELS
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
        products = torch.einsum("ai,bj,ocij->abco", rows[1], columns[1], weight)
        self.products = products.flatten(0, 1).float().contiguous()  # (n, in, out)
        self.tile = len(rows[0]), len(columns[0])
        self.window = rows[0].shape[1], columns[0].shape[1]
        self.bias = None if bias is None else bias.detach().float()
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H, W), in channels-last memory."""
        (batch, channels, height, width), out_channels = x.shape, self.products.shape[2]
        (tall, broad), count = self.tile, len(self.products)
        down, across = -(-height // tall), -(-width // broad)
        high, wide = tall * down, broad * across
        top, left = self.kernel[0] // 2, self.kernel[1] // 2
        padding = (0, 0, left, wide + left - width, top, high + top - height)
        x = F.pad(x.float().permute(0, 2, 3, 1), padding).contiguous()
        y = x.new_empty(batch, high, wide, out_channels)
        _, row, column, _ = x.stride()
        step = max(1, _CHUNK // (count * across * max(channels, out_channels)))
        for image in range(batch):
            for first in range(0, down, step):
                rows = min(step, down - first)
                windows = x[image, tall * first :].as_strided(
                    (*self.window, rows, across, channels),
                    (row, column, tall * row, broad * column, 1),
                )
                tiles = self.inputs @ windows.reshape(count, -1)
                tiles = torch.bmm(tiles.view(count, -1, channels), self.products)
                tiles = self.outputs @ tiles.view(count, -1)
                tiles = tiles.view(tall, broad, rows, across, out_channels)
                some = y[image, tall * first : tall * (first + rows)]
                some = some.view(rows, tall, across, broad, out_channels)
                some.copy_(tiles.permute(2, 0, 3, 1, 4))
                if self.bias is not None:
                    some += self.bias
                if self.relu:
                    some.relu_()
        return y[:, :height, :width].permute(0, 3, 1, 2)
