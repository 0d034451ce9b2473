"""Disparity that does not flicker from frame to frame: what was found before has a say.

The picture before is laid onto this one by optical flow (OpenCV's DIS), and the disparity found
there with it. How disparities change as the rig moves is fitted over the whole picture: where a
rig turns and shifts in a world that stands still, d' - d = d (a x + b y + c d + e) to first order.
Where both pictures and both disparities then agree, the earlier one counts; where they do not (a
new surface, another motion, a cut), the new one stands alone.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

__all__ = ["Steadiness", "flicker"]

_SHARE = 0.8  # of the earlier disparity where all agrees
_GREY = 12.0  # levels: pictures that differ by as much are of different things
_NEAR, _RELATIVE = 2.0, 0.1  # pixels, and share of the disparity: the same for disparities
_STEP = 4  # pixels between those that the motion is fitted to
_FEWEST = 50  # of them
_WIDEST = 640  # pixels; flow is looked for in smaller copies of wider pictures
_SMALLEST = 16  # pixels, of pictures that flow is looked for in


class Steadiness:
    """A filter of one sequence; call it with each frame's left picture and disparity, in order.

    Example:
        >>> steady = Steadiness()
        >>> disparity = steady(frame.left, disparity)
    """

    def __init__(self) -> None:
        self._flow: Any = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
        self._before: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, picture: np.ndarray, disparity: np.ndarray) -> np.ndarray:
        """Return a frame's steadied disparity.

        Args:
            picture: the left one, (H, W, 3) uint8 RGB.
            disparity: (H, W) float32, pixels; 0 where unknown.
        """
        grey = cv2.cvtColor(np.ascontiguousarray(picture), cv2.COLOR_RGB2GRAY)
        steadied = disparity
        if self._before is not None and self._before[0].shape == grey.shape:
            steadied = self._blended(grey, disparity, *self._before)
        self._before = grey, steadied
        return steadied

    def _blended(
        self, grey: np.ndarray, disparity: np.ndarray, past: np.ndarray, steadied: np.ndarray
    ) -> np.ndarray:
        x, y = self._places(grey, past)
        earlier = cv2.remap(steadied, x, y, cv2.INTER_LINEAR, borderValue=0)
        now, then = (cv2.GaussianBlur(view.astype(np.float32), (0, 0), 1) for view in (grey, past))
        off = now - cv2.remap(then, x, y, cv2.INTER_LINEAR)
        # A mean with what is unknown, or beyond the border, is no disparity.
        share = cv2.remap((steadied > 0).astype(np.float32), x, y, cv2.INTER_LINEAR)
        known = (disparity > 0) & (share > 0.999) & (np.abs(off) < _GREY)
        limit = _NEAR + _RELATIVE * disparity
        earlier = earlier + _motion(earlier, disparity, known, limit)
        agreement = np.exp(-((off / _GREY) ** 2) - ((disparity - earlier) / limit) ** 2)
        return disparity + np.where(known, _SHARE * agreement, 0) * (earlier - disparity)

    def _places(self, grey: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the picture before shows each pixel's point: x and y, (H, W) float32."""
        height, width = grey.shape
        scale = min(1.0, _WIDEST / width)
        small = [grey, past]
        if scale < 1:
            size = (round(scale * width), max(1, round(scale * height)))
            small = [cv2.resize(view, size, interpolation=cv2.INTER_AREA) for view in small]
        rows, columns = small[0].shape
        # DIS ends the process where a picture is very flat or has a few pixels alone.
        more = (max(0, _SMALLEST - rows, columns // 3 - rows), max(0, _SMALLEST - columns))
        wide = [cv2.copyMakeBorder(v, 0, more[0], 0, more[1], cv2.BORDER_REPLICATE) for v in small]
        flow = self._flow.calc(*wide, None)[:rows, :columns]
        flow = cv2.resize(flow, (width, height)) / np.float32(scale)
        x, y = (np.arange(length, dtype=np.float32) for length in (width, height))
        return flow[..., 0] + x, flow[..., 1] + y[:, None]


def _motion(
    earlier: np.ndarray, disparity: np.ndarray, known: np.ndarray, limit: np.ndarray
) -> np.ndarray:
    """How disparities (H, W) of a world that stands still change by the rig's motion."""
    height, width = earlier.shape
    across = (np.arange(width, dtype=np.float32) / width - 0.5) * earlier
    down = (np.arange(height, dtype=np.float32)[:, None] / width) * earlier
    terms = np.stack([across, down, earlier * earlier / width, earlier], axis=-1)
    change = disparity - earlier
    chosen = np.zeros_like(known)
    chosen[::_STEP, ::_STEP] = True
    chosen &= known & (np.abs(change) < limit)
    if chosen.sum() < _FEWEST:
        return np.zeros_like(earlier)
    rows, wanted = terms[chosen], change[chosen]
    kept = np.ones(len(wanted), dtype=bool)
    for _ in range(4):  # without what moves by itself
        factors = np.linalg.lstsq(rows[kept], wanted[kept], rcond=None)[0]
        rest = np.abs(wanted - rows @ factors)
        kept = rest <= max(2.5 * 1.4826 * float(np.median(rest)), 0.1)
    return terms @ factors.astype(np.float32)


def flicker(error: np.ndarray, before: np.ndarray, earlier: np.ndarray) -> float:
    """Mean change of a disparity's error between two frames, at points that both see, pixels.

    Args:
        error: of this frame's disparity, (H, W); NaN where the truth is unknown.
        before: of the frame's before, likewise.
        earlier: (2, H, W), where that one shows the same point, as `WorldSequence` says; NaN where
            it does not.
    """
    x, y = (np.ascontiguousarray(np.nan_to_num(part, nan=-1)) for part in earlier)
    past = cv2.remap(before.astype(np.float32), x, y, cv2.INTER_LINEAR, borderValue=np.nan)
    return float(np.nanmean(np.abs(error - past)))
