"""A network guided by a plane sweep: the sweep finds what has texture, the network the rest.

What each finds is weighed pixel by pixel by a second, small network, which also says how sure it
is.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ..nas.supernet import architecture_of
from ..vision.hub.create import load_network
from ..vision.inference import optimize
from .classical import PlaneSweep
from .depth_fusion import clues
from .dispmvs import start_from

__all__ = ["Guided"]

_FUSION = "depth_fusion"


class Guided(nn.Module):
    """Starts a network from the depth of a plane sweep, and fuses what both find.

    Args:
        net: called as `DispMVS` is, with a depth to start from.
        fusion: a `DepthFusion`; the trained one that comes with the package by default.

    Raises:
        ValueError: a network that takes no depth to start from.
    """

    def __init__(self, net: nn.Module, fusion: nn.Module | None = None) -> None:
        super().__init__()
        if "start" not in getattr(net, "input_names", ()):
            raise ValueError(f"{type(net).__name__} takes no depth to start from; DispMVS does")
        self.net, self.sweep = net, PlaneSweep()
        self.fusion = load_network(_FUSION, "mvs-fusion") if fusion is None else fusion
        known = {"name": type(net).__name__, **architecture_of(net)}
        self.architecture = {**self.sweep.architecture, "name": "Guided", "net": known}

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        fast = copy.copy(self)
        fast._modules = {name: optimize(part, dtype) for name, part in self.named_children()}
        return fast

    def forward(
        self,
        images: Tensor,
        intrinsics: Tensor,
        extrinsics: Tensor,
        depth_range: Tensor,
        *,
        generator: Generator | None = None,
    ) -> Tensor:
        """Depth (B, 1, H, W) of a batch; arguments as of `DispMVS`. Nothing in it is random."""
        return self.predict(images, intrinsics, extrinsics, depth_range)[0]

    def predict(
        self, images: Tensor, intrinsics: Tensor, extrinsics: Tensor, depth_range: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Depth, and the chance that it is within 5 % of the truth, both (B, 1, H, W)."""
        fusion: Any = self.fusion
        return fusion.predict(*self.guidance(images, intrinsics, extrinsics, depth_range))

    def guidance(
        self, images: Tensor, intrinsics: Tensor, extrinsics: Tensor, depth_range: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What is fused: the depths (B, 2, H, W) of sweep and network, and their `clues`."""
        views = images, intrinsics, extrinsics
        swept = self.sweep(*views, depth_range)
        claims = torch.cat((swept, self.net(*views, depth_range, start_from(swept)).float()), 1)
        told = [clues(*sample) for sample in zip(*views, claims, strict=True)]
        return claims, torch.stack(told)
