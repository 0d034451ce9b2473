"""A picture of a coloured point cloud, in NumPy: no window, no OpenGL."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["cloud_picture"]

_BACKGROUND = (18, 20, 26)


def cloud_picture(
    points: np.ndarray,
    colours: np.ndarray,
    *,
    focal: float,
    source_size: tuple[int, int],
    yaw: float = 12.0,
    pitch: float = 6.0,
    width: int = 1280,
    oversample: int = 2,
) -> np.ndarray:
    """Render a point cloud of one camera from beside that camera.

    The virtual camera turns about a point at the scene's typical distance, so the scene stays in
    the middle, and points nearer and farther part. Every point is drawn as a square as large as the
    patch of scene that its pixel saw, nearest in front, at ``oversample`` times the size; averaging
    down smooths the edges.

    Args:
        points: (N, 3): x right, y down, z forward, z > 0.
        colours: (N, 3) uint8 RGB.
        focal: focal length of the camera that saw the points, pixels.
        source_size: (height, width) of its image; the picture has the same shape.
        yaw, pitch: degrees that the virtual camera stands to the right of the real one, and above.
        width: of the picture, pixels.
        oversample: 1 or more.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        ValueError: the shapes differ, or there is no point in front of the camera.
    """
    points, colours = np.asarray(points, np.float32), np.asarray(colours, np.uint8)
    if points.ndim != 2 or points.shape[1:] != (3,) or points.shape != colours.shape:
        raise ValueError(
            f"points and colours are both (N, 3), got {points.shape} and {colours.shape}"
        )
    ahead = np.isfinite(points).all(axis=1) & (points[:, 2] > 0)
    if not ahead.any():
        raise ValueError("the point cloud has no point in front of the camera")
    points, colours = points[ahead], colours[ahead]

    source_height, source_width = source_size
    scale = oversample * width / source_width
    size = (max(round(source_height * scale), 1), max(round(source_width * scale), 1))
    # Points are denser where the scene is near: the median over pixels is the typical distance.
    centre = np.median(points, axis=0)
    x, y, depth = _project(points, centre, yaw, pitch)
    seen = depth > 0.05 * float(centre[2])
    x, y, depth, colours = x[seen], y[seen], depth[seen], colours[seen]
    footprint = points[seen, 2] / depth * scale  # one source pixel, seen from the new place
    columns = focal * scale * x + size[1] / 2
    rows = focal * scale * y + size[0] / 2
    picture = _splat(rows, columns, depth, footprint, colours, size)
    return _shrink(picture, oversample)


def _project(
    points: np.ndarray, centre: np.ndarray, yaw: float, pitch: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x / z, y / z and z in a camera turned about ``centre``."""
    a, b = math.radians(yaw), math.radians(pitch)
    turn = np.array([[math.cos(a), 0, -math.sin(a)], [0, 1, 0], [math.sin(a), 0, math.cos(a)]])
    tilt = np.array([[1, 0, 0], [0, math.cos(b), math.sin(b)], [0, -math.sin(b), math.cos(b)]])
    moved = (points - centre) @ (tilt @ turn).T.astype(np.float32)
    depth = moved[:, 2] + np.linalg.norm(centre)
    safe = np.maximum(depth, 1e-9)
    return moved[:, 0] / safe, moved[:, 1] / safe, depth


def _splat(
    rows: np.ndarray,
    columns: np.ndarray,
    depth: np.ndarray,
    footprint: np.ndarray,
    colours: np.ndarray,
    size: tuple[int, int],
) -> np.ndarray:
    """Paint squares with a depth buffer; each is at least as large as its footprint."""
    order = np.argsort(-depth)  # far first: of equal indices NumPy's assignment keeps the last
    rows, columns, depth = rows[order], columns[order], depth[order]
    colours, side = colours[order], np.clip(np.ceil(footprint[order] * 1.15), 1, 8).astype(int)
    top, start = np.rint(rows - side / 2).astype(int), np.rint(columns - side / 2).astype(int)
    buffer = np.full(size[0] * size[1], np.inf, dtype=np.float32)
    picture = np.empty((size[0] * size[1], 3), dtype=np.uint8)
    picture[:] = _BACKGROUND
    for dy in range(side.max()):
        for dx in range(side.max()):
            row, column = top + dy, start + dx
            drawn = (side > max(dy, dx)) & (row >= 0) & (row < size[0])
            drawn &= (column >= 0) & (column < size[1])
            index = row[drawn] * size[1] + column[drawn]
            nearest = np.full_like(buffer, np.inf)
            nearest[index] = depth[drawn]
            paint = np.zeros_like(picture)
            paint[index] = colours[drawn]
            better = nearest < buffer
            buffer[better], picture[better] = nearest[better], paint[better]
    return picture.reshape(*size, 3)


def _shrink(picture: np.ndarray, factor: int) -> np.ndarray:
    height, width = picture.shape[0] // factor, picture.shape[1] // factor
    blocks = picture[: height * factor, : width * factor].reshape(height, factor, width, factor, 3)
    return blocks.mean(axis=(1, 3), dtype=np.float32).round().astype(np.uint8)
