"""Convolutions whose channels, kernel and depthwise groups depend on choices.

Where every number is an int the functions return torch's own layer. Sliced as by once-for-all
networks (Cai et al., ICLR 2020, arXiv 1908.09791): the leading channels, the centre of the
kernel, and optionally a learned matrix from each kernel size to the next smaller.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ._conv import ElasticConv, ElasticConvTranspose, Number, Size, build

__all__ = ["Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d"]
__all__ += ["ElasticConv2d", "ElasticConv3d", "ElasticConvTranspose2d", "ElasticConvTranspose3d"]


class ElasticConv2d(ElasticConv, nn.Conv2d):
    """What `Conv2d` returns where a number depends on a choice."""

    dims, plain, run = 2, nn.Conv2d, staticmethod(F.conv2d)


class ElasticConv3d(ElasticConv, nn.Conv3d):
    """What `Conv3d` returns where a number depends on a choice."""

    dims, plain, run = 3, nn.Conv3d, staticmethod(F.conv3d)


class ElasticConvTranspose2d(ElasticConvTranspose, nn.ConvTranspose2d):
    """What `ConvTranspose2d` returns where a number depends on a choice."""

    dims, plain, run = 2, nn.ConvTranspose2d, staticmethod(F.conv_transpose2d)


class ElasticConvTranspose3d(ElasticConvTranspose, nn.ConvTranspose3d):
    """What `ConvTranspose3d` returns where a number depends on a choice."""

    dims, plain, run = 3, nn.ConvTranspose3d, staticmethod(F.conv_transpose3d)


def Conv2d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: Number = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.Conv2d:
    """`nn.Conv2d`, elastic where a number depends on a choice.

    Channels and kernel are ints or values: of a concatenation the leading channels of each part
    run, of a kernel its centre. `groups` is an int (channels are sliced inside each group), or for
    a depthwise convolution the value that `in_channels` is. The padding `half` is kernel // 2 *
    dilation of the active kernel, which keeps the size at stride 1 with odd kernels. `transform`
    is a learned matrix from each kernel size to the next smaller, for all channels, the identity
    at first: parameters such as `matrix_7to5`, 25 x 25. All else is as in torch.

    Raises:
        ValueError: a stride, padding or dilation is a value, kernels are odd and even, or
            channels do not fit the groups.
    """
    sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
    return build(ElasticConv2d, *sizes, bias, padding_mode, device, dtype, transform)


def Conv3d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: Number = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.Conv3d:
    """`nn.Conv3d`, elastic where a number depends on a choice; arguments as of `Conv2d`.

    The matrix of a transform from 7 to 5 is 125 x 125.
    """
    sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
    return build(ElasticConv3d, *sizes, bias, padding_mode, device, dtype, transform)


def ConvTranspose2d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    output_padding: Size = 0,
    groups: Number = 1,
    bias: bool = True,
    dilation: Size = 1,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.ConvTranspose2d:
    """`nn.ConvTranspose2d`, elastic where a number depends on a choice; arguments as of `Conv2d`.

    The padding `half` multiplies the size by the stride, with `output_padding=1` where kernel
    minus stride is odd.
    """
    sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
    rest = bias, padding_mode, device, dtype, transform
    return build(ElasticConvTranspose2d, *sizes, *rest, output_padding=output_padding)


def ConvTranspose3d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    output_padding: Size = 0,
    groups: Number = 1,
    bias: bool = True,
    dilation: Size = 1,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.ConvTranspose3d:
    """`nn.ConvTranspose3d`, elastic where a number depends on a choice; see `ConvTranspose2d`."""
    sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
    rest = bias, padding_mode, device, dtype, transform
    return build(ElasticConvTranspose3d, *sizes, *rest, output_padding=output_padding)
