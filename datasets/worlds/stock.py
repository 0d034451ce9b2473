"""What worlds are made of beside what is drawn: photographs, meshes and surroundings of folders."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...vision.io.images import read_image, to_bytes
from ...vision.io.ply import open3d
from ..draws import Draws
from .materials import TextureBank, files_of, texture_bank
from .shapes import Shape

__all__ = ["Stock", "fingerprint", "stock"]

_TRIANGLES = 6000  # of a mesh; more are merged
_HEIGHT = 512  # pixels of surroundings


class Stock(NamedTuple):
    """Materials of worlds."""

    textures: TextureBank  #: for surfaces
    meshes: tuple[Shape, ...] = ()  #: each standing on y = 0 about the origin, its largest side 1
    panoramas: tuple[Tensor, ...] = ()  #: of surroundings, (H, 2H, 3) uint8


@lru_cache(maxsize=4)
def stock(
    textures: str | None = None, meshes: str | None = None, panoramas: str | None = None
) -> Stock:
    """The stock of this process, of three folders.

    Args:
        textures: of photographs for surfaces; None: drawn textures alone.
        meshes: of .glb, .obj, .ply or .stl files; None: built things alone.
        panoramas: of equirectangular pictures, seen where the sky is; None: a drawn sky.

    Raises:
        FileNotFoundError: no such folder, or nothing of the kind in it.
    """
    shapes = [_mesh(path) for path in files_of("meshes", meshes)]
    around = [_surroundings(path) for path in files_of("panoramas", panoramas)]
    return Stock(texture_bank(textures), tuple(shapes), tuple(around))


@lru_cache(maxsize=4)
def fingerprint(**folders: str | None) -> str:
    """A word that changes with what lies in the folders of `stock`: names and contents.

    As the stock, it is this process's.

    Raises:
        FileNotFoundError: no such folder, or nothing of the kind in it.
    """
    if not any(folders.values()):
        return "drawn"
    listed = [
        f"{kind}/{path.relative_to(folder).as_posix()} {blake2b(path.read_bytes()).hexdigest()}"
        for kind, folder in folders.items()
        if folder is not None
        for path in files_of(kind, folder)
    ]
    return f"{Draws(*listed).bits():016x}"


def _mesh(path: Path) -> Shape:
    o3d = open3d()
    mesh = o3d.geometry.TriangleMesh()
    with o3d.utility.VerbosityContextManager(o3d.utility.VerbosityLevel.Error):
        if path.suffix.lower() == ".ply":  # which is not read as a model
            mesh = o3d.io.read_triangle_mesh(str(path))
        else:  # as one mesh, polygons of more than three sides would be lost
            for part in o3d.io.read_triangle_model(str(path)).meshes:
                mesh += part.mesh
    if not mesh.has_triangles():
        raise ValueError(f"meshes: {path}: no triangle in it")
    if len(mesh.triangles) > _TRIANGLES:
        mesh.triangle_uvs.clear()
        mesh = mesh.simplify_quadric_decimation(_TRIANGLES)
    mesh.merge_close_vertices(1e-6)
    mesh.compute_vertex_normals()
    faces, points = np.asarray(mesh.triangles), np.asarray(mesh.vertices)
    low, high = points.min(axis=0), points.max(axis=0)
    foot = np.array([(low[0] + high[0]) / 2, low[1], (low[2] + high[2]) / 2])
    points = ((points - foot) / max((high - low).max(), 1e-9))[faces]
    flat = np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0])
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-20)
    # Where both sides of a leaf are meshed, or at a sharp edge, the mean says nothing.
    normals = np.asarray(mesh.vertex_normals)[faces]
    agree = (normals * flat[:, None]).sum(axis=-1, keepdims=True) > 0.7
    normals = np.where(agree, normals, flat[:, None])
    # The texture is laid on from the side that a triangle faces most.
    axes = np.array([[2, 1], [0, 2], [0, 1]])[np.abs(flat).argmax(axis=1)]
    places = np.take_along_axis(points, axes[:, None].repeat(3, axis=1), axis=2)
    return Shape(points, normals, places)


def _surroundings(path: Path) -> Tensor:
    picture = Image.fromarray(to_bytes(read_image(path)))
    width, height = picture.size
    if width != 2 * height:
        raise ValueError(f"panoramas: {path}: {height}x{width} pixels: want twice as wide as high")
    small = picture.resize((2 * _HEIGHT, _HEIGHT), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(small))
