"""Stanford2D3D, equirectangular part (Armeni et al., arXiv 1702.01105).

As published::

    area_1/pano/rgb/camera_<32 hex>_<room>_<n>_frame_equirectangular_domain_rgb.png
    area_1/pano/depth/camera_<32 hex>_<room>_<n>_frame_equirectangular_domain_depth.png

Depth is the distance from the camera's centre, 16 bits, 512 to a metre; 65535 is unknown. Both
poles are black. Size 2048x4096; programs use 512x1024, areas 1, 2, 3, 4 and 6 to train and 5a and
5b to test. The lists say where files are; no folder is assumed.
"""

from __future__ import annotations

from .base import ListedPanoramas

__all__ = ["Stanford2D3D"]


class Stanford2D3D(ListedPanoramas):
    """Stanford2D3D by its lists; arguments as of `ListedPanoramas`."""

    title = "Stanford2D3D"
    unit, unknown = 512, 65535
