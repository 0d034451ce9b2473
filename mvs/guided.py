"""A network guided by a plane sweep: the sweep finds what has texture, the network the rest."""

from __future__ import annotations

import copy

import torch
from torch import Generator, Tensor, nn

from ..nas.supernet import architecture_of
from ..vision.inference import optimize
from .classical import PlaneSweep
from .confidence import depth_confidence
from .dispmvs import start_from

__all__ = ["Guided"]


class Guided(nn.Module):
    """Starts a network from the depth of a plane sweep; of both each pixel takes the surer one.

    Args:
        net: called as `DispMVS` is, with a depth to start from.

    Raises:
        ValueError: a network that takes no depth to start from.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        if "start" not in getattr(net, "input_names", ()):
            raise ValueError(f"{type(net).__name__} takes no depth to start from; DispMVS does")
        self.net, self.sweep = net, PlaneSweep()
        known = {"name": type(net).__name__, **architecture_of(net)}
        self.architecture = {**self.sweep.architecture, "name": "Guided", "net": known}

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        fast = copy.copy(self)
        fast._modules = {**self._modules, "net": optimize(self.net, dtype)}
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
        views = images, intrinsics, extrinsics
        swept = self.sweep(*views, depth_range)
        found = self.net(*views, depth_range, start_from(swept)).float()
        kept = []
        for index, (first, second) in enumerate(zip(swept[:, 0], found[:, 0], strict=True)):
            cameras = images[index], intrinsics[index], extrinsics[index]
            surer = depth_confidence(*cameras, first) > depth_confidence(*cameras, second)
            kept.append(torch.where(surer, first, second))
        return torch.stack(kept)[:, None]
