"""Sampling at the places a disparity map points to: ``kernels/warp.cu``."""

from __future__ import annotations

import torch
from torch import Tensor

from .._kernels import TYPES, launch

KERNELS = ("warp_forward<{}>", "warp_backward_disparity<{}>", "warp_backward_image<{}>")

_THREADS = 128
_CHANNELS = 16  # of a thread


def forward(image: Tensor, disparity: Tensor, padding: str, align_corners: bool) -> Tensor:
    """The image (B, C, H, W) sampled where the disparity (B, 1, H, W) points to."""
    batch, channels, height, width = image.shape
    out = torch.empty_like(image)
    launch(
        "warp",
        f"warp_forward<{TYPES[image.dtype]}>",
        (-(-width // _THREADS), height, batch * -(-channels // _CHANNELS)),
        _THREADS,
        *(image, *image.stride(), *_disparity(disparity), out, *out.stride()),
        *(batch, channels, height, width, int(padding == "border"), int(align_corners)),
    )
    return out


def backward_image(
    gradient: Tensor, image: Tensor, disparity: Tensor, padding: str, align_corners: bool
) -> Tensor:
    """The gradient of the image (B, C, H, W)."""
    batch, channels, height, width = image.shape
    out = torch.empty_like(image)
    launch(
        "warp",
        f"warp_backward_image<{TYPES[image.dtype]}>",
        (-(-width // _THREADS), height, batch * -(-channels // _CHANNELS)),
        _THREADS,
        *(gradient, *gradient.stride(), *_disparity(disparity), out, *out.stride()),
        *(batch, channels, height, width, int(padding == "border"), int(align_corners)),
    )
    return out


def backward_disparity(
    gradient: Tensor, image: Tensor, disparity: Tensor, padding: str, align_corners: bool
) -> Tensor:
    """The gradient of the disparity (B, 1, H, W), float32."""
    batch, channels, height, width = image.shape
    out = disparity.new_empty(disparity.shape, dtype=torch.float32)
    launch(
        "warp",
        f"warp_backward_disparity<{TYPES[image.dtype]}>",
        (-(-width // _THREADS), height, batch),
        _THREADS,
        *(gradient, *gradient.stride(), image, *image.stride(), *_disparity(disparity), out),
        *(batch, channels, height, width, int(padding == "border"), int(align_corners)),
    )
    return out.to(disparity.dtype)


def _disparity(disparity: Tensor) -> tuple[Tensor | int, ...]:
    """In float32, and its strides but for the channel's: in a half type places would be off."""
    disparity = disparity.float()
    batch, _, y, x = disparity.stride()
    return disparity, batch, y, x
