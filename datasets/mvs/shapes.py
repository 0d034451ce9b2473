"""Exact ray casting of planes, plates and spheres.

Rays are ``K^-1 (x, y, 1)``, rotated but not scaled to length one: the ray's parameter at a hit is
then the depth itself. For a flat shape everything but one division is linear in x and y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Plate", "Sphere", "cast"]


@dataclass(frozen=True)
class Plate:
    """A flat rectangle, or with infinite half sizes a plane.

    Attributes:
        centre: (3,).
        axes: (3, 3), rows: the two directions along its sides and its normal, each of length one.
        half: half of the sides' lengths.
    """

    centre: np.ndarray
    axes: np.ndarray
    half: tuple[float, float] = (np.inf, np.inf)

    def depth(self, origin: np.ndarray, rays: _Rays) -> np.ndarray:
        """Return the depth of every ray's hit, infinity where it misses."""
        offset = [_dot(axis, origin - self.centre) for axis in self.axes]
        with np.errstate(divide="ignore", invalid="ignore"):
            depth = rays.number(-offset[2]) / rays.along(self.axes[2])
            hit = depth > 0
            for side in (0, 1):
                if np.isfinite(self.half[side]):
                    place = depth * rays.along(self.axes[side])
                    place += rays.number(offset[side])
                    hit &= np.abs(place, out=place) <= rays.number(self.half[side])
        return np.where(hit, depth, rays.number(np.inf))


@dataclass(frozen=True)
class Sphere:
    """A sphere.

    Attributes:
        centre: (3,).
        radius: of it.
    """

    centre: np.ndarray
    radius: float

    def depth(self, origin: np.ndarray, rays: _Rays) -> np.ndarray:
        """Return the depth of every ray's nearer hit, infinity where it misses."""
        away = self.centre - origin
        along = rays.along(away)
        rest = rays.number(_dot(away, away) - self.radius**2)
        inside = along * along
        inside -= rays.squared * rest
        hit = (inside > 0) & (along > 0)
        depth = (along - np.sqrt(np.where(hit, inside, 0))) / rays.squared
        return np.where(hit, depth, rays.number(np.inf))


class _Rays:
    """The rays of some pixels of a camera."""

    def __init__(self, turn: np.ndarray, x: np.ndarray, y: np.ndarray, kind: type) -> None:
        self.turn, self.kind = turn, kind
        self.x, self.y = x.astype(kind)[None, :], y.astype(kind)[:, None]
        self.directions = [self._linear(row) for row in turn]
        a, b, c = self.directions
        self.squared = a * a
        self.squared += b * b
        self.squared += c * c

    def number(self, value: float) -> np.floating:
        return self.kind(value)

    def along(self, axis: np.ndarray) -> np.ndarray:
        """Every ray's component along an axis, (rows, columns)."""
        return self._linear([_dot(axis, self.turn[:, column]) for column in range(3)])

    def _linear(self, factors: np.ndarray) -> np.ndarray:
        a, b, c = (self.kind(factor) for factor in factors)
        return a * self.x + (b * self.y + c)


def cast(
    shapes: list[Plate | Sphere],
    origin: np.ndarray,
    turn: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    kind: type = np.float64,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Cast a ray through every (x, y) and find the first shape that it hits.

    Args:
        shapes: what there is.
        origin: (3,), where the camera stands.
        turn: (3, 3), from homogeneous pixel to ray.
        x: (columns,) pixel coordinates; pixel centres are at integers.
        y: (rows,).
        kind: the number type to compute in.

    Returns:
        Depth (rows, columns), infinity where nothing is hit; the number of the shape (rows,
        columns) int32; the three components of the rays.
    """
    rays = _Rays(turn, x, y, kind)
    nearest = np.full((len(y), len(x)), np.inf, kind)
    which = np.zeros((len(y), len(x)), np.int32)
    for number, shape in enumerate(shapes):
        depth = shape.depth(origin, rays)
        closer = depth < nearest
        np.copyto(nearest, depth, where=closer)
        np.copyto(which, np.int32(number), where=closer)
    return nearest, which, rays.directions


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    # In this order everywhere; a library's dot product may fuse or reorder.
    return float(a[0] * b[0] + a[1] * b[1] + a[2] * b[2])
