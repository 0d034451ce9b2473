"""Convolutions as they run fastest in inference, for modules that define `fused(dtype)`.

A convolution's time on a CPU goes with its taps, its input channels and its output channels
rounded up to a vector (16 with AVX-512): one with few outputs is therefore computed for a block
of pixels at once, with a larger kernel and stride, and the block spread out afterwards. Where
oneDNN is there, its activation is part of the convolution and the weights are stored in its order.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

__all__ = [
    "FusedConv2d",
    "FusedConv3d",
    "FusedUpsampling2d",
    "blocked_weight",
    "depth_to_space",
    "fold_batch_norm",
]


def fold_batch_norm(
    weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d | nn.BatchNorm3d
) -> tuple[Tensor, Tensor]:
    """Weight (out, in, …) and bias of a convolution together with the batch norm after it."""
    mean, variance = cast("tuple[Tensor, Tensor]", (norm.running_mean, norm.running_var))
    weight, bias = fuse_conv_bn_weights(
        weight, bias, mean, variance, norm.eps, norm.weight, norm.bias
    )
    return weight.detach(), bias.detach()


def _upsampling_weight(weight: Tensor) -> Tensor:
    """A 3x3 kernel for a transposed convolution with kernel 4, stride 2 and padding 1.

    (in, out, 4, 4) to (4 out, in, 3, 3): the four pixels that come of one, rows first, each with
    its channels.
    """
    out = weight.new_zeros(2, 2, *weight.shape[1::-1], 3, 3)
    taps = ((3, 1), (2, 0))  # pixel 2 n gets n - 1 and n; pixel 2 n + 1 gets n and n + 1
    for y in range(2):
        for x in range(2):
            chosen = weight[:, :, taps[y]][..., taps[x]].transpose(0, 1)
            out[y, x, :, :, y : y + 2, x : x + 2] = chosen
    return out.flatten(0, 2)


def blocked_weight(weight: Tensor, stride: int, block: tuple[int, int]) -> Tensor:
    """A kernel that gives a block of neighbouring outputs, its rows and columns, at once.

    Made of the weight (out, in, kh, kw) for a stride, it takes `stride * block`.

    Returns:
        (rows * columns * out, in, kh + stride * (rows - 1), kw + stride * (columns - 1)).
    """
    rows, columns = block
    high, wide = weight.shape[2] + stride * (rows - 1), weight.shape[3] + stride * (columns - 1)
    out = weight.new_zeros(rows, columns, *weight.shape[:2], high, wide)
    for y in range(rows):
        for x in range(columns):
            top, left = stride * y, stride * x
            out[y, x, ..., top : top + weight.shape[2], left : left + weight.shape[3]] = weight
    return out.flatten(0, 2)


def depth_to_space(x: Tensor, block: tuple[int, int]) -> Tensor:
    """(B, rows * columns * C, H, W) to (B, C, rows * H, columns * W), in channels-last memory."""
    x = x.permute(0, 2, 3, 1).unflatten(3, (*block, -1)).permute(0, 1, 3, 2, 4, 5)
    return x.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


def _space_to_depth(x: Tensor) -> Tensor:
    """(B, C, 2 H, 2 W) to (B, 4 C, H, W), undone by `depth_to_space(…, (2, 2))`."""
    x = x.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
    return x.transpose(2, 3).flatten(3).permute(0, 3, 1, 2)


_ONEDNN = (
    "_convolution_pointwise",
    "_convolution_transpose_pointwise",
    "_reorder_convolution_transpose_weight",
    "_reorder_convolution_weight",
)


class _FusedConv(nn.Module):
    """A convolution whose weight oneDNN orders in the first call, as the best order depends on it.

    The activation comes after the addition: its name in oneDNN, and its numbers.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        form: tuple[list[int], list[int], list[int], int],
        activation: tuple[str, list[float]],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.dtype, self.activation = dtype, activation
        self.stride, self.padding, self.dilation, self.groups = form
        self.weight: Tensor = weight.to(dtype).contiguous(memory_format=self.layout)
        self.bias = None if bias is None else bias.to(dtype)
        self.packs = _packs(self.weight)

    def __getstate__(self) -> dict[str, Any]:
        """With the weight in the usual order: oneDNN's cannot be pickled."""
        weight = self.weight.to_dense() if self.weight.is_mkldnn else self.weight
        return {**vars(self), "weight": weight}

    @property
    def layout(self) -> torch.memory_format:  # no attribute: `torch.save` cannot write it
        return torch.channels_last if len(self.stride) == 2 else torch.channels_last_3d

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """Args: x (B, in, …); add, of the result's shape, before the activation."""
        x = x.to(self.dtype).contiguous(memory_format=self.layout)
        shape = self.padding, self.stride, self.dilation, self.groups
        weight = self.weight  # once, as another thread may order it meanwhile
        if not self.packs:
            convolve = F.conv2d if x.dim() == 4 else F.conv3d
            y = convolve(
                x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups
            )
            return self._activated(y if add is None else y.add_(add))
        if not weight.is_mkldnn:
            reorder = torch.ops.mkldnn._reorder_convolution_weight
            self.weight = weight = reorder(weight, *shape, list(x.shape))
        run = torch.ops.mkldnn._convolution_pointwise
        if add is None:
            return run(x, weight, self.bias, *shape, *self.activation, "")
        add = add.to(self.dtype)
        if add.shape[2:].numel() == 1:  # to which PyTorch 2.8 cannot add on the way
            return self._activated(run(x, weight, self.bias, *shape, "none", [], "") + add)
        add = add.contiguous(memory_format=self.layout)
        relu = "relu" if self.activation[0] == "relu" else None
        y = run.binary(x, add, weight, self.bias, *shape, "add", 1.0, relu, [], "")
        return y if relu else self._activated(y)

    def _activated(self, y: Tensor) -> Tensor:
        name, numbers = self.activation
        if name == "hardtanh":
            return y.clamp_(*numbers)
        return y if name == "none" else F.leaky_relu_(y, *(numbers or [0.0]))


class FusedConv2d(_FusedConv):
    """Convolution, optional addition, optional activation; takes any type, gives `dtype`.

    Args:
        weight: (out, in, kh, kw).
        bias: (out,).
        stride: of both axes.
        padding: of both axes, or of rows and of columns.
        dilation: of both axes.
        groups: number of groups of channels.
        slope: None for no activation, 0 for ReLU, more for LeakyReLU.
        dtype: of the computation and of the result.
        block: rows and columns of outputs to compute at once; they must divide the output.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int = 1,
        groups: int = 1,
        slope: float | None = None,
        dtype: torch.dtype = torch.float32,
        block: tuple[int, int] = (1, 1),
    ) -> None:
        if weight.device.type != "cpu":  # blocks fill a CPU's vectors; a GPU would only do more
            block = (1, 1)
        weight = blocked_weight(weight.detach(), stride, block)
        bias = None if bias is None else bias.detach().repeat(block[0] * block[1])
        sides = list(padding) if isinstance(padding, tuple) else [padding, padding]
        form = [stride * side for side in block], sides, [dilation, dilation], groups
        super().__init__(weight, bias, form, _activation(slope), dtype)
        self.block = block

    @classmethod
    def of(
        cls,
        conv: nn.Conv2d,
        norm: nn.BatchNorm2d | None = None,
        *,
        channels: int | None = None,
        slope: float | None = None,
        dtype: torch.dtype = torch.float32,
        block: tuple[int, int] = (1, 1),
    ) -> FusedConv2d:
        """A convolution with the batch norm and the activation after it.

        Args:
            conv: of one stride and one dilation for both axes.
            norm: None for none.
            channels: how many of the convolution's input channels come; None for all.
            slope: of the activation, as the class takes it.
            dtype: likewise.
            block: likewise.
        """
        weight, bias = conv.weight[:, :channels], conv.bias
        if norm is not None:
            weight, bias = fold_batch_norm(weight, bias, norm)
        return cls(
            weight,
            bias,
            stride=conv.stride[0],
            padding=cast("tuple[int, int]", conv.padding),
            dilation=conv.dilation[0],
            groups=conv.groups,
            slope=slope,
            dtype=dtype,
            block=block,
        )

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """Args: x (B, in, H, W); add, of the result's shape, before the activation."""
        y = super().forward(x, add)
        return y if self.block == (1, 1) else depth_to_space(y, self.block)


class FusedConv3d(_FusedConv):
    """Convolution of volumes, optional clipped ReLU or addition; takes any type, gives `dtype`.

    In channels-last memory oneDNN runs a depthwise convolution up to three times as fast; plain
    sums of 2D convolutions over the taps of depth are slower (benchmarks/depthwise3d.py).

    Args:
        weight: (out, in, k, k, k).
        bias: (out,).
        stride: of all axes.
        padding: of all axes.
        groups: number of groups of channels.
        limit: None for no activation, else the largest value of the ReLU.
        dtype: of the computation and of the result.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        limit: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        form = [stride] * 3, [padding] * 3, [1] * 3, groups
        activation = ("none", []) if limit is None else ("hardtanh", [0.0, limit])
        super().__init__(weight.detach(), bias.detach(), form, activation, dtype)


class FusedUpsampling2d(nn.Module):
    """Transposed convolution with kernel 4, stride 2, padding 1 and no bias; optional activation.

    Args:
        weight: (in, out, 4, 4).
        slope: None for no activation, else of the LeakyReLU.
        dtype: of the computation and of the result.
    """

    def __init__(
        self, weight: Tensor, *, slope: float | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.slope = slope
        self.weight = weight.detach().to(dtype)
        self.narrow = None
        self.packs = _packs(self.weight)
        if weight.shape[1] <= 8:
            weight = _upsampling_weight(weight)
            self.narrow = FusedConv2d(weight, None, padding=1, slope=slope, dtype=dtype)

    def __getstate__(self) -> dict[str, Any]:
        """With the weight in the usual order: oneDNN's, (out, in, 4, 4), cannot be pickled."""
        weight = self.weight
        if weight.is_mkldnn:
            weight = weight.to_dense().transpose(0, 1).contiguous()
        return {**vars(self), "weight": weight}

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, 2 H, 2 W)."""
        if self.narrow is not None:
            return depth_to_space(self.narrow(x), (2, 2))
        x = x.to(self.dtype).contiguous(memory_format=torch.channels_last)
        weight = self.weight  # once, as another thread may order it meanwhile
        if self.packs:
            name, scalars = _activation(self.slope)
            shape = [1, 1], [0, 0], [2, 2], [1, 1], 1
            if not weight.is_mkldnn:
                reorder = torch.ops.mkldnn._reorder_convolution_transpose_weight
                self.weight = weight = reorder(weight, *shape)
            run = torch.ops.mkldnn._convolution_transpose_pointwise
            return run(x, weight, None, *shape, name, scalars, "")
        y = F.conv_transpose2d(x, weight, stride=2, padding=1)
        return y if self.slope is None else F.leaky_relu_(y, self.slope)

    def blocked(self, x: Tensor) -> Tensor:
        """The same with 2x2 pixels in the channels: (B, 4 out, H, W)."""
        return _space_to_depth(self(x)) if self.narrow is None else self.narrow(x)


def _activation(slope: float | None) -> tuple[str, list[float]]:
    if slope is None:
        return "none", []
    return ("leaky_relu", [slope]) if slope else ("relu", [])


def _packs(weight: Tensor) -> bool:
    ops = torch.ops.mkldnn
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not all(hasattr(ops, name) for name in _ONEDNN):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32
