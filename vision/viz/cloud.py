"""Pictures of a coloured point cloud: no window, no OpenGL."""

from __future__ import annotations

import math

import cv2
import numpy as np

__all__ = ["cloud_picture", "inside_picture", "points_ahead"]

_BACKGROUND = (18, 20, 26)
_OVERSAMPLE = 2  # squares are drawn at this many times the size, then averaged
_LARGEST = 24  # side of a square, pixels
_NOWHERE = np.float32(3e38)  # depth of a pixel that nothing was painted on
_YAW, _PITCH = 8.0, 4.0  # degrees that the virtual camera stands to the right and above


def cloud_picture(
    points: np.ndarray,
    colours: np.ndarray,
    *,
    source_focal: float,
    source_size: tuple[int, int],
    width: int = 1280,
) -> np.ndarray:
    """Render the point cloud that one camera saw from beside that camera.

    The virtual camera turns about a point at the distance of the scene's nearer part and zooms so
    that nearly all of the cloud is in view. Every point is drawn as a square as large as the patch
    that its pixel saw, the nearest in front; gaps of a pixel or two in a surface are closed.

    Args:
        points: (N, 3): x right, y down, z forward, z > 0.
        colours: (N, 3) uint8 RGB.
        source_focal: focal length of the camera that saw the points, pixels.
        source_size: (height, width) of its image.
        width: of the picture, pixels; its height follows the cloud's, up to the width.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        ValueError: the shapes differ, or there is no point in front of the camera.
    """
    points, colours = points_ahead(points, colours)
    distance = float(np.percentile(points[:, 2], 30))
    x, y, depth = _project(points, distance)
    seen = depth > 0.05 * distance
    x, y, depth, colours = x[seen], y[seen], depth[seen], colours[seen]
    left, right, top, bottom = _frame(x, y, source_size[1] / source_focal)
    zoom = _OVERSAMPLE * width / (right - left)  # pixels for a slope of 1
    height = round(min((bottom - top) / (right - left), 1.0) * width)
    footprint = zoom / source_focal * points[seen, 2] / depth
    rows = (y - (top + bottom) / 2) * zoom + _OVERSAMPLE * height / 2
    return _paint(rows, (x - left) * zoom, depth, footprint, colours, (height, width))


def points_ahead(points: np.ndarray, colours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points, (N, 3) float32, that lie in front of the camera, and their colours, uint8.

    Raises:
        ValueError: the shapes differ, or there is no such point.
    """
    points, colours = np.asarray(points, np.float32), np.asarray(colours, np.uint8)
    if points.ndim != 2 or points.shape[1:] != (3,) or points.shape != colours.shape:
        raise ValueError(
            f"points and colours are both (N, 3), got {points.shape} and {colours.shape}"
        )
    ahead = np.isfinite(points).all(axis=1) & (points[:, 2] > 0)
    if not ahead.any():
        raise ValueError("the point cloud has no point in front of the camera")
    return points[ahead], colours[ahead]


def inside_picture(
    points: np.ndarray,
    colours: np.ndarray,
    *,
    patches: np.ndarray,
    eye: tuple[float, float, float],
    size: tuple[int, int],
) -> np.ndarray:
    """Render a point cloud as a camera sees it that stands within it and looks along z, 90° wide.

    Args:
        points: (N, 3): x right, y down, z forward.
        colours: (N, 3) uint8 RGB.
        patches: (N,): how wide the piece of surface is that each stands for, in the points' unit.
        eye: where the camera stands.
        size: (height, width) of the picture.

    Returns:
        (height, width, 3) uint8 RGB.

    Raises:
        ValueError: the shapes differ.
    """
    points, colours = np.asarray(points, np.float32), np.asarray(colours, np.uint8)
    if points.shape != (len(patches), 3) or points.shape != colours.shape:
        raise ValueError(
            "points and colours are both (N, 3) and patches (N,), got "
            f"{points.shape}, {colours.shape} and {np.shape(patches)}"
        )
    moved = points - np.asarray(eye, np.float32)
    seen = moved[:, 2] > 1e-3 * np.median(np.abs(moved[:, 2]))
    (x, y, depth), colours = moved[seen].T, colours[seen]
    height, width = (_OVERSAMPLE * side for side in size)
    focal = width / 2 / math.tan(math.radians(45))
    rows, columns = y / depth * focal + height / 2, x / depth * focal + width / 2
    footprint = focal * np.asarray(patches)[seen] / depth
    return _paint(rows, columns, depth, footprint, colours, size)


def _project(points: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x / z, y / z and z in a camera turned about the point ``distance`` ahead."""
    a, b = math.radians(_YAW), math.radians(_PITCH)
    turn = np.array([[math.cos(a), 0, -math.sin(a)], [0, 1, 0], [math.sin(a), 0, math.cos(a)]])
    tilt = np.array([[1, 0, 0], [0, math.cos(b), -math.sin(b)], [0, math.sin(b), math.cos(b)]])
    centre = np.array([0, 0, distance], np.float32)
    moved = (points - centre) @ (tilt @ turn).T.astype(np.float32) + centre
    safe = np.maximum(moved[:, 2], 1e-6 * distance)
    return moved[:, 0] / safe, moved[:, 1] / safe, moved[:, 2]


def _frame(x: np.ndarray, y: np.ndarray, field: float) -> tuple[float, float, float, float]:
    """Return left, right, top and bottom slopes that hold nearly every point.

    ``field`` is the real camera's width in slopes: the view is not less than half of it, so that a
    small object is not blown up, and its height is at least a quarter of its width.
    """
    left, right = (float(v) for v in np.percentile(x, (0.5, 99.5)))
    top, bottom = (float(v) for v in np.percentile(y, (0.5, 99.5)))
    half = max((right - left) / 2 * 1.02, field / 4)
    tall = max((bottom - top) / 2 * 1.02, half / 4)
    middle, level = (left + right) / 2, (top + bottom) / 2
    return middle - half, middle + half, level - tall, level + tall


def _paint(
    rows: np.ndarray,
    columns: np.ndarray,
    depth: np.ndarray,
    footprint: np.ndarray,
    colours: np.ndarray,
    size: tuple[int, int],
) -> np.ndarray:
    """Paint squares, at places and in sizes of `_OVERSAMPLE`, the nearest in front: (H, W, 3)."""
    whole, size = size, (_OVERSAMPLE * size[0], _OVERSAMPLE * size[1])
    side = np.clip(np.ceil(footprint * 1.2), 1, _LARGEST).astype(int)
    # A margin as wide as a square takes what sticks out.
    corners = []
    for middle, length in zip((rows, columns), size, strict=True):
        middle = np.clip(middle, -2 * _LARGEST, length + 2 * _LARGEST)  # safe to convert
        corners.append(np.rint(middle - side / 2).astype(int) + _LARGEST)
    top, start = corners
    wide, high = size[1] + 2 * _LARGEST, size[0] + 2 * _LARGEST
    inside = (np.minimum(top, start) >= 0) & (top < high - _LARGEST) & (start < wide - _LARGEST)
    order = np.flatnonzero(inside)
    order = order[np.argsort(-depth[order])]  # far first: NumPy's assignment keeps the last
    place, side = (top * wide + start)[order], side[order]
    exact = np.float32 if len(order) < 2**24 else np.float64
    owner = np.zeros((high, wide), exact)  # 1 + which square of that order; 0: none
    for length in np.unique(side):
        member = np.flatnonzero(side == length)
        alike = np.zeros_like(owner)
        alike.ravel()[place[member]] = member + 1
        # Each corner's number, and where several meet the largest, spread to the right and down.
        square, corner = np.ones((length, length), np.uint8), (int(length) - 1,) * 2
        np.maximum(owner, cv2.dilate(alike, square, anchor=corner), out=owner)
    margin = slice(_LARGEST, -_LARGEST)
    chosen = owner[margin, margin].astype(int)
    painted = np.concatenate((np.array([_BACKGROUND], np.uint8), colours[order]))[chosen]
    depths = np.append(_NOWHERE, depth[order]).astype(np.float32)[chosen]
    for _ in range(2):
        painted, depths = _close_gaps(painted, depths)
    return cv2.resize(painted, whole[::-1], interpolation=cv2.INTER_AREA)


def _close_gaps(picture: np.ndarray, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill pixels that lie well behind most of their 5x5 neighbourhood with that surface's mean."""
    surface = cv2.medianBlur(buffer, 5)
    gap = buffer > 1.08 * surface
    front = (~gap).astype(np.uint8)
    weight, total = (
        cv2.boxFilter(values, cv2.CV_32F, (5, 5), normalize=False)
        for values in (front, picture * front[:, :, None])
    )
    fill = gap & (weight > 0)
    picture, buffer = picture.copy(), buffer.copy()
    picture[fill] = np.rint(total[fill] / weight[fill][:, None]).astype(np.uint8)
    buffer[fill] = surface[fill]
    return picture, buffer
