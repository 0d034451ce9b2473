"""A point cloud to turn by mouse, finger or key, as a piece of an HTML page (see `page`)."""

from __future__ import annotations

import base64
import html
import json

import numpy as np

from ...vision.viz.cloud import points_ahead

__all__ = ["cloud_viewer"]


def cloud_viewer(
    points: np.ndarray,
    colours: np.ndarray,
    *,
    focal: float,
    size: tuple[int, int],
    caption: str,
    most: int = 200_000,
) -> str:
    """The point cloud that one camera saw, at first from where that camera stood.

    The view turns about a point at the distance of the median point. Nine bytes a point
    are kept: coordinates to 1/65535 of the cloud's extent, colours exactly.

    Args:
        points: (N, 3): x right, y down, z forward, z > 0.
        colours: (N, 3) uint8 RGB.
        focal: of the camera that saw them, pixels.
        size: (height, width) of its image.
        caption: text below the view.
        most: points; of more an even sample is shown, each drawn larger, which the caption says.

    Raises:
        ValueError: the shapes differ, or there is no point in front of the camera.
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
        "low": json.dumps([float(v) for v in low]),
        "high": json.dumps([float(v) for v in high]),
    }
    stored = " ".join(f'data-{name}="{value}"' for name, value in numbers.items())
    text = html.escape(caption)
    return (
        f'<figure class="cloud" {stored}>'
        f'<canvas tabindex="0" role="img" aria-label="{text}" '
        f'style="aspect-ratio: {width} / {height}"></canvas>'
        f'<script type="text/plain">{data}</script>'
        f"<noscript><p>The point cloud needs JavaScript.</p></noscript>"
        f"<figcaption>{text}</figcaption></figure>"
    )


def _spread(points: np.ndarray, most: int, spacing: float) -> np.ndarray:
    """Indices of at most ``most`` points, evenly spread over the camera's image, in mixed order."""
    mixed = np.random.default_rng(0).permutation(len(points))
    if len(points) < 2 * most:
        return mixed[:most]  # one in each cell would leave out whole rows
    cells = np.floor(points[mixed, :2] / points[mixed, 2:] / spacing).astype(np.int64)
    cells -= cells.min(axis=0)
    _, first = np.unique(cells[:, 1] * (cells[:, 0].max() + 1) + cells[:, 0], return_index=True)
    return mixed[np.sort(first)][:most]
