"""The once-for-all MobileNetV3: elastic kernels, expansions and depths in one set of weights.

Cai et al., "Once-for-All", ICLR 2020, arXiv 1908.09791; as NAS-LID (AAAI 2023, arXiv 2211.12759)
splits it, by the kernels of its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...nas import elastic
from ...nas.space import Architecture, Choice
from ...nas.supernet import extract
from ..hub.registry import register_model
from ._mobile import ConvNorm, InvertedResidual, rounded
from .backbones import check_images

__all__ = ["OFAMobileNet", "ofa_mobilenet"]

WIDTHS = (24, 40, 80, 112, 160)
STRIDES = (2, 2, 2, 1, 2)
SQUEEZED = (False, True, False, True, True)
DEPTHS, KERNELS, EXPANSIONS = (2, 3, 4), (3, 5, 7), (3, 4, 6)
_FIRST, _EXPANDED, _HEAD = 16, 960, 1280


class Block(nn.Module):
    """Expand, depthwise convolution, squeeze-excite where wanted, project.

    Args:
        in_channels: of the input.
        channels: of the output; the input is added where shapes agree.
        kernel: choice of the depthwise convolution's.
        expansion: choice of the ratio of inner channels to the input's.
        stride: of the depthwise convolution.
        activation: after expansion and depthwise convolution.
        squeezed: whether channels are gated.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel: Choice,
        expansion: Choice,
        stride: int,
        activation: type[nn.Module],
        squeezed: bool,
    ) -> None:
        super().__init__()
        inner = expansion.map(lambda ratio: rounded(in_channels * ratio))
        self.expand = nn.Sequential(
            elastic.Conv2d(in_channels, inner, 1, bias=False),
            elastic.BatchNorm2d(inner),
            activation(),
        )
        self.depthwise = nn.Sequential(
            elastic.Conv2d(
                inner,
                inner,
                kernel,
                stride,
                padding="half",
                groups=inner,
                bias=False,
                transform=True,
            ),
            elastic.BatchNorm2d(inner),
            activation(),
        )
        reduced = inner.map(lambda number: rounded(number // 4))
        self.squeeze = elastic.SqueezeExcite(inner, reduced) if squeezed else nn.Identity()
        self.project = nn.Sequential(
            elastic.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.squeeze(self.depthwise(self.expand(x))))
        return x + y if self.residual else y


class OFAMobileNet(nn.Module):
    """The supernet; a subnet is extracted from it.

    Args:
        classes: outputs.
        width: factor of all channels, rounded to multiples of 8; published are 1.0 and 1.2.

    Raises:
        ValueError: fewer than two classes, or a width that is not positive.
    """

    output_names = ("logits",)

    def __init__(self, classes: int = 1000, width: float = 1.2) -> None:
        super().__init__()
        if classes < 2 or width <= 0:
            raise ValueError(f"classes {classes} must be at least 2, and width {width} more than 0")
        channels = rounded(_FIRST * width)
        self.stem = ConvNorm(3, channels, 3, 2, activation=nn.Hardswish)
        self.first = InvertedResidual(channels, channels, 3, 1)
        stages = []
        for stage, (out, stride) in enumerate(zip(WIDTHS, STRIDES, strict=True)):
            out, blocks, name = rounded(out * width), [], f"stages.{stage}"
            activation = nn.ReLU if stage < 2 else nn.Hardswish
            for index in range(max(DEPTHS)):
                kernel = Choice(f"{name}.{index}.kernel", KERNELS)
                expansion = Choice(f"{name}.{index}.expand", EXPANSIONS)
                step = stride if index == 0 else 1
                same = (kernel, expansion, step, activation, SQUEEZED[stage])
                blocks.append(Block(channels, out, *same))
                channels = out
            stages.append(elastic.Sequential(*blocks, length=Choice(f"{name}.depth", DEPTHS)))
        self.stages = nn.Sequential(*stages)
        expanded = rounded(_EXPANDED * width)
        self.final = ConvNorm(channels, expanded, activation=nn.Hardswish)
        self.mix = nn.Sequential(
            nn.Linear(expanded, rounded(_HEAD * width), bias=False), nn.Hardswish()
        )
        self.classifier = nn.Linear(rounded(_HEAD * width), classes)

    def forward(self, image: Tensor) -> Tensor:
        """Scores of the classes.

        Args:
            image: (B, 3, H, W), RGB in [0, 1].

        Returns:
            Logits, (B, classes).

        Raises:
            ValueError: it is something of another shape.
        """
        return self.classifier(self.mix(self.forward_features(image).mean((2, 3))))

    def forward_features(self, image: Tensor) -> Tensor:
        """What is averaged, (B, 960 · width, H/32, W/32), rounded up."""
        check_images(image)
        return self.final(self.stages(self.first(self.stem((image - 0.5) / 0.25))))

    def get_classifier(self) -> nn.Linear:
        """The last layer; the name is timm's."""
        return self.classifier


@register_model(task="classification")
def ofa_mobilenet(
    *, classes: int = 1000, width: float = 1.2, subnet: Mapping[str, Any] | None = None
) -> OFAMobileNet:
    """Once-for-all MobileNetV3: the supernet, or a subnet."""
    net = OFAMobileNet(classes, width)
    return net if subnet is None else extract(net, Architecture.from_json(subnet))
