"""Pictures compared around each pixel: brightness, means over squares, correlation."""

from __future__ import annotations

import cv2
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

__all__ = ["box_mean", "brightness", "correlation", "moments"]

_BRIGHTNESS = torch.tensor([0.299, 0.587, 0.114])[:, None, None]  # shares of the channels (BT.601)
_FLAT = 1e-6  # product of two deviations of brightness below which windows tell nothing

Moments = tuple[Tensor, Tensor]


def brightness(images: Tensor) -> Tensor:
    """Brightness (..., 1, H, W) of RGB images (..., 3, H, W), by ITU-R BT.601."""
    return (images * _BRIGHTNESS.to(images)).sum(-3, keepdim=True)


def box_mean(picture: Tensor, window: int) -> Tensor:
    """The mean (B, C, H, W) over a square around each pixel, over what of it lies in the picture.

    Args:
        picture: (B, C, H, W).
        window: side of the square, odd, pixels.
    """
    half = window // 2
    whole = picture.dtype in (torch.float32, torch.float64)
    if picture.device.type != "cpu" or picture.requires_grad or not whole:
        # One way after the other: what a large square costs grows with its side, not its area.
        rows = avg_pool2d(picture, (window, 1), 1, (half, 0), count_include_pad=False)
        return avg_pool2d(rows, (1, window), 1, (0, half), count_include_pad=False)
    # OpenCV's running sums take the same time whatever the window: a twentieth of 9x9's pooling.
    sums = picture.new_empty(picture.shape)
    size, border = (window, window), cv2.BORDER_CONSTANT
    for plane, out in zip(picture.flatten(0, 1), sums.flatten(0, 1), strict=True):
        cv2.boxFilter(plane.numpy(), -1, size, out.numpy(), normalize=False, borderType=border)
    rows, columns = (_inside(size, half).to(picture) for size in picture.shape[-2:])
    return sums.mul_(1 / (rows[:, None] * columns))


def moments(picture: Tensor, window: int) -> Moments:
    """Mean and variance over a square around each pixel, as of `box_mean`.

    Take the picture's own mean off before: the difference of two large squares loses the small.
    """
    mean = box_mean(picture, window)
    return mean, box_mean(picture**2, window).sub_(mean**2).clamp_(min=0)


def correlation(first: Tensor, second: Tensor, window: int, known: Moments | None = None) -> Tensor:
    """Normalised cross-correlation (B, C, H, W) of the squares around each pixel, in [-1, 1].

    A change of exposure leaves it as it is; it is 0 where a square is flat.

    Args:
        first: (B, C, H, W), about 0 in the mean, as for `moments`.
        second: likewise; the batches broadcast.
        window: side of the squares, odd, pixels.
        known: the first's `moments`, where they are.
    """
    (mean, variance), (other, spread) = known or moments(first, window), moments(second, window)
    covariance = box_mean(first * second, window).sub_(mean * other)
    deviations = (variance * spread).sqrt_()
    return torch.where(deviations > _FLAT, covariance.div_(deviations), 0).clamp_(-1, 1)


def _inside(size: int, half: int) -> Tensor:
    """How many places of a line lie within so many of each."""
    at = torch.arange(size)
    return (at + half).clamp(max=size - 1) - (at - half).clamp(min=0) + 1
