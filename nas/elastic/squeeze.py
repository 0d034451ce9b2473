"""Squeeze-and-excitation whose channels depend on choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..values import Value, maximum
from .conv import Conv2d, Conv3d

if TYPE_CHECKING:
    from torchvision.ops import SqueezeExcitation

__all__ = ["SqueezeExcite"]

_GATES = {"hard_sigmoid": nn.Hardsigmoid, "sigmoid": nn.Sigmoid}


def SqueezeExcite(
    channels: Value | int, reduced: Value | int, *, gate: str = "hard_sigmoid", dims: int = 2
) -> SqueezeExcitation:
    """Scales each channel by a gate in [0, 1] that sees the mean of every channel.

    It is torchvision's layer around the convolutions of this package: mean over the image, `fc1`
    (1x1, with bias), ReLU, `fc2`, gate, product. So nothing of it is elastic but `fc1` and `fc2`.

    Args:
        channels: of the input, an int or a value.
        reduced: channels between the two convolutions, an int or a value.
        gate: `hard_sigmoid`, which is relu6(x + 3) / 6, or `sigmoid`.
        dims: 2 for images, 3 for volumes.

    Raises:
        ValueError: the gate or the number of dimensions is unknown.
    """
    from torchvision.ops import SqueezeExcitation  # not at the top: it takes a second

    if gate not in _GATES or dims not in (2, 3):
        raise ValueError(
            f"a squeeze-excite has a gate of {' or '.join(_GATES)} and 2 or 3 dimensions, "
            f"not {gate!r} and {dims}"
        )
    conv, pool = (Conv2d, nn.AdaptiveAvgPool2d) if dims == 2 else (Conv3d, nn.AdaptiveAvgPool3d)
    layer = SqueezeExcitation(maximum(channels), 1, scale_activation=_GATES[gate])
    layer.avgpool = pool(1)
    layer.fc1 = conv(channels, reduced, 1)
    layer.fc2 = conv(reduced, channels, 1)
    return layer
