"""What the mobile search spaces share: inverted residuals of images, and rounded channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from ...nas import elastic
from ...nas.values import Value
from ...vision.layers import ConvNorm, InvertedResidual

__all__ = ["inverted_residual", "rounded"]


def inverted_residual(
    in_channels: int,
    channels: int,
    kernel: Value | int,
    ratio: Value | int,
    stride: int = 1,
    *,
    activation: type[nn.Module] = nn.ReLU,
    squeezed: bool = False,
    eps: float = 1e-5,
) -> InvertedResidual:
    """A block that adds its input where shapes agree.

    Args:
        in_channels: of the input.
        channels: of the output.
        kernel: of the depthwise convolution.
        ratio: of the inner channels to the input's; 1 leaves the expansion out.
        stride: of the depthwise convolution.
        activation: after expansion and depthwise convolution.
        squeezed: whether a squeeze-excite gates the inner channels.
        eps: of the batch norms.
    """
    inner = _of(ratio, lambda number: rounded(in_channels * number))
    convolution = partial(ConvNorm, activation=activation, eps=eps)
    # One after the other as they run, since each draws random weights.
    expand = nn.Identity() if ratio == 1 else convolution(in_channels, inner)
    depthwise = convolution(inner, inner, kernel, stride, groups=inner)
    squeeze = None
    if squeezed:
        squeeze = elastic.SqueezeExcite(inner, _of(inner, lambda number: rounded(number // 4)))
    project = ConvNorm(inner, channels, eps=eps)
    residual = stride == 1 and in_channels == channels
    return InvertedResidual(expand, depthwise, project, residual, squeeze)


def rounded(channels: float) -> int:
    """The nearest multiple of 8, unless that is less than 0.9 of it (MobileNetV2's rule)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def _of(number: Value | int, function: Callable[[int], int]) -> Value | int:
    return number.map(function) if isinstance(number, Value) else function(number)
