"""Matterport3D, stitched skyboxes (Chang et al., 3DV 2017; stitching of Jiang et al., RA-L 2021).

As the stitching program leaves it::

    <house>/pano_skybox_color/<32 hex>.jpg
    <house>/pano_depth/<32 hex>.png

Depth is the distance from the camera's centre, 16 bits, 4000 to a metre (16.38 m at most); 0 is
unknown, as it is near the poles. The stitching scales depth by the image's size instead of the
focal length, a small bias that is in all published scores. Size 1024x2048; programs use 512x1024.
"""

from __future__ import annotations

from .base import ListedPanoramas

__all__ = ["Matterport3D"]


class Matterport3D(ListedPanoramas):
    """Matterport3D by its lists; arguments as of `ListedPanoramas`."""

    title = "Matterport3D"
    unit, unknown = 4000, 0
