"""Where a network agrees with itself: what may be trusted without true disparities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..vision.ops import warp_by_disparity
from ..vision.windows import brightness, correlation

__all__ = ["SIZES", "agreed", "alike"]

SIZES = (1.0, 0.75, 0.5)
"""Sizes at which a pair is matched, as shares of its own."""
# Least correlation of windows; pixels to the places that must be worse, and by how much.
_ALIKE, _BESIDE, _MARGIN = 0.8, 2, 0.01


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


def alike(left: Tensor, right: Tensor, disparity: Tensor, window: int = 7) -> Tensor:
    """Where the surroundings of a pixel look like those of its match, (H, W) bool.

    They are compared by normalised correlation, which brightness does not change, and have to be
    more alike than two pixels beside the match: so smooth places, where any disparity would do,
    seldom count, and no disparity that does not follow from the pictures does well.

    Args:
        left: (3, H, W) in [0, 1].
        right: the same shape.
        disparity: (H, W), pixels.
        window: side of the surroundings, pixels; odd.
    """
    grey = brightness(torch.stack((left, right)))
    grey = grey - grey.mean()
    shifts = torch.tensor([0.0, -_BESIDE, _BESIDE])[:, None, None, None]
    there = warp_by_disparity(grey[1:].expand(3, -1, -1, -1), disparity + shifts)
    here = grey[:1]
    at, *beside = correlation(here, there, window)[:, 0]
    return (at > _ALIKE) & (at > torch.maximum(*beside) + _MARGIN)
