"""Small pieces that networks of several tasks share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.values import Value

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "ConvNorm",
    "DeformableConv2d",
    "InvertedResidual",
    "check_images",
    "check_normalization",
    "check_range",
    "check_truth",
    "compressed",
    "convex_upsample",
    "deformable_convolution",
    "normalize_images",
    "normalize_pair",
    "pad_to",
]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_LEAST, _MOST = -0.5, 2.0
"""Noise and resizing go a little beyond [0, 1]; standardised images and 0 to 255 much further."""


def check_images(images: Tensor) -> None:
    """Raise a ValueError unless they are (B, 3, H, W) and `check_range` takes them."""
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images must be RGB, (batch, 3, height, width), but have shape {tuple(images.shape)}"
        )
    check_range(images)


def check_range(images: Tensor, what: str = "images") -> None:
    """Refuse what a network would take for values in [0, 1] and predict nonsense from.

    Of tensors on the CPU a few values are looked at, of others the type alone: reading them would
    wait for the device. A network that is compiled, traced or exported keeps no trace of it.

    Args:
        images: the first axis is the batch.
        what: what an error calls them.

    Raises:
        ValueError: integers, or values far outside [0, 1].
    """
    if not images.is_floating_point():
        name = str(images.dtype).removeprefix("torch.")
        remedies = {"uint8": "divide by 255", "uint16": "divide by 65535"}
        remedy = remedies.get(name, "convert and scale")
        raise ValueError(f"{what} must be float in [0, 1], got {name}: {remedy}")
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or images.device.type != "cpu":
        return
    if type(images) is not Tensor or not images.numel():  # what exporters compute with is others
        return
    steps = [slice(None, None, -(-length // 8)) for length in images.shape[1:]]
    low, high = (value.item() for value in images.detach()[0][tuple(steps)].aminmax())
    if low < _LEAST:
        remedy = "scale them alone, without subtracting a mean"
    elif high > _MOST:
        remedy = f"divide by {65535 if high > 255 else 255}"
    else:
        return
    raise ValueError(f"{what} must be in [0, 1], got values from {low:.4g} to {high:.4g}: {remedy}")


def check_normalization(scheme: str) -> None:
    """Raise ValueError unless `normalize_images` knows the scheme."""
    if scheme not in ("imagenet", "instance"):
        raise ValueError(f"normalization {scheme!r} is unknown: choose 'imagenet' or 'instance'")


def normalize_images(images: Tensor, scheme: str = "imagenet") -> Tensor:
    """Standardise RGB images.

    Args:
        images: (B, 3, H, W), values in [0, 1].
        scheme: `imagenet` takes the data set's mean and deviation; `instance` standardises each
            channel of each image by its own mean and deviation.

    Raises:
        ValueError: the images are not (B, 3, H, W) in [0, 1], or the scheme is unknown.
    """
    check_normalization(scheme)
    check_images(images)
    if scheme == "imagenet":
        mean, std = (images.new_tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
        return (images - mean) / std
    std, mean = torch.std_mean(images, dim=(2, 3), correction=0, keepdim=True)
    return (images - mean) / std.clamp(min=1e-6)


def normalize_pair(left: Tensor, right: Tensor, scheme: str = "imagenet") -> tuple[Tensor, Tensor]:
    """Standardise the views of a stereo pair, each as `normalize_images` does.

    Raises:
        ValueError: the views differ in shape or are not (B, 3, H, W) in [0, 1], or the scheme is
            unknown.
    """
    check_pair(left, right)
    return normalize_images(left, scheme), normalize_images(right, scheme)


def check_pair(left: Tensor, right: Tensor) -> None:
    """Raise ValueError unless the views of a stereo pair have one shape, (B, 3, H, W) in [0, 1]."""
    if left.shape != right.shape:
        raise ValueError(
            f"left and right must have one shape, not {tuple(left.shape)} and {tuple(right.shape)}"
        )
    check_images(left)
    check_images(right)


def check_truth(prediction: Tensor, truth: Tensor, valid: Tensor) -> None:
    """Raise ValueError unless a prediction, its truth and where that is known have one shape."""
    if not prediction.shape == truth.shape == valid.shape:
        raise ValueError(
            f"prediction {tuple(prediction.shape)}, truth {tuple(truth.shape)} and mask "
            f"{tuple(valid.shape)} must have one shape"
        )


def pad_to(x: Tensor, multiple: int) -> Tensor:
    """Zero-pad (B, C, H, W) on top and on the right to the next multiples of `multiple`."""
    height, width = x.shape[-2:]
    # Written so that torch.export can bound the result for a range of sizes.
    right, top = ((size + multiple - 1) // multiple * multiple - size for size in (width, height))
    return F.pad(x, (0, right, top, 0))


class ConvNorm(nn.Sequential):
    """Convolution without bias that keeps the size at stride 1, batch norm, perhaps an activation.

    Args:
        in_channels: of the input, an int or a value.
        channels: of the output, likewise.
        kernel: side of the kernel, an odd int or a value of such.
        stride: of the convolution.
        groups: of the convolution, an int or the value that `in_channels` is.
        activation: makes one; None for none.
        eps: of the batch norm.
    """

    def __init__(
        self,
        in_channels: Value | int,
        channels: Value | int,
        kernel: Value | int = 1,
        stride: int = 1,
        *,
        groups: Value | int = 1,
        activation: Callable[[], nn.Module] | None = None,
        eps: float = 1e-5,
    ) -> None:
        conv = elastic.Conv2d(
            in_channels, channels, kernel, stride, "half", groups=groups, bias=False, transform=True
        )
        norm = elastic.BatchNorm2d(channels, eps)
        super().__init__(conv, norm, *([activation()] if activation is not None else []))


class InvertedResidual(nn.Module):
    """MobileNet's block of any dimension, made of its parts.

    Sandler et al., "MobileNetV2", CVPR 2018; with squeeze-excite Howard et al., "Searching for
    MobileNetV3", ICCV 2019.

    Args:
        expand: from the input to more channels, or an identity.
        depthwise: changes each of them.
        project: back to few channels, without an activation.
        residual: whether the input is added.
        squeeze: weighs the channels before the projection; None for none.
    """

    def __init__(
        self,
        expand: nn.Module,
        depthwise: nn.Module,
        project: nn.Module,
        residual: bool,
        squeeze: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.expand = expand
        self.depthwise = depthwise
        self.squeeze = squeeze or nn.Identity()
        self.project = project
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, …) to (B, out, …); the input is added where `residual` says so."""
        y = self.project(self.squeeze(self.depthwise(self.expand(x))))
        return x + y if self.residual else y


def deformable_convolution(
    x: Tensor, offsets: Tensor, mask: Tensor | None, weight: Tensor, *, dilation: int = 1
) -> Tensor:
    """Deformable convolution of stride 1 that keeps the size, without bias.

    Modulated by a mask: Zhu et al., "Deformable ConvNets v2", CVPR 2019; without one: Dai et al.,
    "Deformable Convolutional Networks", ICCV 2017. Equals `torchvision.ops.deform_conv2d` and is
    2 times as fast on a CPU, 5 times in training, since it samples by `grid_sample` and is a
    matrix product from there; it also exports. It needs k * k times the memory of its input.

    Args:
        x: (B, C, H, W).
        offsets: (B, 2 * groups * k * k, H, W): for each group of input channels and each tap, row
            by row, (dy, dx) in pixels.
        mask: (B, groups * k * k, H, W), factors of the taps, or None.
        weight: (out, C, k, k), k odd.
        dilation: of the kernel.

    Returns:
        (B, out, H, W). What is sampled outside counts as 0.
    """
    batch, channels, height, width = x.shape
    taps = weight.shape[-1] ** 2
    groups = offsets.shape[1] // (2 * taps)
    reach = weight.shape[-1] // 2 * dilation
    # Positions in a half type would be off by pixels on a wide image.
    precise = torch.promote_types(x.dtype, torch.float32)
    offsets = offsets.to(precise).reshape(batch * groups, taps, 2, height, width)
    step = torch.arange(-reach, reach + 1, dilation, device=x.device)
    row = torch.arange(height, device=x.device).view(-1, 1)
    column = torch.arange(width, device=x.device)
    v = offsets[:, :, 0] + (step.repeat_interleave(len(step)).view(-1, 1, 1) + row)
    u = offsets[:, :, 1] + (step.repeat(len(step)).view(-1, 1, 1) + column)
    grid = torch.stack(((2 * u + 1) / width - 1, (2 * v + 1) / height - 1), -1)
    sampled = F.grid_sample(
        x.reshape(batch * groups, channels // groups, height, width).to(precise),
        grid.view(batch * groups, taps * height, width, 2),
        align_corners=False,
    ).to(x.dtype)
    if mask is not None:
        sampled = sampled * mask.reshape(batch * groups, 1, taps * height, width).to(x.dtype)
    sampled = sampled.view(batch, channels * taps, height * width)
    return (weight.flatten(1) @ sampled).view(batch, -1, height, width)


class DeformableConv2d(nn.Module):
    """Deformable convolution that predicts its own offsets and mask, see `deformable_convolution`.

    The mask is doubled as in AANet (Xu and Zhang, CVPR 2020), so that the layer starts as the
    ordinary convolution of its weight. Offsets and mask come from one convolution with as many
    weight groups as there are offset groups.

    Args:
        in_channels: channels of the input, a multiple of `offset_groups`.
        out_channels: channels of the output.
        kernel_size: side of the kernel, an odd number.
        dilation: of the kernel; the padding keeps the size.
        offset_groups: groups of input channels with offsets of their own.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        dilation: int = 1,
        offset_groups: int = 1,
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.groups = kernel_size, dilation, offset_groups
        self.padding = dilation * (kernel_size // 2)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        nn.init.kaiming_normal_(self.weight, mode="fan_out")
        self.offsets = nn.Conv2d(
            in_channels,
            3 * offset_groups * kernel_size**2,
            kernel_size,
            padding=self.padding,
            dilation=dilation,
            groups=offset_groups,
        )
        self.reset_offsets()

    def reset_offsets(self) -> None:
        """Zero the offsets: the ordinary convolution."""
        for parameter in self.offsets.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H, W), sampled at offsets that the input decides."""
        taps = self.groups * self.kernel_size**2
        offsets, mask = self.offsets(x).split((2 * taps, taps), 1)
        return deformable_convolution(
            x, offsets, 2 * mask.sigmoid(), self.weight, dilation=self.dilation
        )


def compressed(difference: Tensor) -> Tensor:
    """Large differences made small: sign and logarithm of 1 more."""
    # log1p takes ten times as long, and changes about 1e-7.
    return difference.sign() * (1 + difference.abs()).log()


def convex_upsample(x: Tensor, logits: Tensor, outside: str = "constant") -> Tensor:
    """Weighted means of 3x3 neighbourhoods.

    Args:
        x: (N, K, h, w).
        logits: (N, 9 f^2, h, w): tap, then row and column of the pixel in its block.
        outside: a mode of `torch.nn.functional.pad`: `constant` (0) or `replicate`.

    Returns:
        (N, K, f h, f w).
    """
    height, width = x.shape[2:]
    factor = math.isqrt(logits.shape[1] // 9)
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    weights = logits.unflatten(1, (9, factor**2)).softmax(1)
    padded = F.pad(x, (1, 1, 1, 1), outside)
    total: Any = 0
    for tap, weight in enumerate(weights.unbind(1)):
        row, column = divmod(tap, 3)
        shifted = padded[:, :, row : row + height, column : column + width]
        total = total + weight[:, None] * shifted[:, :, None]
    return F.pixel_shuffle(total.flatten(1, 2), factor)
