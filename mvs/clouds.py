"""What can be made of clouds and fused views with Open3D: thinning, normals, cropping, meshes.

Open3D is imported on first use; where it or a system library that it loads is missing, the error
says what to install.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.files import atomic_write, existing
from ..datasets.mvs.cameras import camera_centre
from ..vision.io.ply import open3d, read_ply, write_ply

__all__ = ["TSDFMesh", "crop_to_polygon", "refine_file", "voxel_thin"]

_PAIRS = 1 << 22  # of points and cameras looked at together
_NEIGHBOURS = 20  # of a point, whose plane gives its normal
_BLOCK = 16  # cells along a side of what is allocated
_STEP = 4  # Open3D looks at every fourth pixel for what to allocate
_REACH = 4.0  # cells before and behind a depth in which a mesh's distance field is kept


def voxel_thin(
    points: np.ndarray, colours: np.ndarray | None, voxel: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """Replace the points (N, 3) in each cube of a lattice by their mean, and so their colours.

    Returns:
        Points (M, 3) float64 and colours (M, 3) uint8 or None.

    Raises:
        ValueError: the side is not positive, or too small for the cloud's extent.
        ImportError: Open3D cannot be had.
    """
    if not voxel > 0:
        raise ValueError(f"the voxel's side must be positive, got {voxel:g}")
    cloud = _cloud(points, colours)
    try:
        cloud = cloud.voxel_down_sample(float(voxel))
    except RuntimeError as error:
        extent = float(np.ptp(points, axis=0).max())
        raise ValueError(
            f"voxels of {voxel:g} are too small for a cloud of extent {extent:g}"
        ) from error
    thinned = np.asarray(cloud.points).copy()
    if colours is None:
        return thinned, None
    return thinned, np.rint(np.asarray(cloud.colors) * 255).astype(np.uint8)


def refine_file(
    path: str | os.PathLike, *, voxel: float | None = None, cameras: Tensor | None = None
) -> int:
    """Thin a PLY file in place, or give it normals; the whole cloud is in memory meanwhile.

    Args:
        path: of the file.
        voxel: side of the cubes whose points become one; None leaves all.
        cameras: (V, 4, 4) world to camera; normals point to the nearest one. None: no normals.

    Returns:
        Number of points in the file.

    Raises:
        ValueError, ImportError: as `voxel_thin`.
    """
    points, colours = read_ply(path)
    if voxel is not None:
        points, colours = voxel_thin(points, colours, voxel)
    if colours is None:
        colours = np.full(points.shape, 255, np.uint8)
    with write_ply(path) as ply:
        ply.write(points, colours, None if cameras is None else _normals(points, cameras))
    return len(points)


def _normals(points: np.ndarray, cameras: Tensor) -> np.ndarray:
    """Unit normals (N, 3) float32 of points (N, 3), turned towards the nearest cameras."""
    cloud = _cloud(points, None)
    cloud.estimate_normals(open3d().geometry.KDTreeSearchParamKNN(_NEIGHBOURS))
    normals = np.asarray(cloud.normals)
    towards = _nearest(points, camera_centre(cameras.double()).cpu())
    away = ((towards - points) * normals).sum(axis=1) < 0
    return np.where(away[:, None], -normals, normals).astype(np.float32)


def crop_to_polygon(points: np.ndarray, polygon: str | os.PathLike) -> np.ndarray:
    """Return the indices of the points inside a polygon drawn out along an axis.

    Args:
        points: (N, 3).
        polygon: file of Open3D's form (JSON), as Tanks and Temples has for each scene.

    Raises:
        FileNotFoundError, ValueError: no such file, or not of that form.
        ImportError: Open3D cannot be had.
    """
    path = existing(polygon)
    library = open3d()
    with library.utility.VerbosityContextManager(library.utility.VerbosityLevel.Error):
        volume = library.visualization.read_selection_polygon_volume(str(path))
    if len(volume.bounding_polygon) < 3:
        raise ValueError(f"{path}: not a polygon of Open3D's form")
    return np.asarray(volume.crop_in_polygon(_cloud(points, None)), dtype=np.int64)


class TSDFMesh:
    """A surface from fused depth maps (Curless and Levoy, 1996), view by view, on the CPU.

    Args:
        voxel: side of its cells, in the world's unit.

    Raises:
        ValueError: the side is not positive.
        ImportError: Open3D cannot be had.
    """

    def __init__(self, voxel: float) -> None:
        if not voxel > 0:
            raise ValueError(f"the mesh's cells must have a positive side, got {voxel:g}")
        self.voxel = float(voxel)
        self._finest = math.inf
        self._library = library = open3d()
        kind = library.core.float32
        # Blocks of cells, allocated where a depth is seen; room for more is made as needed.
        self._grid = library.t.geometry.VoxelBlockGrid(
            ("tsdf", "weight", "color"),
            (kind, kind, kind),
            ((1,), (1,), (3,)),
            self.voxel,
            _BLOCK,
            1000,
            library.core.Device("CPU:0"),
        )

    def add(
        self, depth: np.ndarray, image: np.ndarray, intrinsics: Tensor, extrinsics: Tensor
    ) -> None:
        """Take in a view: depth (H, W), 0 where unknown, image (H, W, 3) uint8 and the camera.

        Nothing happens if no depth is known.
        """
        if not depth.any():
            return
        pixel = float(np.median(depth[depth > 0])) / float(intrinsics[0, 0])
        self._finest = min(self._finest, pixel)
        library = self._library
        k, e = (library.core.Tensor(m.double().cpu().numpy()) for m in (intrinsics, extrinsics))
        seen = library.t.geometry.Image(np.ascontiguousarray(depth, dtype=np.float32))
        colours = library.t.geometry.Image(np.ascontiguousarray(image, dtype=np.float32) / 255)
        limits = 1.0, 2 * float(depth.max()), _REACH  # scale, the farthest depth
        blocks = self._grid.compute_unique_block_coordinates(seen, k, e, *limits)
        # Its pixels begin, not centre, at whole numbers where depth is looked up.
        k[:2, 2] += 0.5
        self._grid.integrate(blocks, seen, colours, k, k, e, *limits)

    def write(self, path: str | os.PathLike) -> int:
        """Write the surface as a coloured PLY mesh; return its number of triangles.

        Raises:
            ValueError: there is no surface.

        Warns (``UserWarning``) where cells are so small that it falls into pieces.
        """
        if _BLOCK * self.voxel < _STEP * self._finest < math.inf:
            warnings.warn(
                f"{path}: in cells of {self.voxel:g} the surface falls into pieces: a pixel covers "
                f"{self._finest:.2g}; take cells of about that size",
                stacklevel=2,
            )
        try:
            mesh = self._grid.extract_triangle_mesh(weight_threshold=0.5).to_legacy()
        except RuntimeError:  # of an empty grid
            mesh = self._library.geometry.TriangleMesh()
        if len(mesh.triangles) == 0:
            raise ValueError(f"{path}: no surface in cells of {self.voxel:g}; choose another size")
        mesh.compute_vertex_normals()
        # Of white a mean is a little above 1, which Open3D would tell on standard output.
        colours = np.asarray(mesh.vertex_colors).clip(0, 1)
        mesh.vertex_colors = self._library.utility.Vector3dVector(colours)
        with atomic_write(path) as temporary:
            if not self._library.io.write_triangle_mesh(str(temporary), mesh):
                raise OSError(f"{path}: Open3D could not write the mesh")
        return len(mesh.triangles)


def _nearest(points: np.ndarray, centres: Tensor) -> np.ndarray:
    """Return for each point, (N, 3), the nearest of the centres (V, 3) float64."""
    # Without matrix products, which lose digits far from the origin.
    nearest = [
        torch.cdist(part.double(), centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        for part in torch.from_numpy(np.asarray(points)).split(max(1, _PAIRS // len(centres)))
    ]
    return centres[torch.cat(nearest)].numpy()


def _cloud(points: np.ndarray, colours: np.ndarray | None) -> Any:
    library = open3d()
    vector = library.utility.Vector3dVector
    cloud = library.geometry.PointCloud(vector(np.asarray(points, dtype=np.float64)))
    if colours is not None:
        cloud.colors = vector(colours / 255.0)
    return cloud
