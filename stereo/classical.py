"""Stereo without a network: what learned ones are measured against."""

from __future__ import annotations

import cv2
import numpy as np
from torch import Tensor

from ..vision.io.images import to_bytes

__all__ = ["block_matching", "fill_holes", "semi_global_matching"]

_STRIPS = 16  # rows below which the strips of 3WAY would be smaller than what they share


def semi_global_matching(
    left: Tensor,
    right: Tensor,
    mode: int = cv2.STEREO_SGBM_MODE_SGBM_3WAY,
    disparities: int = 128,
    fill: bool = True,
    block: int = 5,
    penalty: int = 8,
) -> np.ndarray:
    """Disparity of OpenCV's StereoSGBM, (H, W) float32.

    Args:
        left: (3, H, W) tensor in [0, 1].
        right: the same shape.
        mode: one of OpenCV's ``STEREO_SGBM_MODE_…``; pictures of less than 16 rows take ``SGBM``
            for ``3WAY``.
        disparities: that are looked through, from 0; a multiple of 16.
        fill: whether holes take the row's smaller neighbour; else, and in rows in which nothing was
            found, they are 0.
        block: side of the squares that are compared, odd, pixels.
        penalty: what a step of one disparity between neighbours costs, in grey values for each
            channel and pixel of a square; a larger step costs four times that.
    """
    if mode == cv2.STEREO_SGBM_MODE_SGBM_3WAY and left.shape[1] < _STRIPS:
        mode = cv2.STEREO_SGBM_MODE_SGBM
    smooth = penalty * 3 * block**2
    matcher = cv2.StereoSGBM.create(
        minDisparity=0,
        numDisparities=disparities,
        blockSize=block,
        P1=smooth,
        P2=4 * smooth,
        disp12MaxDiff=1,
        uniquenessRatio=5,
        speckleWindowSize=100,
        speckleRange=2,
        mode=mode,
    )
    return _matched(matcher, [to_bytes(view) for view in (left, right)], disparities, fill)


def block_matching(
    left: Tensor, right: Tensor, disparities: int = 128, fill: bool = True
) -> np.ndarray:
    """Disparity of OpenCV's StereoBM with blocks of 15; see `semi_global_matching`."""
    matcher = cv2.StereoBM.create(numDisparities=disparities, blockSize=15)
    views = [cv2.cvtColor(to_bytes(view), cv2.COLOR_RGB2GRAY) for view in (left, right)]
    return _matched(matcher, views, disparities, fill)


def _matched(
    matcher: cv2.StereoMatcher, views: list[np.ndarray], disparities: int, fill: bool
) -> np.ndarray:
    # A margin on the left, so that the first columns have somewhere to match; 3 are OpenCV's least.
    width = views[0].shape[1]
    margin = (0, 0, disparities, max(0, 3 - width), cv2.BORDER_REPLICATE)
    views = [cv2.copyMakeBorder(view, *margin) for view in views]
    disparity = matcher.compute(*views)[:, disparities : disparities + width]
    disparity = (disparity.astype(np.float32) / 16).clip(min=0)
    return fill_holes(disparity) if fill else disparity


def fill_holes(disparity: np.ndarray) -> np.ndarray:
    """Fill places without a disparity, 0, from the row's neighbour with the smaller one.

    What one view does not see lies behind what hides it. Rows without any disparity stay 0.

    Args:
        disparity: (H, W) float32, pixels.
    """
    bounded = np.pad(disparity, ((0, 0), (1, 1)), constant_values=np.inf)
    known = bounded > 0
    holes = np.flatnonzero(~known)
    passed = np.cumsum(known)[holes]  # how many are known before each
    values = bounded[known]
    bounded.flat[holes] = np.minimum(values[passed - 1], values[passed])
    filled = bounded[:, 1:-1]
    return np.where(np.isfinite(filled), filled, 0)
