"""Multi-view stereo without a network: what learned ones are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from ..datasets.mvs.cameras import invert_intrinsics, relative_pose
from ..vision.windows import brightness, correlation, moments

__all__ = ["PlaneSweep", "SourceCorrelation", "better_half", "plane_sweep", "usual_windows"]

# Windows' shares of the shorter side: small ones see edges, large ones decide elsewhere.
_SHARES = 1 / 40, 1 / 20, 1 / 11
_LEAST = 5  # pixels


class SourceCorrelation:
    """How alike the first view and the others look where its pixels lie at given depths.

    Normalised cross-correlation of windows around each pixel, which a change of exposure leaves as
    it is.

    Args:
        images: (V, 3, H, W), RGB in [0, 1], V at least 2.
        intrinsics: (V, 3, 3), pixels.
        extrinsics: (V, 4, 4), world to camera.
        windows: sides of the squares that are compared, odd, pixels.
    """

    def __init__(
        self, images: Tensor, intrinsics: Tensor, extrinsics: Tensor, windows: Sequence[int]
    ) -> None:
        grey = brightness(images.float())
        grey = grey - grey.mean()  # the difference of two large squares would lose the small
        self.reference, self.sources = grey[:1], grey[1:]
        self.moments = [(window, moments(self.reference, window)) for window in windows]
        height, width = images.shape[-2:]
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        pixels = torch.stack((x, y, torch.ones_like(x))).flatten(1).to(grey)
        poses = relative_pose(extrinsics[:1], extrinsics[1:]).to(grey)
        intrinsics = intrinsics.to(grey)
        turned = intrinsics[1:] @ poses[:, :3, :3] @ invert_intrinsics(intrinsics[0])
        self.directions = turned @ pixels  # (S, 3, H W)
        self.shifts = intrinsics[1:] @ poses[:, :3, 3:]  # (S, 3, 1)

    def __call__(self, inverse: Tensor | float) -> Tensor:
        """Correlations (windows, S, H, W) at an inverse depth, (H, W) or one for all pixels.

        They are in [-1, 1]; a flat window counts as 0; where the source does not see the point it
        is -1.
        """
        height, width = self.reference.shape[-2:]
        inverse = inverse.flatten() if isinstance(inverse, Tensor) else inverse
        points = self.directions + inverse * self.shifts
        ahead = points[:, 2:]
        at = points[:, :2] / ahead.clamp(min=1e-6)
        grid = (2 * at + 1) / at.new_tensor([width, height]).view(2, 1) - 1
        grid = grid.mT.reshape(-1, height, width, 2)
        warped = F.grid_sample(self.sources, grid, align_corners=False)
        outside = (grid.abs().amax(-1) > 1) | (ahead.view(-1, height, width) <= 0)
        alike = [correlation(self.reference, warped, *about) for about in self.moments]
        return torch.stack(alike)[:, :, 0].masked_fill(outside, -1)

    def score(self, inverse: Tensor | float) -> Tensor:
        """The windows' mean (H, W) in the better half of the sources, see `better_half`."""
        return better_half(self(inverse).mean(0))


def better_half(alike: Tensor) -> Tensor:
    """The mean (..., H, W) over half of the sources (..., S, H, W): some may not see a point."""
    return alike.topk((alike.shape[-3] + 1) // 2, dim=-3).values.mean(-3)


def usual_windows(height: int, width: int) -> list[int]:
    """Sides of the squares that images are compared by, the smallest first; small images repeat."""
    side = min(height, width)
    return [max(_LEAST, 2 * round(share * side / 2) + 1) for share in _SHARES]


@torch.inference_mode()
def plane_sweep(
    images: Tensor,
    intrinsics: Tensor,
    extrinsics: Tensor,
    depth_range: tuple[float, float],
    planes: int = 96,
    windows: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Depth of the first view by normalised cross-correlation on fronto-parallel planes.

    The planes of Collins ("A Space-Sweep Approach to True Multi-Image Matching", CVPR 1996),
    evenly spaced in inverse depth. A pixel's score is the mean of the better half of its sources',
    so that it may be hidden in some; the best plane is refined by a parabola.

    Args:
        images: (V, 3, H, W), RGB in [0, 1], V at least 2.
        intrinsics: (V, 3, 3), pixels.
        extrinsics: (V, 4, 4), world to camera.
        depth_range: least and greatest depth.
        planes: how many, at least 2.
        windows: sides of the squares that are compared, odd, pixels; of several the mean counts.
            None: about 1/40, 1/20 and 1/11 of the shorter side, 5 px at least.

    Returns:
        Depth (H, W) in the cameras' unit, and the score (H, W) in [-1, 1] of its plane.

    Raises:
        ValueError: fewer than two views or planes, no odd window, or a range that is none.
    """
    if not 0 < depth_range[0] < depth_range[1]:
        raise ValueError(f"depth range {depth_range[0]:g} to {depth_range[1]:g} is none")
    if windows is None:
        windows = sorted({*usual_windows(*images.shape[-2:])})
    odd = windows and all(window > 0 and window % 2 for window in windows)
    if len(images) < 2 or planes < 2 or not odd:
        raise ValueError(
            f"plane sweep over {len(images)} views, {planes} planes, windows {list(windows)}: want "
            "two views, two planes and odd windows at least"
        )
    near, far = 1 / depth_range[0], 1 / depth_range[1]
    alike = SourceCorrelation(images, intrinsics, extrinsics, windows)
    # Of all planes' scores only the best one's and its neighbours' are kept.
    best = images.new_full(images.shape[-2:], -2.0)
    last, before, after = best, best.clone(), best.clone()
    index = torch.full_like(best, -2, dtype=torch.long)
    for plane, inverse in enumerate(torch.linspace(far, near, planes).tolist()):
        score = alike.score(inverse)
        after = torch.where(index == plane - 1, score, after)
        better = score > best
        before, best = torch.where(better, last, before), torch.where(better, score, best)
        index.masked_fill_(better, plane)
        last = score
    bend = 2 * best - before - after
    offset = torch.where(bend > 1e-6, (after - before) / (2 * bend.clamp(min=1e-6)), 0)
    offset = offset.clamp(-0.5, 0.5).masked_fill((index == 0) | (index == planes - 1), 0)
    inverse = far + (index + offset) * (near - far) / (planes - 1)
    return 1 / inverse, best


class PlaneSweep(nn.Module):
    """`plane_sweep` where `vizoo.MVSPredictor` takes a network: ``MVSPredictor(PlaneSweep())``.

    Args:
        planes: see there.
        windows: see there.
    """

    def __init__(self, planes: int = 96, windows: Sequence[int] | None = None) -> None:
        super().__init__()
        self.how: dict[str, Any] = {"planes": planes, "windows": windows and list(windows)}
        self.architecture = {"name": "PlaneSweep", "shares": list(_SHARES), **self.how}

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """Itself, in float32: there are no weights to prepare."""
        return self

    def forward(
        self,
        images: Tensor,
        intrinsics: Tensor,
        extrinsics: Tensor,
        depth_range: Tensor,
        *,
        generator: Generator | None = None,
    ) -> Tensor:
        """Depth (B, 1, H, W) of a batch; arguments as of `DispMVS`."""
        batch = zip(images, intrinsics, extrinsics, depth_range.tolist(), strict=True)
        return torch.stack([plane_sweep(*views, **self.how)[0] for views in batch])[:, None]
