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
from ...vision.hub.registry import register_model
from ._mobile import ConvNorm, InvertedResidual, rounded
from ._searched import SearchedClassifier

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


class OFAMobileNet(SearchedClassifier):
    """The supernet; a subnet is extracted from it.

    Args:
        classes: outputs.
        width: factor of all channels, rounded to multiples of 8; published are 1.0 and 1.2.

    Raises:
        ValueError: fewer than two classes, or a width that is not positive.
    """

    def __init__(self, classes: int = 1000, width: float = 1.2) -> None:
        super().__init__(classes)
        if width <= 0:
            raise ValueError(f"width {width} must be more than 0")
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

    def features(self, x: Tensor) -> Tensor:
        """What is averaged, (B, 960 · width, H/32, W/32), rounded up."""
        return self.final(self.stages(self.first(self.stem(x))))

    def forward_head(self, x: Tensor) -> Tensor:
        """From the average, (B, 960 · width), the logits."""
        return self.classifier(self.mix(x))


@register_model(task="classification")
def ofa_mobilenet(
    *, classes: int = 1000, width: float = 1.2, subnet: Mapping[str, Any] | None = None
) -> OFAMobileNet:
    """Once-for-all MobileNetV3: the supernet, or a subnet."""
    net = OFAMobileNet(classes, width)
    return net if subnet is None else extract(net, Architecture.from_json(subnet))
