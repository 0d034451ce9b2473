"""Where matchers agree, with themselves and each other: what stands in for true disparities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ..vision.ops import warp_by_disparity

__all__ = ["SIZES", "agreed", "disagreement", "gained"]

SIZES = (1.0, 0.75, 0.5)
"""Sizes at which a pair is matched, as shares of its own."""
_TOLERANCE = 1.0  # pixels from the disparity within which all that agree have to be
_MOST = 3.0  # pixels that any distance counts at most
_TILE = 32  # pixels


@torch.no_grad()
def agreed(
    match: Callable[[Tensor, Tensor, float], Tensor], left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Disparity that several sizes of a pair, and both of its views, give.

    Args:
        match: called as ``match(left, right, scale)``; finds the disparity (H, W) of the left view
            at a share of the pair's size, in pixels of its own size.
        left: (3, H, W) in [0, 1].
        right: the same shape.

    Returns:
        The mean of the two largest sizes, which is mostly better than either, and where all sizes
        and the right view's at the match are within a pixel of it and the match lies in the
        picture, both (H, W).
    """
    own = torch.stack([match(left, right, size) for size in SIZES])
    mirrored = right.flip(-1), left.flip(-1)  # of a pair whose left view is the right one
    others = torch.stack([match(*mirrored, size).flip(-1) for size in SIZES])
    disparity = own[:2].mean(dim=0)
    there = warp_by_disparity(others[None], disparity[None, None])[0]
    apart = (torch.cat((own, there)) - disparity).abs().amax(0)
    inside = torch.arange(disparity.shape[1]) >= disparity
    return disparity, inside & (apart <= _TOLERANCE)


def disagreement(
    match: Callable[[Tensor, Tensor, float], Tensor], left: Tensor, right: Tensor, judged: Tensor
) -> Tensor:
    """What goes with the error of a disparity where no truth is known, (H, W) in pixels.

    It is the distance from what another matcher found, and where that is not sure how far the
    smaller sizes lie from the largest, added up; each counts 3 pixels at most. Windows compared at
    the match do not tell which of two similar networks is better (measured in docs/trainings.md).

    Args:
        match: as for `agreed`.
        left: (3, H, W) in [0, 1].
        right: the same shape.
        judged: (H, W), the other matcher's disparity, 0 where it is not sure.
    """
    own, *others = (match(left, right, size) for size in SIZES)
    apart = torch.stack([(other - own).abs().clamp(max=_MOST) for other in others]).sum(0)
    return torch.where(judged > 0, (judged - own).abs().clamp(max=_MOST), apart)


def gained(before: Sequence[Tensor], after: Sequence[Tensor]) -> tuple[float, float]:
    """By how much maps (H, W) are smaller than before, and the standard error of that.

    Both are means over pairs of maps, whatever their sizes; tiles of a map are taken for
    independent of each other.
    """
    drops = [
        avg_pool2d((old - new)[None], _TILE, ceil_mode=True).flatten()
        for old, new in zip(before, after, strict=True)
    ]
    error = math.sqrt(sum(float(drop.var()) / len(drop) for drop in drops)) / len(drops)
    return mean(float(drop.mean()) for drop in drops), error
