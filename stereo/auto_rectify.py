"""Rectifying a pair by its matches alone, where nobody knows the cameras.

Quasi-Euclidean epipolar rectification (Fusiello and Irsara, Machine Vision and Applications 2011):
two cameras of one unknown focal length are turned, by the fewest angles that matter, until matches
lie in rows. Unlike a homography that is only fitted to an epipolar geometry this keeps pictures
nearly as they are. Lens distortion is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import cv2
import numpy as np

from ..vision.io.images import ImageLike, as_pair, to_bytes
from .rectification import matched_points
from .rectify import Rectifier

__all__ = ["auto_rectifier"]

_FEWEST = 30  # matches that are needed
_ROWS_OFF, _DOUBTED = 1.5, 0.5  # median vertical offsets that are refused, and doubted, pixels
_STEPS = 60
_PRIOR = 0.05  # pixels that a radian, or thrice the focal length, counts
_SQUINT = 0.2  # of the width, by which the middles of both pictures come apart


def auto_rectifier(pairs: Iterable[tuple[ImageLike, ImageLike]]) -> Rectifier:
    """Estimate how pairs of two unknown cameras are to be rectified.

    Args:
        pairs: one or several of the same cameras, left and right image; more matches say more.

    Returns:
        The rectifier, without a calibration; its notes say what it was estimated from.

    Raises:
        FileNotFoundError: there is no such image.
        ValueError: an image cannot be read, sizes differ, too little matches, or what matches fits
            no two pinhole cameras.
    """
    size, matched = None, []
    for left, right in pairs:
        images = [to_bytes(image) for image in as_pair(left, right)]
        for image in images:
            size = size or image.shape[:2]
            if image.shape[:2] != size:
                raise ValueError(
                    f"images of {image.shape[0]}x{image.shape[1]} and {size[0]}x{size[1]} pixels "
                    "are not of the same two cameras"
                )
        matched.append(np.concatenate(matched_points(*images), 1))
    every = np.concatenate(matched) if matched else np.empty((0, 4))
    matches = _consistent(every)
    if size is None or len(matches) < _FEWEST:
        raise ValueError(
            f"{len(matches)} keypoints match, and {_FEWEST} are needed to rectify without a "
            "calibration; give the cameras' calibration, or more pairs"
        )
    height, width = size
    both = _homographies(_fit(matches, height, width), height, width)
    disparity, _ = _moved(both, matches)
    # Of all matches: those that one geometry explains agree whatever the lenses are.
    off = float(np.median(np.abs(_moved(both, every)[1])))
    if off > _ROWS_OFF:
        raise ValueError(
            f"rectified by {len(matches)} matches, rows still differ by {off:.1f} px: that is not "
            "two pinhole cameras side by side; lenses that bend lines need a calibration"
        )
    notes = [
        f"rectified by {len(matches)} matches, without a calibration: rows agree to {off:.2f} px; "
        "the disparity says what is nearer, not how far it is"
    ]
    if off > _DOUBTED:
        notes.append("the lenses seem to bend straight lines: a calibration does better")
    if np.median(disparity) < 0:
        notes.append("left and right look swapped: most matches move the wrong way")
    # Networks look for disparities above 0.
    shift = min(float(np.quantile(disparity, 0.02)) - 1, 0)
    both[1] = np.array([[1, 0, shift], [0, 1, 0], [0, 0, 1]]) @ both[1]
    maps = [_map(matrix, height, width) for matrix in both]
    return Rectifier((maps[0], maps[1]), (height, width), None, tuple(notes))


def _consistent(matches: np.ndarray) -> np.ndarray:
    """Those matches that one epipolar geometry explains."""
    if len(matches) < 8:
        return matches[:0]
    _, mask = cv2.findFundamentalMat(
        matches[:, :2], matches[:, 2:], cv2.USAC_MAGSAC, 1.0, 0.999, 5000
    )
    return matches[:0] if mask is None else matches[mask.ravel() > 0]


def _cameras(values: np.ndarray, height: int, width: int) -> tuple[np.ndarray, ...]:
    """The cameras' matrix, and the turns that make them parallel."""
    focal = 3 ** math.tanh(values[5]) * (width + height)
    matrix = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
    return matrix, _turn(0, values[0], values[1]), _turn(values[2], values[3], values[4])


def _turn(x: float, y: float, z: float) -> np.ndarray:
    turns = [cv2.Rodrigues(np.array(axis, float))[0] for axis in ((x, 0, 0), (0, y, 0), (0, 0, z))]
    return turns[2] @ turns[1] @ turns[0]


def _errors(values: np.ndarray, matches: np.ndarray, height: int, width: int) -> np.ndarray:
    """Sampson's distances of matches to their epipolar lines, pixels."""
    matrix, left, right = _cameras(values, height, width)
    inverse = np.linalg.inv(matrix)
    across = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]])
    epipolar = inverse.T @ right.T @ across @ left @ inverse
    one, two = (np.column_stack([p, np.ones(len(p))]) for p in (matches[:, :2], matches[:, 2:]))
    first, second = one @ epipolar.T, two @ epipolar
    return (two * first).sum(1) / np.sqrt((first[:, :2] ** 2).sum(1) + (second[:, :2] ** 2).sum(1))


def _fit(matches: np.ndarray, height: int, width: int) -> np.ndarray:
    """Levenberg and Marquardt's method, on errors whose outliers count less and less."""
    values, damping = np.zeros(6), 1e-3
    prior = _PRIOR * math.sqrt(len(matches))

    def residuals(at: np.ndarray) -> np.ndarray:
        errors = _errors(at, matches, height, width)
        robust = np.sign(errors) * np.sqrt(np.log1p(errors**2))
        return np.append(robust, prior * at)

    now = residuals(values)
    for _ in range(_STEPS):
        slope = np.stack([(residuals(values + step) - now) / 1e-6 for step in np.eye(6) * 1e-6], 1)
        square = slope.T @ slope
        move = np.linalg.solve(square + damping * np.diag(np.diag(square)), slope.T @ now)
        then = residuals(values - move)
        if then @ then < now @ now:
            values, now, damping = values - move, then, damping / 5
        else:
            damping = min(damping * 5, 1e12)
    return values


def _homographies(values: np.ndarray, height: int, width: int) -> list[np.ndarray]:
    """The homographies of the left and the right image, which stay about in the middle."""
    matrix, *turns = _cameras(values, height, width)
    both = [matrix @ turn @ np.linalg.inv(matrix) for turn in turns]
    middle = np.array([[[(width - 1) / 2, (height - 1) / 2]]])
    away = np.array([(middle - cv2.perspectiveTransform(middle, h))[0, 0] for h in both])
    away[:, 1] = away[:, 1].mean()
    # One shift keeps what is far at disparity 0; cameras that seem to squint need two.
    if np.ptp(away[:, 0]) < _SQUINT * width:
        away[:, 0] = away[:, 0].mean()
    return [
        np.array([[1, 0, x], [0, 1, y], [0, 0, 1]]) @ h
        for (x, y), h in zip(away, both, strict=True)
    ]


def _moved(both: list[np.ndarray], matches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Disparities of matches in the rectified pair, and their vertical offsets."""
    left, right = (
        cv2.perspectiveTransform(matches[:, None, at : at + 2], h)[:, 0]
        for at, h in zip((0, 2), both, strict=True)
    )
    return left[:, 0] - right[:, 0], left[:, 1] - right[:, 1]


def _map(homography: np.ndarray, height: int, width: int) -> np.ndarray:
    """For each pixel behind a homography where it was before."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    pixels = np.stack([x, y], -1)
    return cv2.perspectiveTransform(pixels, np.linalg.inv(homography)).astype(np.float32)
