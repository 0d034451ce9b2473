"""Depth on faces as a coloured point cloud, or as a triangle mesh."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .mesh import kept, level_of, spherical_mesh
from .sampling import centroids, vertex_values

__all__ = ["TriangleMesh", "point_cloud", "right_handed", "triangle_mesh"]


class TriangleMesh(NamedTuple):
    """A surface.

    Attributes:
        vertices: (V, 3), x right, y up, z forward, in the depth's unit.
        triangles: (T, 3) int64, counter-clockwise seen from outside the sphere; whoever stands
            in the camera sees their backs.
        colours: of the vertices, (V, 3), RGB in [0, 1].
    """

    vertices: Tensor
    triangles: Tensor
    colours: Tensor


def point_cloud(depth: Tensor) -> Tensor:
    """A point for each face, at its depth along its centroid; the face's colour is the point's.

    Args:
        depth: (N, F), F of any level.

    Returns:
        (N, F, 3): x right, y up, z forward, the camera in the origin, in the depth's unit.
    """
    looks = centroids(level_of(depth.shape[1]), depth.device)
    return depth[..., None] * looks.to(depth.dtype)


def right_handed(points: Tensor) -> Tensor:
    """Points (…, 3) with z backward instead of forward, for files and programs of 3D data.

    x right, y up, z forward are left-handed axes, in which those would show the scene mirrored.
    Triangles that show their backs to the camera show their fronts then.
    """
    return points * points.new_tensor([1, 1, -1])


def triangle_mesh(depth: Tensor, colours: Tensor, max_ratio: float | None = 1.5) -> TriangleMesh:
    """The faces of the sphere, their vertices moved to the depth around them.

    Args:
        depth: (F,), above 0, F of any level.
        colours: (F, 3), RGB in [0, 1].
        max_ratio: leave out triangles whose furthest vertex is more than so many times as far as
            the nearest: they would span from an object to what is behind it. None keeps all.

    Returns:
        The surface, with the vertices that its triangles use.

    Raises:
        ValueError: the shapes do not belong together, or `max_ratio` is below 1.
    """
    if depth.dim() != 1 or colours.shape != (*depth.shape, 3):
        raise ValueError(
            f"depth must be (F,) and colours (F, 3), got {tuple(depth.shape)} and "
            f"{tuple(colours.shape)}"
        )
    if max_ratio is not None and max_ratio < 1:
        raise ValueError(f"max_ratio {max_ratio}: must be at least 1, or None")
    mesh = spherical_mesh(level_of(len(depth)))
    both = torch.cat((depth[:, None], colours.to(depth.dtype)), 1)
    values = vertex_values(both[None])[0]
    far, shades = values[:, 0], values[:, 1:].clamp(0, 1)
    points = far[:, None] * kept(mesh.vertices, depth.device).to(depth.dtype)
    triangles = kept(mesh.faces, depth.device).long()
    if max_ratio is not None:
        corners = far[triangles]
        triangles = triangles[corners.amax(1) <= max_ratio * corners.amin(1)]
        used, triangles = triangles.unique(return_inverse=True)
        points, shades = points[used], shades[used]
    return TriangleMesh(points, triangles, shades)
