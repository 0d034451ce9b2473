"""A point cloud to turn by mouse, finger or key in an HTML page."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from ...vision.viz.cloud import points_ahead


def cloud_view(
    points: np.ndarray,
    colours: np.ndarray,
    *,
    focal: float,
    size: tuple[int, int],
    caption: str,
    most: int = 200_000,
) -> dict[str, Any]:
    """What ``page.html`` draws the cloud from that one camera saw, at first from where it stood.

    The view turns about a point at the distance of the median point. The data, in base 64, are
    coordinates in 1/65535 of the cloud's extent as uint16, then colours: nine bytes a point.

    Args:
        points: (N, 3): x right, y down, z forward, z > 0.
        colours: (N, 3) uint8 RGB.
        focal: of the camera that saw them, pixels.
        size: (height, width) of its image.
        caption: text below the view.
        most: points; of more an even sample is shown, each drawn larger, which the caption says.
    """
    points, colours = points_ahead(points, colours)
    spacing = 1 / focal
    if len(points) > most:
        spacing *= (len(points) / most) ** 0.5
        chosen = _spread(points, most, spacing)
        caption = f"{caption} {len(chosen):,} of {len(points):,} points are shown."
        points, colours = points[chosen], colours[chosen]
    low, high = points.min(axis=0), points.max(axis=0)
    extent = np.maximum(high - low, 1e-9)
    placed = np.rint((points - low) / extent * 65535).astype("<u2")
    data = base64.b64encode(placed.tobytes() + colours.tobytes()).decode()
    height, width = size
    numbers = {
        "count": len(points),
        "field": f"{width / focal:.6g}",
        "middle": f"{np.median(points[:, 2]):.6g}",
        "spacing": f"{spacing:.6g}",
        "aspect": f"{width / height:.6g}",
        "low": json.dumps(low.tolist()),
        "high": json.dumps(high.tolist()),
    }
    return {"numbers": numbers, "data": data, "size": size, "caption": caption}


def _spread(points: np.ndarray, most: int, spacing: float) -> np.ndarray:
    """Indices of at most ``most`` points, evenly spread over the camera's image, in mixed order."""
    mixed = np.random.default_rng(0).permutation(len(points))
    if len(points) < 2 * most:
        return mixed[:most]  # one in each cell would leave out whole rows
    cells = np.floor(points[mixed, :2] / points[mixed, 2:] / spacing).astype(np.int64)
    cells -= cells.min(axis=0)
    _, first = np.unique(cells[:, 1] * (cells[:, 0].max() + 1) + cells[:, 0], return_index=True)
    return mixed[np.sort(first)][:most]
