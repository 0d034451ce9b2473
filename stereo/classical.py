"""Stereo without a network: what learned ones are measured against."""

from __future__ import annotations

import cv2
import numpy as np
from torch import Tensor

from ..vision.io.images import to_bytes

__all__ = ["semi_global_matching"]


def semi_global_matching(
    left: Tensor, right: Tensor, mode: int = cv2.STEREO_SGBM_MODE_SGBM_3WAY
) -> np.ndarray:
    """Disparity of OpenCV's StereoSGBM, (H, W) float32; holes take the row's smaller neighbour.

    Rows in which nothing was found become 0.

    Args:
        left: (3, H, W) tensor in [0, 1].
        right: the same shape.
        mode: one of OpenCV's ``STEREO_SGBM_MODE_…``.
    """
    views = [to_bytes(view) for view in (left, right)]
    matcher = cv2.StereoSGBM.create(
        minDisparity=0,
        numDisparities=128,
        blockSize=5,
        P1=8 * 3 * 25,
        P2=32 * 3 * 25,
        disp12MaxDiff=1,
        uniquenessRatio=5,
        speckleWindowSize=100,
        speckleRange=2,
        mode=mode,
    )
    # A margin on the left, so that the first columns have somewhere to match.
    views = [cv2.copyMakeBorder(view, 0, 0, 128, 0, cv2.BORDER_REPLICATE) for view in views]
    disparity = matcher.compute(*views)[:, 128:].astype(np.float32) / 16
    before, after = (_carry(disparity[:, ::step])[:, ::step] for step in (1, -1))
    filled = np.where(disparity > 0, disparity, np.fmin(before, after))
    return np.where(np.isfinite(filled), filled, 0)


def _carry(disparity: np.ndarray) -> np.ndarray:
    """Fill holes with the last value before them in the row; infinite where there is none."""
    column = np.where(disparity > 0, np.arange(disparity.shape[1]), -1)
    last = np.maximum.accumulate(column, axis=1)
    carried = np.take_along_axis(disparity, np.maximum(last, 0), axis=1)
    return np.where(last >= 0, carried, np.inf).astype(np.float32)
