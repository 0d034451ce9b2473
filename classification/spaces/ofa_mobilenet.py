"""The once-for-all MobileNetV3: elastic kernels, expansions and depths in one set of weights.

Cai et al., "Once-for-All", ICLR 2020, arXiv 1908.09791; as NAS-LID (AAAI 2023, arXiv 2211.12759)
splits it, by the kernels of its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...nas import elastic
from ...nas.space import Choice
from ...nas.supernet import subnet_of
from ...vision.hub.registry import register_model
from ...vision.layers import ConvNorm
from ._searched import SearchedClassifier, inverted_residual, rounded

__all__ = ["OFAMobileNet", "ofa_mobilenet"]

_WIDTHS = (24, 40, 80, 112, 160)
_STRIDES = (2, 2, 2, 1, 2)
_SQUEEZED = (False, True, False, True, True)
_DEPTHS, _KERNELS, _EXPANSIONS = (2, 3, 4), (3, 5, 7), (3, 4, 6)
_FIRST, _EXPANDED, _HEAD = 16, 960, 1280


class OFAMobileNet(SearchedClassifier):
    """The supernet; a subnet is extracted from it.

    Args:
        classes: outputs.
        width: factor of all channels, rounded to multiples of 8; published are 1.0 and 1.2.
        stem_stride: 1 for images of 32 pixels or so.

    Raises:
        ValueError: fewer than two classes, or a width or stride that is not positive.
    """

    def __init__(self, classes: int = 1000, width: float = 1.2, stem_stride: int = 2) -> None:
        super().__init__(classes)
        if width <= 0 or stem_stride < 1:
            raise ValueError(f"width {width} and stem_stride {stem_stride} must be more than 0")
        channels = rounded(_FIRST * width)
        self.stem = ConvNorm(3, channels, 3, stem_stride, activation=nn.Hardswish)
        self.first = inverted_residual(channels, channels, 3, 1)
        stages = []
        for stage, (out, stride) in enumerate(zip(_WIDTHS, _STRIDES, strict=True)):
            out, blocks, name = rounded(out * width), [], f"stages.{stage}"
            for index in range(max(_DEPTHS)):
                kernel = Choice(f"{name}.{index}.kernel", _KERNELS)
                expansion = Choice(f"{name}.{index}.expand", _EXPANSIONS)
                block = inverted_residual(
                    channels,
                    out,
                    kernel,
                    expansion,
                    stride if index == 0 else 1,
                    activation=nn.ReLU if stage < 2 else nn.Hardswish,
                    squeezed=_SQUEEZED[stage],
                )
                blocks.append(block)
                channels = out
            stages.append(elastic.Sequential(*blocks, length=Choice(f"{name}.depth", _DEPTHS)))
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
    *,
    classes: int = 1000,
    width: float = 1.2,
    stem_stride: int = 2,
    subnet: Mapping[str, Any] | None = None,
) -> OFAMobileNet:
    """Once-for-all MobileNetV3: the supernet, or a subnet."""
    return subnet_of(OFAMobileNet(classes, width, stem_stride), subnet)
