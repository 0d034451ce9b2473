"""Writing coloured point clouds, through Open3D (imported on first use: it takes a second)."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import numpy as np

from ...common.files import atomic_write
from ...common.system import missing_library

__all__ = ["open3d", "write_point_cloud"]


def open3d() -> ModuleType:
    """Import Open3D.

    Raises:
        ImportError: it is not installed, or a system library that it needs is missing; the message
            says what to install.
    """
    try:
        import open3d
    except ModuleNotFoundError as error:
        raise ImportError(
            f"point clouds and meshes need Open3D ({error}): pip install open3d-cpu, or open3d"
        ) from error
    except (ImportError, OSError) as error:
        remedy = missing_library(error)
        raise ImportError(
            f"Open3D cannot be loaded ({error})" + (f"; {remedy}" if remedy else "")
        ) from error
    return open3d


def write_point_cloud(path: str | os.PathLike, points: np.ndarray, colours: np.ndarray) -> None:
    """Write a binary PLY file (or .pcd, .xyzrgb, as the suffix says), atomically.

    Args:
        path: the file to write.
        points: (N, 3) finite coordinates: x right, y down, z forward, in the unit of the depth.
        colours: (N, 3) uint8 RGB.

    Raises:
        ValueError: the shapes differ, a coordinate is not finite, or there is no point.
        ImportError: Open3D cannot be had.
        OSError: the file cannot be written.
    """
    path = Path(path)
    points, colours = np.asarray(points, dtype=np.float64), np.asarray(colours)
    if points.ndim != 2 or points.shape[1] != 3 or points.shape != colours.shape:
        raise ValueError(
            f"{path}: points and colours are both (N, 3), got {points.shape} and {colours.shape}"
        )
    if colours.dtype != np.uint8 or len(points) == 0 or not np.isfinite(points).all():
        raise ValueError(
            f"{path}: a point cloud has at least one point, finite coordinates and uint8 colours"
        )
    library = open3d()
    cloud = library.geometry.PointCloud(library.utility.Vector3dVector(points))
    cloud.colors = library.utility.Vector3dVector(colours / 255.0)
    with atomic_write(path) as temporary:
        if not library.io.write_point_cloud(str(temporary), cloud, write_ascii=False):
            raise OSError(f"{path}: Open3D could not write the point cloud")
