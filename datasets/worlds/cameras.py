"""What cameras see of a world: colour, depth and normals by pixel, smooth at edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .world import World

__all__ = ["View", "frame", "pinhole_rays", "render"]

_JUMP = 0.03  # relative step of depth that counts as an edge
_FOLD = 0.9  # cosine between normals below which an edge is seen
_FINE = 2  # rays along each side of a pixel on an edge


@dataclass(frozen=True)
class View:
    """A picture of a world with what is known of each pixel's centre.

    Attributes:
        colour: (H, W, 3) float32, linear radiance.
        distance: (H, W) float32, along the ray, infinite for the sky.
        normal: (H, W, 3) float32, in the world's frame, towards the camera.
        instance: (H, W) int64, 0 for the sky.
    """

    colour: np.ndarray
    distance: np.ndarray
    normal: np.ndarray
    instance: np.ndarray


def frame(gaze: np.ndarray, roll: float = 0.0) -> np.ndarray:
    """Axes of a camera, (3, 3): right, down and ahead in the world's frame, whose y points up.

    Args:
        gaze: (3,), where it looks, not straight up or down.
        roll: about the gaze, radians.
    """
    ahead = gaze / np.linalg.norm(gaze)
    right = np.cross(ahead, (0.0, 1.0, 0.0))
    right = -right / np.linalg.norm(right)
    down = np.cross(right, ahead)
    cos, sin = np.cos(roll), np.sin(roll)
    return np.stack([cos * right + sin * down, cos * down - sin * right, ahead])


def pinhole_rays(
    height: int, width: int, focal: float, axes: np.ndarray, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Unit directions (N, 3) of places on an image whose middle is the principal point.

    Args:
        height, width: of the image, pixels.
        focal: pixels.
        axes: of `frame`.
        x, y: (N,) pixel coordinates, whole numbers at centres.
    """
    local = np.stack(
        [(x - (width - 1) / 2) / focal, (y - (height - 1) / 2) / focal, np.ones(len(x))]
    )
    rays = local.T @ axes
    return (rays / np.linalg.norm(rays, axis=1, keepdims=True)).astype(np.float32)


def render(
    world: World, eye: np.ndarray, axes: np.ndarray, height: int, width: int, focal: float
) -> View:
    """Take a picture with a pinhole camera.

    Args:
        world: what to look at.
        eye: (3,), where the camera stands.
        axes: of `frame`.
        height, width: pixels.
        focal: pixels.
    """
    rows, columns = np.divmod(np.arange(height * width), width)
    rays = pinhole_rays(height, width, focal, axes, columns, rows)
    colours, hits = world.colours(eye, rays, 1 / focal)
    shape = (height, width)
    distance, normal = hits.distance.reshape(shape), hits.normal.reshape(*shape, 3)
    instance = hits.instance.reshape(shape)
    edges = np.flatnonzero(_edges(distance, normal, instance))
    if len(edges):
        steps = (np.arange(_FINE) + 0.5) / _FINE - 0.5
        dy, dx = (step.ravel() for step in np.meshgrid(steps, steps, indexing="ij"))
        x = (columns[edges, None] + dx).ravel()
        y = (rows[edges, None] + dy).ravel()
        fine, _ = world.colours(eye, pinhole_rays(height, width, focal, axes, x, y), 1 / focal)
        # A highlight would outshine all else in the mean.
        colours[edges] = np.minimum(fine, 1.5).reshape(len(edges), -1, 3).mean(axis=1)
    colour = colours.reshape(*shape, 3).astype(np.float32)
    return View(colour, distance, normal.astype(np.float32), instance)


def _edges(distance: np.ndarray, normal: np.ndarray, instance: np.ndarray) -> np.ndarray:
    """Pixels that differ from a neighbour, (H, W) bool."""
    near = 1 / distance  # 0 for the sky
    marked = np.zeros(distance.shape, bool)
    for axis in (0, 1):
        one, other = _pair(near, axis), _pair(near, axis, last=True)
        step = np.abs(one - other) > _JUMP * np.maximum(one, other)
        step |= _pair(instance, axis) != _pair(instance, axis, last=True)
        step |= (_pair(normal, axis) * _pair(normal, axis, last=True)).sum(axis=-1) < _FOLD
        for last in (False, True):
            part = _pair(marked, axis, last=last)
            part |= step
    return marked


def _pair(values: np.ndarray, axis: int, last: bool = False) -> np.ndarray:
    index = [slice(None)] * values.ndim
    index[axis] = slice(1, None) if last else slice(None, -1)
    return values[tuple(index)]
