"""Blocks that the mobile search spaces share: inverted residuals of images."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["ConvNorm", "InvertedResidual", "rounded"]


class ConvNorm(nn.Sequential):
    """Convolution without bias, batch norm, and an activation where there is one.

    Args:
        in_channels: of the input.
        channels: of the output.
        kernel: odd.
        stride: of the convolution.
        groups: of the convolution.
        activation: made anew for each layer; None for none.
        eps: of the batch norm.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        activation: type[nn.Module] | None = None,
        eps: float = 1e-5,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(
                in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False
            ),
            nn.BatchNorm2d(channels, eps=eps),
        ]
        super().__init__(*layers, *([activation()] if activation is not None else []))


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, project (MobileNetV2); the input is added where shapes agree.

    Args:
        in_channels: of the input.
        channels: of the output.
        kernel: of the depthwise convolution.
        ratio: of the inner channels to the input's; 1 leaves the expansion out.
        stride: of the depthwise convolution.
        activation: after expansion and depthwise convolution.
        eps: of the batch norms.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel: int,
        ratio: int,
        stride: int = 1,
        *,
        activation: type[nn.Module] = nn.ReLU,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        inner = in_channels * ratio
        same = {"activation": activation, "eps": eps}
        self.expand = ConvNorm(in_channels, inner, **same) if ratio > 1 else nn.Identity()
        self.depthwise = ConvNorm(inner, inner, kernel, stride, groups=inner, **same)
        self.project = ConvNorm(inner, channels, eps=eps)
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


def rounded(channels: float) -> int:
    """The nearest multiple of 8, unless that is less than 0.9 of it (MobileNetV2's rule)."""
    found = max(8, int(channels + 4) // 8 * 8)
    return found + 8 if found < 0.9 * channels else found
