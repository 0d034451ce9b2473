"""Surfaces as triangles: boxes, spheres, tubes, cones, tori, sheets, turned and extruded outlines.

A shape keeps the three corners of each triangle with their own normal and texture place, so that
shapes are joined by concatenation. Lengths and texture places are metres; y points up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "Shape",
    "box",
    "boxes",
    "cone",
    "cylinder",
    "extrusion",
    "height_field",
    "join",
    "revolution",
    "scattered",
    "sheet",
    "sphere",
    "torus",
    "tube",
]


class Shape(NamedTuple):
    """Triangles."""

    points: np.ndarray  #: (T, 3, 3), corners
    normals: np.ndarray  #: (T, 3, 3), of the smooth surface at the corners, unit length
    places: np.ndarray  #: (T, 3, 2), on the texture, metres

    def moved(self, to: ArrayLike, turn: float = 0.0, rotation: np.ndarray | None = None) -> Shape:
        """The shape turned about y by ``turn`` radians, or by a (3, 3) rotation, then shifted."""
        if rotation is None:
            cos, sin = math.cos(turn), math.sin(turn)
            rotation = np.array([[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]])
        points = self.points @ rotation.T + np.asarray(to, float)
        return Shape(points, self.normals @ rotation.T, self.places)

    def scaled(self, factor: float) -> Shape:
        """The shape at another size; its texture grows with it."""
        return Shape(self.points * factor, self.normals, self.places * factor)


def join(shapes: Sequence[Shape]) -> Shape:
    """Several shapes as one."""
    return Shape(*(np.concatenate(parts) for parts in zip(*shapes, strict=True)))


def sheet(points: np.ndarray, places: np.ndarray | None = None) -> Shape:
    """A surface over a grid of points (N, M, 3), N and M at least 2.

    The normal is the second direction across the first. Without texture places (N, M, 2), lengths
    along the grid's lines are taken.
    """
    if places is None:
        places = np.stack([_lengths(points, 0), _lengths(points, 1)], axis=-1)
    normals = _unit(np.cross(_slopes(points, 1), _slopes(points, 0)))

    def corners(values: np.ndarray) -> np.ndarray:
        a, b = values[:-1, :-1], values[:-1, 1:]
        c, d = values[1:, 1:], values[1:, :-1]
        triangles = np.stack([np.stack([a, b, c], -2), np.stack([a, c, d], -2)], axis=2)
        return triangles.reshape(-1, 3, values.shape[-1])

    return Shape(corners(points), corners(normals), corners(places))


def _polygon(outline: np.ndarray) -> Shape:
    """A flat polygon of corners (N, 3) in turn, star-shaped as seen from its middle."""
    middle = outline.mean(axis=0)
    following = np.roll(outline, -1, axis=0)
    points = np.stack([np.broadcast_to(middle, outline.shape), outline, following], axis=1)
    normal = np.cross(outline - middle, following - middle).sum(axis=0)
    normal /= max(np.linalg.norm(normal), 1e-12)
    along = outline[0] - middle
    along /= max(np.linalg.norm(along), 1e-12)
    axes = np.stack([along, np.cross(normal, along)])
    return Shape(points, np.broadcast_to(normal, points.shape), (points - middle) @ axes.T)


def box(width: float, height: float, depth: float) -> Shape:
    """A box about the origin, standing on y = 0."""
    return boxes((width, height, depth), np.zeros((1, 3)))


def boxes(sizes: ArrayLike, at: np.ndarray, rotation: np.ndarray | None = None) -> Shape:
    """Many boxes as one shape: of sizes (N, 3) or (3,), width, height, depth, turned by (3, 3).

    Each stands with the middle of its base, about which it turns, at a place (N, 3).
    """
    sizes = np.broadcast_to(np.asarray(sizes, float), at.shape)
    points = _BOX.points * sizes[:, None, None]
    normals = np.broadcast_to(_BOX.normals, points.shape)
    if rotation is not None:
        points, normals = points @ rotation.T, normals @ rotation.T
    places = _BOX.places * sizes[:, _BOX_SIDES].transpose(0, 2, 1)[:, :, None]
    parts = points + at[:, None, None], normals, places
    return Shape(*(part.reshape(-1, *part.shape[2:]) for part in parts))


def scattered(shape: Shape, scales: np.ndarray, rotations: np.ndarray, at: np.ndarray) -> Shape:
    """Many copies of a small shape as one: scaled along its own axes, (N, 3), then turned.

    Rotations are (N, 3, 3); its origin comes to lie at (N, 3).
    """
    turned = np.swapaxes(rotations, 1, 2)[:, None]
    points = (shape.points * scales[:, None, None]) @ turned + at[:, None, None]
    normals = _unit((shape.normals / scales[:, None, None]) @ turned)
    places = shape.places * scales[:, None, None, ::2]
    return Shape(*(part.reshape(-1, *part.shape[2:]) for part in (points, normals, places)))


def sphere(radius: float, squeeze: float = 1.0, steps: int = 20) -> Shape:
    """A ball about the origin; ``squeeze`` is its height over its width."""
    up = np.linspace(-math.pi / 2, math.pi / 2, steps // 2 + 1)
    outline = np.stack([radius * np.cos(up), radius * squeeze * np.sin(up)], axis=-1)
    return revolution(outline, steps)


def cylinder(radius: float, height: float, steps: int = 20) -> Shape:
    """A closed cylinder that stands on y = 0."""
    return cone(radius, radius, height, steps)


def cone(radius: float, top: float, height: float, steps: int = 20) -> Shape:
    """A closed cone or frustum that stands on y = 0."""
    side = revolution(np.array([[radius, 0.0], [top, height]]), steps)
    ring = _circle(steps)[:-1]
    caps = [_polygon(radius * ring)]
    if top > 0:
        caps.append(_polygon(top * ring[::-1] + (0, height, 0)))
    return join([side, *caps])


def torus(radius: float, thickness: float) -> Shape:
    """A ring in the plane y = 0."""
    angles = np.linspace(0, 2 * math.pi, 13)
    outline = np.stack([radius + thickness * np.cos(angles), thickness * np.sin(angles)], axis=-1)
    return revolution(outline)


def revolution(outline: np.ndarray, steps: int = 24) -> Shape:
    """An outline turned about y: (N, 2), distance from it and height, upwards on the outside."""
    ring = _circle(steps)
    points = ring[:, None] * outline[None, :, :1]
    points[..., 1] = outline[None, :, 1]
    around = np.linspace(0, 2 * math.pi, steps + 1)[:, None] * max(outline[:, 0].max(), 1e-6)
    length = np.concatenate([[0.0], np.linalg.norm(np.diff(outline, axis=0), axis=1).cumsum()])
    places = np.stack(np.broadcast_arrays(around, length[None]), axis=-1)
    return sheet(points, places)


def extrusion(outline: np.ndarray, height: float) -> Shape:
    """A star-shaped outline (N, 2), x and z, drawn up from y = 0."""
    base = np.stack([outline[:, 0], np.zeros(len(outline)), outline[:, 1]], axis=-1)
    following = np.roll(base, -1, axis=0)
    lifted = np.array([0.0, height, 0.0])
    points = np.stack([base, base + lifted, following + lifted, following], axis=1)
    along = following - base
    length = np.linalg.norm(along, axis=1)
    normal = np.cross(lifted, along) / np.maximum(length * height, 1e-12)[:, None]
    places = np.zeros((len(base), 4, 2))
    places[:, 1:3, 0], places[:, 2:, 1] = height, length[:, None]
    split = [[0, 1, 2], [0, 2, 3]]
    sides = Shape(
        points[:, split].reshape(-1, 3, 3),
        np.broadcast_to(normal[:, None, None], (len(base), 2, 3, 3)).reshape(-1, 3, 3),
        places[:, split].reshape(-1, 3, 2),
    )
    return join([sides, _polygon(base), _polygon(base[::-1] + lifted)])


def tube(path: np.ndarray, radius: float, steps: int = 6) -> Shape:
    """A pipe or a cable along a path (N, 3), of so many steps round it."""
    along = _unit(np.gradient(path, axis=0))
    other = np.where(np.abs(along[:, 1:2]) < 0.9, [[0.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]])
    across = _unit(np.cross(along, other))
    third = np.cross(along, across)
    angles = np.linspace(0, 2 * math.pi, steps + 1)
    ring = across[:, None] * np.cos(angles)[:, None] + third[:, None] * np.sin(angles)[:, None]
    return sheet(path[:, None] + radius * ring)


def height_field(
    width: float, depth: float, height: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Shape:
    """A surface y = height(x, z) over a rectangle about the origin."""
    lines = (np.linspace(-side / 2, side / 2, 16) for side in (width, depth))
    x, z = np.meshgrid(*lines, indexing="ij")
    return sheet(np.stack([x, height(x, z), z], axis=-1), np.stack([x, z], axis=-1))


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors (..., 3) of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _circle(steps: int) -> np.ndarray:
    angles = np.linspace(0, 2 * math.pi, steps + 1)
    return np.stack([np.cos(angles), np.zeros(steps + 1), -np.sin(angles)], axis=-1)


def _slopes(points: np.ndarray, axis: int) -> np.ndarray:
    """Differences along an axis; where a grid closes or shrinks to a point, of its neighbours."""
    slopes = np.gradient(points, axis=axis)
    other = 1 - axis
    # At a pole all points of a line are one: what lies beside it tells the direction.
    for edge, beside in ((0, 1), (-1, -2)):
        here, near = np.take(slopes, [edge], other), np.take(slopes, [beside], other)
        flat = np.linalg.norm(here, axis=-1, keepdims=True) < 1e-9
        np.moveaxis(slopes, other, 0)[edge] = np.squeeze(np.where(flat, near, here), other)
    return slopes


def _lengths(points: np.ndarray, axis: int) -> np.ndarray:
    steps = np.linalg.norm(np.diff(points, axis=axis), axis=-1).mean(axis=1 - axis)
    line = np.concatenate([[0.0], steps.cumsum()])
    return np.broadcast_to(line[:, None] if axis == 0 else line[None], points.shape[:2])


def _unit_box() -> tuple[Shape, np.ndarray]:
    """A box of sides 1, and along which axes the places of each triangle run, (2, 12)."""
    low, high = np.array([-0.5, 0.0, -0.5]), np.array([0.5, 1.0, 0.5])
    sides, axes = [], []
    for axis in range(3):
        u, v = (axis + 1) % 3, (axis + 2) % 3
        for end in (low, high):
            corners = np.empty((2, 2, 3))
            corners[..., axis] = end[axis]
            corners[0, :, u], corners[1, :, u] = low[u], high[u]
            corners[:, 0, v], corners[:, 1, v] = low[v], high[v]
            sides.append(sheet(corners if end is low else corners[::-1]))
            axes += [(u, v)] * 2
    return join(sides), np.array(axes).T


_BOX, _BOX_SIDES = _unit_box()
