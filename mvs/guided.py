"""A network guided by a plane sweep: the sweep finds what has texture, the network the rest.

Poses are first made to agree with the images (`refine_poses`), and the depth belongs to those. What
each finds is weighed pixel by pixel by a second, small network, which also says how sure it is.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from ..datasets.mvs.cameras import resize_intrinsics
from ..nas.supernet import architecture_of
from ..vision.hub.create import load_network
from ..vision.inference import optimize
from ..vision.layers import compressed
from ..vision.windows import box_mean, brightness, moments
from .classical import PlaneSweep, SourceCorrelation, better_half, usual_windows
from .dispmvs import start_from
from .poses import refine_poses

__all__ = ["Guided", "clues", "rough_depth"]

_FUSION = "depth_fusion"
_FINE, _COARSE = 0.02, 0.2  # relative depths that clues tell apart
_LEAST = 32  # pixels of a side, below which half of it shows too little
_FLAT = 0.02  # deviation of brightness below which there is little to see


class Guided(nn.Module):
    """Refines poses, starts a network from the depth of a plane sweep, and fuses what both find.

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
        given = images, intrinsics, extrinsics, depth_range
        extrinsics, swept = rough_depth(self.sweep, *given)
        views = images, intrinsics, extrinsics
        claims = torch.cat((swept, self.net(*views, depth_range, start_from(swept)).float()), 1)
        told = [clues(*sample) for sample in zip(*views, claims, strict=True)]
        return claims, torch.stack(told)


@torch.no_grad()
def rough_depth(
    sweep: PlaneSweep, images: Tensor, intrinsics: Tensor, extrinsics: Tensor, depth_range: Tensor
) -> tuple[Tensor, Tensor]:
    """What a network is guided by: refined poses, and the depth of a sweep with these.

    Args:
        sweep: also finds, at half of the size, what poses are refined by.
        images: (B, V, 3, H, W), RGB in [0, 1], V at least 2.
        intrinsics: (B, V, 3, 3), pixels.
        extrinsics: (B, V, 4, 4), world to camera.
        depth_range: (B, 2), least and greatest depth.

    Returns:
        Extrinsics (B, V, 4, 4), as given of images below 64 pixels; the depth (B, 1, H, W).
    """
    if min(images.shape[-2:]) >= 2 * _LEAST:
        small = F.avg_pool2d(images.flatten(0, 1).float(), 2).unflatten(0, images.shape[:2])
        halved = resize_intrinsics(intrinsics, 0.5, 0.5)
        swept = sweep(small, halved, extrinsics, depth_range)[:, 0]
        batch = zip(images, intrinsics, extrinsics, swept, strict=True)
        extrinsics = torch.stack([refine_poses(*sample) for sample in batch])
    return extrinsics, sweep(images, intrinsics, extrinsics, depth_range)


def clues(images: Tensor, intrinsics: Tensor, extrinsics: Tensor, claims: Tensor) -> Tensor:
    """What tells which of two depths is right, for one view.

    Args:
        images: (V, 3, H, W), RGB in [0, 1], the depths' view first, V at least 2.
        intrinsics: (V, 3, 3), pixels.
        extrinsics: (V, 4, 4), world to camera.
        claims: (2, H, W), depths, more than 0.

    Returns:
        (18, H, W): of either depth how alike the views are, in squares of three sizes, its
        roughness in the smallest and the largest, and by how much it lies behind what is around;
        by how much the second lies behind the first, fine and coarse; the first view's brightness
        against what is around, and its contrast in two sizes; the share of a source among all.
    """
    windows = usual_windows(*images.shape[-2:])
    alike = SourceCorrelation(images, intrinsics, extrinsics, windows)
    logarithms = claims.log()[:, None]
    told = []
    for claim, logarithm in zip(claims, logarithms, strict=True):
        told.append(better_half(alike(1 / claim)))
        centred = (logarithm - logarithm.mean())[None]
        for window in (windows[0], windows[-1]):
            told.append(compressed(moments(centred, window)[1].sqrt()[0] / _FINE))
        told.append(compressed((centred - box_mean(centred, windows[-1]))[0] / _FINE))
    told += [compressed((logarithms[1] - logarithms[0]) / scale) for scale in (_FINE, _COARSE)]
    grey = brightness(images[:1].float())
    grey = grey - grey.mean()
    (_, fine), (mean, coarse) = (moments(grey, window) for window in (windows[0], windows[-1]))
    told.append(((grey - mean) / (coarse.sqrt() + _FLAT))[0])
    told += [compressed(variance.sqrt()[0] / _FLAT) for variance in (fine, coarse)]
    told.append(torch.full_like(logarithms[0], 1 / (len(images) - 1)))
    return torch.cat(told)
