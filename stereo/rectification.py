"""Does an image pair look like a rectified stereo pair, left image first?

Keypoints are matched across the two images with no assumption about where the match lies. In a
rectified pair a match lies on the same row, and further left in the right image.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from torch import Tensor

__all__ = ["PairGeometry", "check_pair", "matched_points", "measure_pair", "require_content"]

_WIDEST = 1200  # pixels; larger images are reduced before keypoints are looked for
_KEYPOINTS = 2000
_GLANCE, _REDUCED, _FEWER = 600, 4, 800  # pixels, the most that they are reduced, and keypoints
_FEWEST = 25  # matches below which nothing is said
_ROWS_OFF = 1.5  # pixels: networks tolerate about one, and rectified pairs measure up to 0.31
_SWAPPED_SHARE = 0.75
REMEDY = (
    "`vizoo rectify` does that by the cameras' calibration, and `vizoo infer stereo "
    "--auto-rectify` without one"
)


@dataclass(frozen=True)
class PairGeometry:
    """What the matches between two images say, in pixels of the images as given."""

    matches: int  #: their number, after outliers are dropped
    row_offset: float  #: median of |y_left - y_right|
    row_trend: float  #: how much y_left - y_right varies over the image, by the plane fitted to it
    shift: float  #: median of x_left - x_right, positive in a pair that is not swapped
    #: part of the matches with a negative x_left - x_right, of those that move by over half a pixel
    swapped_share: float

    def warnings(self, remedy: str = REMEDY) -> list[str]:
        """Why this is no rectified pair, one line each; empty where it looks like one.

        Args:
            remedy: what to do about it.
        """
        doubts = []
        if self.row_offset > _ROWS_OFF or self.row_trend > 3 * _ROWS_OFF:
            doubts.append(
                f"the pair is not rectified: median vertical offset {self.row_offset:.1f} px, "
                f"varying by {self.row_trend:.1f} px over the image ({self.matches} matches); "
                f"{remedy}"
            )
        if self.swapped_share > _SWAPPED_SHARE and self.shift < -0.5:
            doubts.append(
                f"left and right look swapped: {100 * self.swapped_share:.0f} % of {self.matches} "
                f"matches lie further right in the right image (median {-self.shift:.1f} px); give "
                "them in the other order"
            )
        return doubts


def check_pair(left: np.ndarray, right: np.ndarray, *, remedy: str = REMEDY) -> list[str]:
    """Return warnings, one line each, for a pair that looks swapped or not rectified.

    Images are (H, W, 3) uint8, and the remedy is what to do where they are not rectified. There
    are no warnings where too few keypoints match to tell.
    """
    geometry = measure_pair(left, right, glance=True)
    return [] if geometry is None else geometry.warnings(remedy)


def require_content(left: Tensor, right: Tensor) -> None:
    """Refuse two images (3, H, W) in [0, 1] in which there is nothing to match.

    Raises:
        ValueError: they are the same picture, or one of them is all of one colour.
    """
    for side, image in (("left", left), ("right", right)):
        extremes = (channel.aminmax() for channel in image)
        if all(most - least < 1 / 255 for least, most in extremes):
            raise ValueError(f"the {side} image is all of one colour: there is nothing to match")
    if left.equal(right):
        raise ValueError("left and right are the same picture: there is nothing to match")


def measure_pair(
    left: np.ndarray, right: np.ndarray, *, glance: bool = False
) -> PairGeometry | None:
    """Match keypoints of two images (H, W, 3) uint8 and measure; None where too few match.

    A glance, at smaller copies of large images and fewer keypoints, is enough to decide.
    """
    first, second = matched_points(left, right, glance=glance)
    if len(first) < _FEWEST:
        return None
    dx, dy = (first - second).T
    height, width = left.shape[:2]
    terms = np.column_stack(
        [np.ones(len(first)), first[:, 0] / width - 0.5, first[:, 1] / height - 0.5]
    )
    plane, kept = _robust_plane(terms, dy)
    if kept.sum() < _FEWEST:
        return None
    moved = dx[kept][np.abs(dx[kept]) > 0.5]
    return PairGeometry(
        matches=int(kept.sum()),
        row_offset=float(np.median(np.abs(dy[kept]))),
        row_trend=float(abs(plane[1]) + abs(plane[2])),
        shift=float(np.median(dx[kept])),
        swapped_share=float(np.mean(moved < 0)) if len(moved) else 0.0,
    )


def matched_points(
    left: np.ndarray, right: np.ndarray, *, glance: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, 2) positions x, y in both images of keypoints that are each other's best match."""
    longest = max(left.shape[:2])
    widest = min(max(_GLANCE, longest / _REDUCED), _WIDEST) if glance else _WIDEST
    scale = min(1.0, widest / longest)
    most = _FEWER if glance else _KEYPOINTS
    finder = cv2.SIFT.create(nfeatures=most, enable_precise_upscale=True)
    points, descriptors = [], []
    for image in (left, right):
        grey = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)
        if scale < 1:
            size = [max(1, round(scale * side)) for side in grey.shape[::-1]]
            grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        keypoints, described = finder.detectAndCompute(grey, None)
        places = np.array([k.pt for k in keypoints], dtype=np.float64).reshape(-1, 2)
        points.append((places + 0.5) / scale - 0.5)  # centres of pixels are whole numbers
        descriptors.append(described)
    if min(len(p) for p in points) < 2:
        return np.empty((0, 2)), np.empty((0, 2))
    similarity = descriptors[0] @ descriptors[1].T  # SIFT vectors have nearly one length
    lengths = [np.square(d).sum(axis=1) for d in descriptors]
    distance = np.maximum(lengths[0][:, None] + lengths[1] - 2 * similarity, 0)
    best = distance.argmin(axis=1)
    mutual = distance.argmin(axis=0)[best] == np.arange(len(best))
    matches = np.arange(len(best)), best
    nearest = distance[matches]
    distance[matches] = np.inf
    second = distance.min(axis=1)
    chosen = mutual & (nearest < 0.7**2 * second)
    return points[0][chosen], points[1][best[chosen]]


def _robust_plane(terms: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit ``values`` by ``terms``, dropping outliers; return the coefficients and what was kept."""
    plane = np.zeros(terms.shape[1])
    plane[0] = np.median(values)
    kept = np.ones(len(values), dtype=bool)
    for _ in range(8):
        rest = np.abs(values - terms @ plane)
        kept = rest <= max(3 * 1.4826 * float(np.median(rest)), 0.5)
        plane = np.linalg.lstsq(terms[kept], values[kept], rcond=None)[0]
    return plane, kept
