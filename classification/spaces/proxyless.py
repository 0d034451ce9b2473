"""ProxylessNAS's space: a MobileNet whose 21 blocks are searched.

Cai et al., "ProxylessNAS", ICLR 2019, arXiv 1812.00332; as NAS-LID (AAAI 2023, arXiv 2211.12759)
splits it. A block is an inverted residual with kernel 3, 5 or 7 and expansion 3 or 6; where shapes
agree it may be skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...nas.space import Choice
from ...vision.hub.registry import register_model
from ...vision.layers import ConvNorm
from ._searched import (
    SearchedClassifier,
    inverted_residual,
    operations,
    rounded,
    searched_operation,
)

__all__ = ["Proxyless", "proxyless"]

_WIDTHS = (24, 40, 80, 96, 192, 320)
_CELLS = (4, 4, 4, 4, 4, 1)
_STRIDES = (2, 2, 2, 1, 2, 1)
_OPERATIONS = tuple(f"mb{kernel}x{kernel}e{ratio}" for ratio in (3, 6) for kernel in (3, 5, 7))
_STEM, _FIRST, _HEAD = 32, 16, 1280
_SAME: dict[str, Any] = {"activation": nn.ReLU6, "eps": 1e-3}  # in all blocks


class Proxyless(SearchedClassifier):
    """The supernet, or one network.

    Args:
        classes: outputs.
        width: factor of all channels but the last 1,280, rounded to multiples of 8.
        subnet: of the one network; None for the supernet.

    Raises:
        ValueError: fewer than two classes, a width that is not positive, or no such subnet.
    """

    def __init__(
        self, classes: int = 1000, width: float = 1.0, subnet: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(classes)
        if width <= 0:
            raise ValueError(f"width {width} must be more than 0")
        choices = operations(_choices(), subnet)
        stem, channels = rounded(_STEM * width), rounded(_FIRST * width)
        self.stem = ConvNorm(3, stem, 3, 2, **_SAME)
        self.first = inverted_residual(stem, channels, 3, 1, **_SAME)
        stages = []
        for stage, (out, count, stride) in enumerate(zip(_WIDTHS, _CELLS, _STRIDES, strict=True)):
            out, blocks = rounded(out * width), []
            for index in range(count):
                choice, step = choices[_name(stage, index)], stride if index == 0 else 1
                blocks.append(searched_operation(choice, _operation, channels, out, step))
                channels = out
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        last = rounded(_HEAD * max(1.0, width))
        self.head = ConvNorm(channels, last, **_SAME)
        self.classifier = nn.Linear(last, classes)

    def features(self, x: Tensor) -> Tensor:
        """What is averaged for the classifier, (B, 1280 and more, H/32, W/32), rounded up."""
        return self.head(self.stages(self.first(self.stem(x))))


def _operation(name: str, in_channels: int, channels: int, stride: int) -> nn.Module:
    if name == "skip":
        return nn.Identity()
    kernel, ratio = int(name[2]), int(name[-1])
    return inverted_residual(in_channels, channels, kernel, ratio, stride, **_SAME)


def _name(stage: int, index: int) -> str:
    return f"stages.{stage}.{index}"


def _choices() -> list[Choice]:
    """The first block of a stage changes the shape, so that it cannot be skipped."""
    return [
        Choice(_name(stage, index), (*(("skip",) if index else ()), *_OPERATIONS))
        for stage, count in enumerate(_CELLS)
        for index in range(count)
    ]


@register_model(task="classification")
def proxyless(
    *, classes: int = 1000, width: float = 1.0, subnet: Mapping[str, Any] | None = None
) -> Proxyless:
    """ProxylessNAS: the supernet, or a subnet; the published networks have width 1.4."""
    return Proxyless(classes, width, subnet)
