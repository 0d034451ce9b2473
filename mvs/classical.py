"""Multi-view stereo without a network: what learned ones are measured against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from ..datasets.mvs.cameras import invert_intrinsics, relative_pose
from ..vision.windows import brightness, correlation, moments

__all__ = ["PlaneSweep", "SourceCorrelation", "better_half", "plane_sweep", "usual_windows"]

# Windows' shares of the shorter side: small ones see edges, large ones decide elsewhere, where
# neighbours need not agree.
_SHARES = 1 / 40, 1 / 20, 1 / 11
_SMOOTH_SHARES = 1 / 55, 1 / 30
_LEAST = 5  # pixels
# Of smooth depth, in thousandths of a correlation: what is less alike costs no more than _WORST, a
# step of one plane between neighbours costs _STEP (P1), a larger one _LEAP (P2) where both are
# equally bright and half of it where their brightness differs by _EDGE.
_WORST, _STEP, _LEAP, _EDGE = 500, 100, 2000, 0.05


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
        # Sources are sampled at pixels in units of half of the picture, from its middle.
        middle = [[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]]
        intrinsics = intrinsics.to(grey)
        sampled = grey.new_tensor(middle) @ intrinsics[1:]
        turned = sampled @ poses[:, :3, :3] @ invert_intrinsics(intrinsics[0])
        self.directions = turned @ pixels  # (S, 3, H W)
        self.shifts = sampled @ poses[:, :3, 3:]  # (S, 3, 1)

    def __call__(self, inverse: Tensor | float) -> Tensor:
        """Correlations (windows, S, H, W) at an inverse depth, (H, W) or one for all pixels.

        They are in [-1, 1]; a flat window counts as 0; where the source does not see the point it
        is -1.
        """
        size = self.reference.shape[-2:]
        inverse = inverse.flatten() if isinstance(inverse, Tensor) else inverse
        points = self.directions + inverse * self.shifts
        ahead = points[:, 2:]
        grid = points[:, :2] / ahead.clamp(min=1e-6)
        outside = (grid.abs().amax(1) > 1) | (ahead[:, 0] <= 0)
        grid = grid.mT.unflatten(1, size)
        warped = F.grid_sample(self.sources, grid, align_corners=False)
        alike = [correlation(self.reference, warped, *about)[:, 0] for about in self.moments]
        return torch.stack(alike).masked_fill_(outside.unflatten(1, size), -1)

    def score(self, inverse: Tensor | float) -> Tensor:
        """The windows' mean (H, W) in the better half of the sources, see `better_half`."""
        return better_half(self(inverse).mean(0))


def better_half(alike: Tensor) -> Tensor:
    """The mean (..., H, W) over half of the sources (..., S, H, W): some may not see a point."""
    best: list[Tensor] = []  # kept in order: several times as fast as `topk`
    for rest in alike.unbind(-3):
        for place, kept in enumerate(best):
            best[place], rest = torch.maximum(kept, rest), torch.minimum(kept, rest)
        if 2 * len(best) < alike.shape[-3]:
            best.append(rest)
    return torch.stack(best).mean(0)


def usual_windows(height: int, width: int, *, smooth: bool = False) -> list[int]:
    """Sides of the squares that images are compared by, the smallest first; small images repeat."""
    shares = _SMOOTH_SHARES if smooth else _SHARES
    return [max(_LEAST, 2 * round(share * min(height, width) / 2) + 1) for share in shares]


@torch.inference_mode()
def plane_sweep(
    images: Tensor,
    intrinsics: Tensor,
    extrinsics: Tensor,
    depth_range: tuple[float, float],
    planes: int = 96,
    windows: Sequence[int] | None = None,
    *,
    smooth: bool = False,
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
            None: about 1/40, 1/20 and 1/11 of the shorter side, of smooth depth 1/55 and 1/30, 5 px
            at least.
        smooth: let neighbours along rows and columns agree (semi-global matching, Hirschmüller,
            "Stereo Processing by Semiglobal Matching and Mutual Information", TPAMI 2008): much
            better where there is little texture. Takes 4 bytes of memory a pixel and plane.

    Returns:
        Depth (H, W) in the cameras' unit, and the score (H, W) in [-1, 1] of its plane; of smooth
        depth that of the depth itself.

    Raises:
        ValueError: fewer than two views or planes, no odd window, or a range that is none.
    """
    if not 0 < depth_range[0] < depth_range[1]:
        raise ValueError(f"depth range {depth_range[0]:g} to {depth_range[1]:g} is none")
    if windows is None:
        windows = sorted({*usual_windows(*images.shape[-2:], smooth=smooth)})
    odd = windows and all(window > 0 and window % 2 for window in windows)
    if len(images) < 2 or planes < 2 or not odd:
        raise ValueError(
            f"plane sweep over {len(images)} views, {planes} planes, windows {list(windows)}: want "
            "two views, two planes and odd windows at least"
        )
    near, far = 1 / depth_range[0], 1 / depth_range[1]
    alike = SourceCorrelation(images, intrinsics, extrinsics, windows)
    scores = map(alike.score, torch.linspace(far, near, planes).tolist())
    grey = alike.reference[0, 0]
    index, peak = _smoothest(scores, planes, grey) if smooth else _best(scores, grey)
    before, best, after = peak
    bend = 2 * best - before - after
    offset = torch.where(bend > 1e-6, (after - before) / (2 * bend.clamp(min=1e-6)), 0)
    offset = offset.clamp(-0.5, 0.5).masked_fill((index == 0) | (index == planes - 1), 0)
    inverse = far + (index + offset) * (near - far) / (planes - 1)
    return 1 / inverse, alike.score(inverse) if smooth else best


_Peak = tuple[Tensor, Tensor, Tensor]  # the scores before, at and after the best plane


def _best(scores: Iterable[Tensor], grey: Tensor) -> tuple[Tensor, _Peak]:
    """Each pixel's best plane; of all scores only its own and its neighbours' are kept."""
    best = last = before = after = torch.full_like(grey, -2)
    index = torch.full_like(grey, -2, dtype=torch.long)
    for plane, score in enumerate(scores):
        after = torch.where(index == plane - 1, score, after)
        better = score > best
        before, best = torch.where(better, last, before), torch.where(better, score, best)
        index.masked_fill_(better, plane)
        last = score
    return index, (before, best, after)


def _smoothest(scores: Iterable[Tensor], planes: int, grey: Tensor) -> tuple[Tensor, _Peak]:
    """Each pixel's plane that costs least along its row and its column, either way.

    Everything is counted in whole numbers of 16 bits: a sum stays below 4 (_WORST + _LEAP).
    """
    slices = torch.empty(planes, *grey.shape, dtype=torch.int16, device=grey.device)
    for cost, score in zip(slices, scores, strict=True):
        cost.copy_((1000 * (1 - score)).clamp_(max=_WORST).round_())
    costs = slices.permute(1, 2, 0).contiguous()
    del slices
    totals = torch.zeros_like(costs)
    for axis in (0, 1):
        leaps = _LEAP / (1 + grey.diff(dim=axis).abs() / _EDGE)
        _gather(totals, costs, leaps.clamp(min=_STEP).to(costs.dtype), axis)
    index = totals.argmin(-1)
    nearby = [(index + step).clamp(0, planes - 1)[..., None] for step in (-1, 0, 1)]
    before, best, after = (-totals.gather(-1, at)[..., 0].float() for at in nearby)
    return index, (before, best, after)


def _gather(totals: Tensor, costs: Tensor, leaps: Tensor, axis: int) -> None:
    """Add to totals (H, W, planes) what planes cost on a path along the axis, one way and back.

    Args:
        totals: changed in place.
        costs: (H, W, planes).
        leaps: what a step of several planes costs between a row (or column) and the next.
        axis: 0 for columns, 1 for rows.
    """
    lines, sums, between = costs.unbind(axis), totals.unbind(axis), leaps.unbind(axis)
    for order, gaps in ((range(len(lines)), between), (range(len(lines))[::-1], between[::-1])):
        path = lines[order[0]].clone()
        sums[order[0]].add_(path)
        for line, leap in zip(order[1:], gaps, strict=True):
            least = path.amin(-1, keepdim=True)
            step = path + _STEP
            path = torch.minimum(path, least + leap[:, None])
            path[:, 1:] = torch.minimum(path[:, 1:], step[:, :-1])
            path[:, :-1] = torch.minimum(path[:, :-1], step[:, 1:])
            path += lines[line] - least
            sums[line].add_(path)


class PlaneSweep(nn.Module):
    """`plane_sweep` where `vizoo.MVSPredictor` takes a network: ``MVSPredictor(PlaneSweep())``.

    Args:
        planes: see there.
        windows: see there.
        smooth: see there; here it is the default.
    """

    def __init__(
        self, planes: int = 96, windows: Sequence[int] | None = None, *, smooth: bool = True
    ) -> None:
        super().__init__()
        given = windows and list(windows)
        self.how: dict[str, Any] = {"planes": planes, "windows": given, "smooth": smooth}
        shares = _SMOOTH_SHARES if smooth else _SHARES
        self.architecture = {"name": "PlaneSweep", "shares": list(shares), **self.how}

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
