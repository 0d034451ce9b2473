"""Squeeze-and-excitation whose channels depend on choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..values import Value, maximum
from .conv import Conv2d

if TYPE_CHECKING:
    from torchvision.ops import SqueezeExcitation

__all__ = ["SqueezeExcite"]


def SqueezeExcite(channels: Value | int, reduced: Value | int) -> SqueezeExcitation:
    """Scales each channel of images by a gate, relu6(x + 3) / 6, that sees every channel's mean.

    It is torchvision's layer around the convolutions of this package: mean over the image, `fc1`
    (1x1, with bias) to the `reduced` channels, ReLU, `fc2`, gate, product. So nothing of it is
    elastic but `fc1` and `fc2`.
    """
    from torchvision.ops import SqueezeExcitation  # not at the top: it takes a second

    layer = SqueezeExcitation(maximum(channels), 1, scale_activation=nn.Hardsigmoid)
    layer.fc1 = Conv2d(channels, reduced, 1)
    layer.fc2 = Conv2d(reduced, channels, 1)
    return layer
