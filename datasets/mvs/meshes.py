"""Scenes of meshes, cast by Open3D: a second source, for shapes that the generator lacks.

Open3D's ray caster needs neither a display nor a GPU. It is imported on first use; where it is
missing the error says what to install (on a bare Debian also ``apt-get install libusb-1.0-0``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...vision.io.pointcloud import open3d
from ..draws import Draws
from .generator import colours_at, draw_looks, scene_of_renderings
from .rig import ring_of_cameras
from .scene import Scene
from .shapes import Plate, cast

__all__ = ["mesh_scene"]

# In radii of the meshes: they then fill the photographs, and look at by the harmonic mean.
_NEAR, _FAR = 2.2, 7.5
_BACKGROUND = 0.82  # of the far limit


def mesh_scene(
    meshes: Sequence[str | os.PathLike | tuple[np.ndarray, np.ndarray]],
    views: int = 5,
    height: int = 256,
    width: int = 320,
    *,
    seed: int = 0,
    supersample: int = 2,
    name: str | None = None,
) -> Scene:
    """Photograph meshes before a background, with exact depth and solid textures.

    Args:
        meshes: files that Open3D reads (PLY, OBJ, STL, GLB, ...), or vertices (N, 3) with triangles
            (M, 3). Their coordinates are the world's.
        views: number of photographs, 2 at least.
        height: of each, pixels.
        width: of each, pixels.
        seed: of the cameras and the textures.
        supersample: rays along each side of a pixel whose colours are averaged.
        name: of the scene; None: ``mesh-`` and the seed.

    Raises:
        FileNotFoundError: a file is not there.
        ImportError: Open3D cannot be had; the message says how to get it.
        ValueError: a mesh has no triangle, or an argument is out of its bounds.
    """
    if not meshes or views < 2 or min(height, width) < 8 or supersample < 1:
        raise ValueError(
            f"{len(meshes)} meshes, {views} views, {width}x{height} pixels, supersample "
            f"{supersample}: want at least 1, 2, 8x8 and 1"
        )
    library = open3d()
    loaded = [_load(library, mesh) for mesh in meshes]
    corners = np.concatenate([vertices for vertices, _ in loaded])
    centre = (corners.min(axis=0) + corners.max(axis=0)) / 2
    radius = float(np.linalg.norm(corners - centre, axis=1).max())
    draws = Draws("mesh", seed)
    near, far = _NEAR * radius, _FAR * radius
    cameras = ring_of_cameras(draws, views, height, width, near, far, centre)
    # In the rig's frame, as the generator's own shapes.
    places = [(vertices - cameras.shift) @ cameras.turn for vertices, _ in loaded]
    caster = library.t.geometry.RaycastingScene()
    for place, (_, triangles) in zip(places, loaded, strict=True):
        caster.add_triangles(
            np.ascontiguousarray(place, np.float32), np.ascontiguousarray(triangles, np.uint32)
        )
    wall = Plate(np.array([0, 0, _BACKGROUND * far]), np.diag([1.0, 1.0, -1.0]))
    origins = np.array([place.mean(axis=0) for place in places] + [wall.centre])
    looks = draw_looks(draws, origins, origins[:, 2] / cameras.intrinsics[0, 0, 0])
    steps = (np.arange(supersample) + 0.5) / supersample - 0.5
    rendered = []
    for index in range(views):
        origin, turn = cameras.view(index)
        x, y = np.arange(width, dtype=float), np.arange(height, dtype=float)
        depth = _cast(caster, wall, origin, turn, x, y)[0]
        total = np.zeros((3, height * width), np.float32)
        for step_y in steps:
            for step_x in steps:
                found = _cast(caster, wall, origin, turn, x + step_x, y + step_y)
                total += colours_at(looks, origin, found[2], found[0].ravel(), found[1].ravel())
        image = np.floor(total * np.float32(255 / supersample**2) + np.float32(0.5))
        rendered.append((image.astype(np.uint8).T.reshape(height, width, 3), depth))
    name = f"mesh-{seed}" if name is None else name
    return scene_of_renderings(name, cameras, rendered, near, far)


def _load(library: object, mesh: object) -> tuple[np.ndarray, np.ndarray]:
    where = "mesh"
    if isinstance(mesh, (str, os.PathLike)):
        where = str(mesh)
        if not Path(mesh).is_file():
            raise FileNotFoundError(f"{mesh}: no such mesh")
        read = library.io.read_triangle_mesh(os.fspath(mesh))
        mesh = np.asarray(read.vertices), np.asarray(read.triangles)
    vertices, triangles = (np.asarray(each) for each in mesh)
    if vertices.ndim != 2 or vertices.shape[1:] != (3,) or not len(triangles):
        raise ValueError(f"{where}: not a mesh with triangles")
    if not np.isfinite(vertices).all() or triangles.min() < 0 or triangles.max() >= len(vertices):
        raise ValueError(f"{where}: a vertex is not finite, or a triangle's is not there")
    return vertices.astype(np.float64), triangles


def _cast(
    caster: object, wall: Plate, origin: np.ndarray, turn: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return depth (H, W) float32, the number of what is hit (H, W) int32, rays (3, N) float32."""
    depth, _, rays = cast([wall], origin, turn, x, y)
    rays = np.stack([ray.ravel() for ray in rays]).astype(np.float32)
    packed = np.empty((*depth.shape, 6), np.float32)
    packed[..., :3] = origin
    packed[..., 3:] = rays.T.reshape(*depth.shape, 3)
    found = caster.cast_rays(packed)
    hit, which = found["t_hit"].numpy(), found["geometry_ids"].numpy()
    # Whatever lies behind the wall is not seen; the wall's number comes after the meshes'.
    closer = hit < depth
    last = np.iinfo(np.int32).max
    which = np.where(closer, np.minimum(which, last), -1).astype(np.int32)
    return np.where(closer, hit, depth).astype(np.float32), which, rays
