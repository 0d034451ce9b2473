"""A network guided by semi-global matching: of both, each pixel takes what is surer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..vision.hub.create import load_network
from ..vision.inference import optimize
from .classical import fill_holes, semi_global_matching

__all__ = ["FUSION", "Guided", "guidance"]

FUSION = "disparity_fusion"
"""The network that fuses by default."""
_NEARLY_ALL, _RESERVE, _MARGIN = 0.998, 1.1, 4  # of the range that is searched
_MOST = 512  # pixels


class Guided(nn.Module):
    """Fuses a network's disparity with that of semi-global matching over the range it finds.

    Args:
        net: called with two views, as any stereo network is.
        fusion: a `DisparityFusion`; the trained one that comes with the package by default.
        scored: whether `net` has a method `predict` that also gives its certainty; what it says
            itself by default.
    """

    output_names = ("disparity",)

    def __init__(
        self, net: nn.Module, fusion: nn.Module | None = None, scored: bool | None = None
    ) -> None:
        super().__init__()
        self.net = net
        self.fusion = load_network(FUSION, "fusion") if fusion is None else fusion
        self.scored = getattr(net, "scored", False) if scored is None else scored
        self.architecture = getattr(net, "architecture", {"name": type(net).__name__})

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        fast = copy.copy(self)
        fast._modules = {name: optimize(part, dtype) for name, part in self.named_children()}
        return fast

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Disparity (B, 1, H, W) of the left view.

        Args:
            left: (B, 3, H, W), RGB in [0, 1].
            right: the same shape, rectified to the left one.

        Raises:
            ValueError: the views differ in shape or are not RGB in [0, 1].
        """
        return self.predict(left, right)[0]

    def predict(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Disparity, and the network's own certainty, both (B, 1, H, W)."""
        maps = guidance(self.net, left, right, self.scored)
        return self.fusion(left, right, *maps), maps[1]


def guidance(
    net: Any, left: Tensor, right: Tensor, scored: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `DisparityFusion` fuses, each (B, 1, H, W): see its arguments.

    Args:
        net: a stereo network.
        left: (B, 3, H, W), RGB in [0, 1].
        right: the same shape.
        scored: whether its `predict` also gives its certainty.
    """
    if scored:
        disparity, certainty = (part.float() for part in net.predict(left, right))
    else:
        disparity = net(left, right)[:, :1].float()
        certainty = torch.zeros_like(disparity)
    matched, filled = [], []
    for first, second, seen in zip(left, right, disparity, strict=True):
        found = semi_global_matching(first, second, disparities=_range(seen), fill=False)
        matched.append(found)
        filled.append(fill_holes(found))
    maps = [torch.from_numpy(np.stack(each))[:, None].to(left.device) for each in (matched, filled)]
    return disparity, certainty, *maps


def _range(disparity: Tensor) -> int:
    """Candidates that reach a little beyond a disparity; a multiple of 16."""
    values = disparity.detach().flatten()
    place = max(1, round(_NEARLY_ALL * len(values)))
    largest = float(values.kthvalue(place).values)
    if not 0 <= largest < _MOST:
        largest = 0 if not largest > 0 else _MOST
    return max(16, -(-min(int(_RESERVE * largest) + _MARGIN, _MOST) // 16) * 16)
