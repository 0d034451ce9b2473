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
_TILE = 32  # pixels


@torch.no_grad()
def agreed(
    match: Callable[[Tensor, Tensor, float], Tensor],
    left: Tensor,
    right: Tensor,
    sizes: Sequence[float] = SIZES,
    tolerance: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Disparity that several sizes of a pair, and both of its views, give.

    Args:
        match: called as ``match(left, right, scale)``; finds the disparity (H, W) of the left view
            at a share of the pair's size, in pixels of its own size.
        left: (3, H, W) in [0, 1].
        right: the same shape.
        sizes: the shares, largest first.
        tolerance: pixels from the disparity within which all have to be.

    Returns:
        The mean of the two largest sizes, which is mostly better than either, and where all sizes
        and the right view's at the match are within the tolerance and the match lies in the
        picture, both (H, W).
    """
    own = torch.stack([match(left, right, size) for size in sizes])
    mirrored = right.flip(-1), left.flip(-1)  # of a pair whose left view is the right one
    others = torch.stack([match(*mirrored, size).flip(-1) for size in sizes])
    disparity = own[:2].mean(dim=0)
    there = warp_by_disparity(others[None], disparity[None, None])[0]
    apart = (torch.cat((own, there)) - disparity).abs().amax(0)
    inside = torch.arange(disparity.shape[1]) >= disparity
    return disparity, inside & (apart <= tolerance)


def disagreement(
    match: Callable[[Tensor, Tensor, float], Tensor],
    left: Tensor,
    right: Tensor,
    judged: Tensor,
    sizes: Sequence[float] = SIZES,
    most: float = 3.0,
) -> Tensor:
    """What goes with the error of a disparity where no truth is known, (H, W) in pixels.

    It is the distance from what another matcher found, and where that is not sure how far the
    smaller sizes lie from the largest, added up. Windows compared at the match do not tell which
    of two similar networks is better (measured in docs/trainings.md).

    Args:
        match: as for `agreed`.
        left: (3, H, W) in [0, 1].
        right: the same shape.
        judged: (H, W), the other matcher's disparity, 0 where it is not sure.
        sizes: the shares, largest first.
        most: pixels that any distance counts at most.
    """
    own, *others = (match(left, right, size) for size in sizes)
    apart = torch.stack([(other - own).abs().clamp(max=most) for other in others]).sum(0)
    return torch.where(judged > 0, (judged - own).abs().clamp(max=most), apart)


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
