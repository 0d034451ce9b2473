"""Lenses: where a point before a camera lies in its image, and which way a pixel looks.

===========  ==========================================  =========================================
model        numbers of ``distortion``                   known as
===========  ==========================================  =========================================
``pinhole``  k1 k2 p1 p2 [k3 [k4 k5 k6 [s1 s2 s3 s4]]]   OpenCV's own, with its rational and thin
                                                         prism parts; radtan; plumb_bob
``fisheye``  k1 k2 k3 k4                                 Kannala and Brandt (2006); cv2.fisheye;
                                                         equidistant, equi
``fov``      w                                           Devernay and Faugeras (2001)
``mei``      xi [k1 k2 p1 p2]                            Mei and Rives (2007); omni; cv2.omnidir
``ds``       xi alpha                                    double sphere: Usenko et al. (2018)
``eucm``     alpha beta                                  Khomutenko et al. (2016)
===========  ==========================================  =========================================

A camera looks along z, with x to the right and y down; the first pixel's centre is (0, 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

__all__ = ["MODELS", "Lens"]

_STEPS = 12  # of Newton's method at most, which doubles the digits from a guess that has three
_ENOUGH = 1e-12
_Plane = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Lens:
    """A camera's lens and sensor.

    Attributes:
        model: one of `MODELS`; the module's table says what its ``distortion`` holds.
        focal: focal lengths along x and y, pixels.
        centre: principal point x, y, pixels.
        distortion: the model's numbers.
        width, height: of the images, pixels; ``None`` where not known.
        skew: pixels that x moves by for each unit of y / z.

    Raises:
        ValueError: an unknown model, or numbers that it cannot have.
    """

    model: str
    focal: tuple[float, float]
    centre: tuple[float, float]
    distortion: tuple[float, ...] = ()
    width: int | None = None
    height: int | None = None
    skew: float = 0.0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"unknown lens model {self.model!r}: {', '.join(MODELS)}")
        numbers = (*self.focal, *self.centre, self.skew, *self.distortion)
        if not all(map(math.isfinite, numbers)) or max(map(abs, numbers)) > 1e9:
            raise ValueError("a number of the lens is not finite, or beyond reason")
        if min(self.focal) <= 0:
            raise ValueError(f"the focal length must be positive, got {min(self.focal):g}")
        sides = (self.width, self.height)
        if sides != (None, None) and not all(side and side > 0 for side in sides):
            raise ValueError(f"an image of {self.height}x{self.width} pixels has none")
        counts, _, _ = MODELS[self.model]
        if len(self.distortion) not in counts:
            wanted = " or ".join(map(str, counts))
            raise ValueError(
                f"the lens model {self.model} has {wanted} numbers, got {len(self.distortion)}"
            )
        _check(self.model, self.distortion)

    def project(self, points: np.ndarray) -> np.ndarray:
        """Return the pixels (..., 2) of points (..., 3); NaN where the lens does not see them."""
        x, y, z = np.moveaxis(np.asarray(points, np.float64), -1, 0)
        with np.errstate(all="ignore"):
            a, b = MODELS[self.model][1](self.distortion, x, y, z)
        across = self.focal[0] * a + self.skew * b + self.centre[0]
        return np.stack([across, self.focal[1] * b + self.centre[1]], axis=-1)

    def unproject(self, pixels: np.ndarray) -> np.ndarray:
        """Return the directions (..., 3), of length 1, of pixels (..., 2); NaN beyond the field."""
        u, v = np.moveaxis(np.asarray(pixels, np.float64), -1, 0)
        b = (v - self.centre[1]) / self.focal[1]
        a = (u - self.centre[0] - self.skew * b) / self.focal[0]
        with np.errstate(all="ignore"):
            rays = np.stack(MODELS[self.model][2](self.distortion, a, b), axis=-1)
            return rays / np.linalg.norm(rays, axis=-1, keepdims=True)

    def resized(self, height: int, width: int) -> Lens:
        """The lens of the same images scaled to another size.

        Raises:
            ValueError: images of this size have another shape (more than 2 % off).
        """
        if self.width is None or self.height is None:
            places = self.centre[0] / width, self.centre[1] / height
            if not all(0.25 < place < 0.75 for place in places):
                raise ValueError(
                    f"the calibration says no image size, and its principal point "
                    f"({self.centre[0]:g}, {self.centre[1]:g}) is not about the middle of "
                    f"{height}x{width}: it is of images of another size"
                )
            return replace(self, width=width, height=height)
        across, down = width / self.width, height / self.height
        if abs(across / down - 1) > 0.02:
            raise ValueError(
                f"the calibration is of images of {self.height}x{self.width} (height x width), "
                f"these have {height}x{width}: not the same picture at another scale"
            )
        return replace(
            self,
            focal=(self.focal[0] * across, self.focal[1] * down),
            centre=((self.centre[0] + 0.5) * across - 0.5, (self.centre[1] + 0.5) * down - 0.5),
            skew=self.skew * across,
            width=width,
            height=height,
        )


def _check(model: str, d: tuple[float, ...]) -> None:
    """Refuse numbers for which a model's formulas mean nothing."""
    if model == "pinhole" and any(d[12:]):
        raise ValueError("a tilted sensor (the last two of 14 numbers) is not supported")
    if model == "fov" and not 0 < d[0] < math.pi:
        raise ValueError(f"the lens model fov has 0 < w < pi, got {d[0]:g}")
    if model == "mei" and not 0 <= d[0] < 100:
        raise ValueError(f"the lens model mei has 0 <= xi, got {d[0]:g}")
    if model == "ds" and not (0 <= d[1] < 1 and -1 < d[0] <= 1):
        raise ValueError(f"the lens model ds has -1 < xi <= 1 and 0 <= alpha < 1, got {d}")
    if model == "eucm" and not (0 <= d[0] < 1 and d[1] > 0):
        raise ValueError(f"the lens model eucm has 0 <= alpha < 1 and beta > 0, got {d}")


def _seen(seen: np.ndarray, *values: np.ndarray) -> _Plane:
    """Numbers, and NaN where nothing is seen."""
    a, b = (np.where(seen, value, np.nan) for value in values)
    return a, b


# Radial and tangential distortion on the plane at z = 1: OpenCV's, and mei's after its sphere.


def _radial(d: tuple[float, ...], r2: np.ndarray) -> _Plane:
    """The radial factor at a squared radius, and how it changes with that."""
    k1, k2, _, _, k3, k4, k5, k6, *_ = (*d, *[0.0] * (12 - len(d)))
    above, below = (1 + r2 * (a + r2 * (b + r2 * c)) for a, b, c in ((k1, k2, k3), (k4, k5, k6)))
    rise, fall = (a + r2 * (2 * b + r2 * 3 * c) for a, b, c in ((k1, k2, k3), (k4, k5, k6)))
    return above / below, (rise * below - above * fall) / below**2


def _distort(d: tuple[float, ...], x: np.ndarray, y: np.ndarray) -> _Plane:
    _, _, p1, p2, *_, s1, s2, s3, s4 = (*d, *[0.0] * (12 - len(d)))[:12]
    r2 = x * x + y * y
    factor, _ = _radial(d, r2)
    a = x * factor + 2 * p1 * x * y + p2 * (r2 + 2 * x * x) + r2 * (s1 + s2 * r2)
    b = y * factor + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y + r2 * (s3 + s4 * r2)
    return _seen(r2 <= _table(_radius, d)[0][-1] ** 2, a, b)


def _undistort(d: tuple[float, ...], a: np.ndarray, b: np.ndarray) -> _Plane:
    """Newton's method, from where the radial part alone would lead."""
    _, _, p1, p2, *_, s1, s2, s3, s4 = (*d, *[0.0] * (12 - len(d)))[:12]
    radius, distorted = _table(_radius, d)
    length = np.hypot(a, b)
    start = np.interp(length, distorted, radius) / np.where(length > 0, length, 1)
    x, y = a * start, b * start
    for _ in range(_STEPS):
        u, v = _distort(d, x, y)
        r2 = x * x + y * y
        factor, slope = _radial(d, r2)
        cross = 2 * x * y * slope + 2 * p1 * x + 2 * p2 * y
        xx = factor + 2 * x * x * slope + 2 * p1 * y + 6 * p2 * x + 2 * x * (s1 + 2 * s2 * r2)
        xy = cross + 2 * y * (s1 + 2 * s2 * r2)
        yx = cross + 2 * x * (s3 + 2 * s4 * r2)
        yy = factor + 2 * y * y * slope + 6 * p1 * y + 2 * p2 * x + 2 * y * (s3 + 2 * s4 * r2)
        area = xx * yy - xy * yx
        dx, dy = (yy * (u - a) - xy * (v - b)) / area, (xx * (v - b) - yx * (u - a)) / area
        x, y = x - dx, y - dy
        if not (np.abs(dx) + np.abs(dy) > _ENOUGH).any():  # also where nothing is a number
            break
    u, v = _distort(d, x, y)
    return _seen(np.hypot(u - a, v - b) < 1e-9 * (1 + length), x, y)


def _radius(d: tuple[float, ...], angle: np.ndarray) -> _Plane:
    radius = np.tan(np.minimum(angle / 2, 1.57))
    return radius, radius * _radial(d, radius**2)[0]


def _theta(d: tuple[float, ...], angle: np.ndarray) -> _Plane:
    k1, k2, k3, k4 = d
    q = angle * angle
    return angle, angle * (1 + q * (k1 + q * (k2 + q * (k3 + q * k4))))


@lru_cache
def _table(curve: Callable[..., _Plane], d: tuple[float, ...]) -> _Plane:
    """A curve from the axis on, up to where it folds back: what lies beyond is not seen."""
    with np.errstate(all="ignore"):
        before, after = curve(d, np.linspace(0, np.pi, 8000))
        rising = np.diff(after) > 0
    end = len(before) if rising.all() else max(2, int(rising.argmin()) + 1)
    return before[:end], after[:end]


# The models: onto the plane, and back to a direction of any length.


def _pinhole(d: tuple[float, ...], x: np.ndarray, y: np.ndarray, z: np.ndarray) -> _Plane:
    return _distort(d, *_seen(z > 0, x / z, y / z))


def _from_pinhole(d: tuple[float, ...], a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    x, y = _undistort(d, a, b)
    return x, y, np.ones_like(x)


def _fisheye(d: tuple[float, ...], x: np.ndarray, y: np.ndarray, z: np.ndarray) -> _Plane:
    radius = np.hypot(x, y)
    angle = np.arctan2(radius, z)
    _, distorted = _theta(d, angle)
    scale = np.where(radius > 0, distorted / radius, 1 / z)
    return _seen(angle <= _table(_theta, d)[0][-1], x * scale, y * scale)


def _from_fisheye(d: tuple[float, ...], a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    k1, k2, k3, k4 = d
    angles, distorted = _table(_theta, d)
    length = np.hypot(a, b)
    angle = np.interp(length, distorted, angles)
    for _ in range(_STEPS):
        q = angle * angle
        slope = 1 + q * (3 * k1 + q * (5 * k2 + q * (7 * k3 + q * 9 * k4)))
        step = (_theta(d, angle)[1] - length) / slope
        angle = angle - step
        if not (np.abs(step) > _ENOUGH).any():
            break
    seen = (length <= distorted[-1]) & (np.abs(_theta(d, angle)[1] - length) < 1e-9)
    scale = np.where(length > 0, np.sin(angle) / length, 1.0)
    return (*_seen(seen, a * scale, b * scale), np.cos(angle))


def _fov(d: tuple[float, ...], x: np.ndarray, y: np.ndarray, z: np.ndarray) -> _Plane:
    radius, spread = np.hypot(x, y), 2 * math.tan(d[0] / 2)
    angle = np.arctan2(radius * spread, z) / d[0]
    scale = np.where(radius > 0, angle / radius, spread / d[0] / z)
    return _seen(z > 0, x * scale, y * scale)


def _from_fov(d: tuple[float, ...], a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    length, spread = np.hypot(a, b), 2 * math.tan(d[0] / 2)
    scale = np.where(length > 0, np.sin(length * d[0]) / length, d[0])
    seen = length * d[0] < math.pi / 2
    return (*_seen(seen, a * scale, b * scale), spread * np.cos(length * d[0]))


def _mei(d: tuple[float, ...], x: np.ndarray, y: np.ndarray, z: np.ndarray) -> _Plane:
    xi, length = d[0], np.sqrt(x * x + y * y + z * z)
    depth = z + xi * length
    seen = z > -(xi if xi <= 1 else 1 / xi) * length
    return _distort(d[1:], *_seen(seen, x / depth, y / depth))


def _from_mei(d: tuple[float, ...], a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    xi, (x, y) = d[0], _undistort(d[1:], a, b)
    r2 = x * x + y * y
    scale = (xi + np.sqrt(1 + (1 - xi * xi) * r2)) / (1 + r2)
    return x * scale, y * scale, scale - xi


def _ds(d: tuple[float, ...], x: np.ndarray, y: np.ndarray, z: np.ndarray) -> _Plane:
    xi, alpha = d
    first = np.sqrt(x * x + y * y + z * z)
    second = np.sqrt(x * x + y * y + (xi * first + z) ** 2)
    depth = alpha * second + (1 - alpha) * (xi * first + z)
    inner = alpha / (1 - alpha) if alpha <= 0.5 else (1 - alpha) / alpha
    outer = (inner + xi) / math.sqrt(max(2 * inner * xi + xi * xi + 1, 1e-12))
    return _seen((z > -outer * first) & (depth > 0), x / depth, y / depth)


def _from_ds(d: tuple[float, ...], a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    xi, alpha = d
    r2 = a * a + b * b
    depth = (1 - alpha * alpha * r2) / (alpha * np.sqrt(1 - (2 * alpha - 1) * r2) + 1 - alpha)
    scale = (depth * xi + np.sqrt(depth**2 + (1 - xi * xi) * r2)) / (depth**2 + r2)
    return scale * a, scale * b, scale * depth - xi


def _eucm(d: tuple[float, ...], x: np.ndarray, y: np.ndarray, z: np.ndarray) -> _Plane:
    alpha, beta = d
    length = np.sqrt(beta * (x * x + y * y) + z * z)
    depth = alpha * length + (1 - alpha) * z
    limit = alpha / (1 - alpha) if alpha <= 0.5 else (1 - alpha) / alpha
    return _seen((z > -limit * length) & (depth > 0), x / depth, y / depth)


def _from_eucm(d: tuple[float, ...], a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    alpha, beta = d
    r2 = a * a + b * b
    root = np.sqrt(1 - (2 * alpha - 1) * beta * r2)
    return a, b, (1 - beta * alpha * alpha * r2) / (alpha * root + 1 - alpha)


#: Of each model how many numbers it may have, the way onto the plane, and the way back.
MODELS: dict[str, tuple[tuple[int, ...], Callable, Callable]] = {
    "pinhole": ((0, 4, 5, 8, 12, 14), _pinhole, _from_pinhole),
    "fisheye": ((4,), _fisheye, _from_fisheye),
    "fov": ((1,), _fov, _from_fov),
    "mei": ((1, 5), _mei, _from_mei),
    "ds": ((2,), _ds, _from_ds),
    "eucm": ((2,), _eucm, _from_eucm),
}
