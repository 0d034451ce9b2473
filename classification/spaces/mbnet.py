"""MBNet: a small space of MobileNet-like networks for 32x32 images; all accuracies are known.

The 6,561 networks of hyperbox (`nasbench_mbnet`): eight blocks, each a skip or one of two inverted
residuals. Accuracies are read by `vizoo.nas.tabular.mbnet`, whose search space is this network's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...nas.space import Choice
from ...nas.tabular import BLOCK_OPERATIONS
from ...vision.hub.registry import register_model
from ...vision.layers import ConvNorm
from ._searched import SearchedClassifier, inverted_residual, operations, searched_operation

__all__ = ["MBNet", "mbnet"]

_STEM, _HEAD = 32, 1280
_WIDTHS, _BLOCKS = (64, 128, 256), (2, 3, 3)


class MBNet(SearchedClassifier):
    """The supernet, or one network.

    Args:
        classes: outputs.
        subnet: of the one network; None for the supernet.

    Raises:
        ValueError: fewer than two classes, or no subnet of this space.
    """

    def __init__(self, classes: int = 10, subnet: Mapping[str, Any] | None = None) -> None:
        super().__init__(classes)
        known = [Choice(f"blocks.{index}", BLOCK_OPERATIONS) for index in range(sum(_BLOCKS))]
        choices = list(operations(known, subnet).values())
        self.stem = ConvNorm(3, _STEM, 3, activation=nn.ReLU)
        blocks: list[nn.Module] = []
        channels = _STEM
        for width, count in zip(_WIDTHS, _BLOCKS, strict=True):
            for stride in (2, *[1] * (count - 1)):
                choice = choices[len(blocks)]
                blocks.append(searched_operation(choice, _operation, channels, width, stride))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNorm(channels, _HEAD, activation=nn.ReLU)
        self.classifier = nn.Linear(_HEAD, classes)

    def features(self, x: Tensor) -> Tensor:
        """What is averaged for the classifier, (B, 1280, H/8, W/8), rounded up."""
        return self.head(self.blocks(self.stem(x)))


def _operation(name: str, in_channels: int, channels: int, stride: int) -> nn.Module:
    if name == "skip":
        same = stride == 1 and in_channels == channels
        return nn.Identity() if same else ConvNorm(in_channels, channels, 1, stride)
    kernel, ratio = int(name[2]), int(name[-1])
    return inverted_residual(in_channels, channels, kernel, ratio, stride)


@register_model(task="classification")
def mbnet(*, classes: int = 10, subnet: Mapping[str, Any] | None = None) -> MBNet:
    """MBNet: the supernet of 6,561 networks, or one of them."""
    return MBNet(classes, subnet)
