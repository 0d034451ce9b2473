"""Between an equirectangular image and the faces of the spherical mesh, both ways.

Pixel (row i, column j) of H x W looks along longitude λ = ((j + ½) / W − ½) 2π and latitude
φ = (½ − (i + ½) / H) π, that is (cos φ sin λ, sin φ, cos φ cos λ), the convention of UniFuse (Jiang
et al., RA-L 2021). Columns wrap; above the top row lies the top row again, half a turn away, and
likewise below. How SphereDepth ties the panorama to its mesh is not known beyond its abstract: the
samplings here are our own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..datasets.files import check_choice
from ..vision.ops._registration import exporting
from .mesh import face_count, kept, level_of, spherical_mesh

__all__ = [
    "barycentric",
    "equirectangular_to_faces",
    "face_labels",
    "faces_to_equirectangular",
    "locate",
    "pixel_directions",
    "sample_equirectangular",
    "vertex_values",
    "vertex_weights",
]

_PIXELS = 1 << 14  # located at once: what is made of them stays in the cache


def pixel_directions(
    height: int, width: int, *, device: torch.device | str | None = None
) -> Tensor:
    """Where the pixels look: (H, W, 3) float64 unit vectors, x right, y up, z forward."""
    return _looks(torch.arange(height, device=device, dtype=torch.float64), height, width)


def _looks(row: Tensor, height: int, width: int) -> Tensor:
    """Of some rows of pixels."""
    column = torch.arange(width, device=row.device, dtype=row.dtype) + 0.5
    pi = row.new_tensor(math.pi)  # a plain number would be written to ONNX with a float's digits
    down = (row + 0.5) / height * pi  # from the upper pole
    turn = (column / width - 0.5) * (2 * pi)
    # Sines only: not every runtime of exported networks has a cosine of doubles.
    across, up = down.sin()[:, None], (pi / 2 - down).sin()[:, None]
    x, z = across * turn.sin(), across * (turn + pi / 2).sin()
    return torch.stack((x, up.expand_as(x), z), -1)


def sample_equirectangular(
    image: Tensor, directions: Tensor, mode: Literal["bilinear", "nearest"] = "bilinear"
) -> Tensor:
    """The image's values in some directions.

    Args:
        image: (N, C, H, W), floating.
        directions: (M, 3) of any positive length, or (N, M, 3) for each image its own.
        mode: `bilinear` between pixel centres, without a seam and across the poles; `nearest`
            takes the pixel that holds the direction.

    Returns:
        (N, M, C).

    Raises:
        ValueError: other shapes, or an unknown mode.
    """
    if image.dim() != 4 or not image.is_floating_point():
        raise ValueError(f"image must be floating (N, C, H, W), got {tuple(image.shape)}")
    if directions.shape[-1] != 3 or directions.dim() not in (2, 3):
        raise ValueError(f"directions must be (M, 3) or (N, M, 3), got {tuple(directions.shape)}")
    return sample_at(image, spherical_coordinates(directions), mode)


def spherical_coordinates(directions: Tensor) -> Tensor:
    """(…, 3) to (…, 2): longitude and colatitude as parts of width and height."""
    x, y, z = directions.unbind(-1)
    longitude = torch.atan2(x, z) / (2 * math.pi) + 0.5
    latitude = torch.atan2(y, torch.hypot(x, z)) / math.pi
    return torch.stack((longitude, 0.5 - latitude), -1)


def sample_at(image: Tensor, coordinates: Tensor, mode: str = "bilinear") -> Tensor:
    """`sample_equirectangular` at `spherical_coordinates`, (M, 2) or (N, M, 2)."""
    check_choice("sampling", mode, ("bilinear", "nearest"))
    batch, channels, height, width = image.shape
    if mode == "nearest":
        u, v = coordinates.unbind(-1)
        column, row = (u * width).long() % width, (v * height).long().clamp(0, height - 1)
        index = (row * width + column).expand(batch, -1)
        flat = image.flatten(2).transpose(1, 2)
        return flat.gather(1, index[..., None].expand(-1, -1, channels))
    dtype = torch.promote_types(image.dtype, torch.float32)  # places need more than half a type
    u, v = coordinates.to(dtype).unbind(-1)
    padded = _pad(image.to(dtype))
    # Pixel centres are at whole numbers from 1 on, and the grid is -1 and 1 at the outer centres.
    x = 2 * (u * width + 0.5) / (width + 1) - 1
    y = 2 * (v * height + 0.5) / (height + 1) - 1
    grid = torch.stack((x, y), -1).expand(batch, -1, 2)[:, None]
    sampled = F.grid_sample(padded, grid, mode="bilinear", align_corners=True)
    return sampled[:, :, 0].transpose(1, 2).to(image.dtype)


def _pad(image: Tensor) -> Tensor:
    """One more pixel on each side, of what is there on the sphere.

    With an odd width half a turn ends between two pixels: their mean.
    """
    half = image.shape[3] // 2, image.shape[3] - image.shape[3] // 2
    rows = []
    for row in (image[:, :, :1], image[:, :, -1:]):
        turned = [torch.cat((row[..., k:], row[..., :k]), 3) for k in half]
        rows.append((turned[0] + turned[1]) / 2)
    image = torch.cat((rows[0], image, rows[1]), 2)
    return torch.cat((image[..., -1:], image, image[..., :1]), 3)


def equirectangular_to_faces(
    image: Tensor, level: int, *, rotation: Tensor | None = None
) -> Tensor:
    """Bilinear samples of an image at the centroids of faces.

    Args:
        image: (N, C, H, W), floating.
        level: of the mesh.
        rotation: (3, 3) or (N, 3, 3), orthogonal: face f looks where R c_f does in the image.

    Returns:
        (N, F, C).

    Raises:
        ValueError: other shapes, or no such level.
    """
    return sample_equirectangular(image, _directions(image, level, rotation))


def face_labels(
    depth: Tensor, valid: Tensor, level: int, *, rotation: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Depth of faces for training: that of one pixel each, never a mean across an edge or a hole.

    Args:
        depth: (N, 1, H, W), anything where it is not valid.
        valid: where it is known, the same shape, bool.
        level: of the labels.
        rotation: as in `equirectangular_to_faces`.

    Returns:
        Depth (N, F), 0 where it is not known, and where it is known, (N, F) bool.
    """
    known = torch.where(valid, depth, 0)
    both = torch.cat((known, valid.to(known.dtype)), 1)
    labels = sample_equirectangular(both, _directions(depth, level, rotation), "nearest")
    return labels[..., 0], labels[..., 1] > 0


def _directions(image: Tensor, level: int, rotation: Tensor | None) -> Tensor:
    directions = centroids(level, image.device)
    if rotation is None:
        return directions
    # R c as rows: the transposed matrix from the right, for one or for each image.
    return directions @ rotation.to(directions).transpose(-1, -2)


@cache
def centroids(level: int, device: torch.device) -> Tensor:
    """(F, 3) float64, kept for each device."""
    return kept(spherical_mesh(level).centroids, device)


@cache
def _corners(level: int, device: torch.device) -> Tensor:
    """Vertices of each face, (F, 3) int32, kept for each device."""
    return kept(spherical_mesh(level).faces, device)


def faces_to_equirectangular(
    values: Tensor, height: int, width: int, mode: Literal["nearest", "linear"] = "nearest"
) -> Tensor:
    """Values of faces as an equirectangular image.

    Args:
        values: (N, F, C), F of any level.
        height: of the image, any.
        width: of the image, any.
        mode: `nearest` gives each pixel the value of the face that holds its centre; `linear`
            interpolates between `vertex_values`: no steps, no seam, but smooth across edges too.

    Returns:
        (N, C, H, W).

    Raises:
        ValueError: other shapes or modes.
    """
    if values.dim() != 3:
        raise ValueError(f"values must be (N, F, C), got {tuple(values.shape)}")
    check_choice("read-back", mode, ("nearest", "linear"))
    level = level_of(values.shape[1])
    if mode == "nearest":
        faces = _faces_of_pixels(level, height, width, values.device)
        pixels = values.index_select(1, faces.flatten())
    else:
        vertices, shares = _corners_of_pixels(level, height, width, values.device)
        at_vertices = vertex_values(values)
        rows = (
            at_vertices.index_select(1, vertices[..., corner].flatten())
            * shares[..., corner].reshape(-1, 1).to(values.dtype)
            for corner in range(3)
        )
        pixels = sum(rows, start=next(rows))
    return pixels.transpose(1, 2).unflatten(2, (height, width))


def _in_graph() -> bool:
    """What is written as a graph computes the places of the pixels: its size may be another."""
    return exporting() or torch.compiler.is_compiling()


def _faces_of_pixels(level: int, height: int, width: int, device: torch.device) -> Tensor:
    if _in_graph():
        return locate(pixel_directions(height, width, device=device), level)
    if device.type == "meta":  # what earlier passes keep must not make this one cost less
        return torch.empty(height, width, dtype=torch.int32, device=device)
    return _located(level, height, width, device)


def _corners_of_pixels(
    level: int, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    if _in_graph():
        face, shares = barycentric(pixel_directions(height, width, device=device), level)
        return _corners(level, device)[face], shares
    if device.type == "meta":
        shares = torch.empty(height, width, 3, dtype=torch.float64, device=device)
        return shares.int(), shares
    return _located_corners(level, height, width, device)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
@torch.no_grad()
def _located(level: int, height: int, width: int, device: torch.device) -> Tensor:
    return torch.cat([locate(looks, level).int() for looks in _few_rows(height, width, device)])


@lru_cache(maxsize=4)
@torch.inference_mode(False)
@torch.no_grad()
def _located_corners(
    level: int, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    located = [barycentric(looks, level) for looks in _few_rows(height, width, device)]
    faces, shares = (torch.cat(parts) for parts in zip(*located, strict=True))
    return _corners(level, device)[faces], shares


def _few_rows(height: int, width: int, device: torch.device) -> Iterator[Tensor]:
    """Where the pixels look, a few rows at a time: locating takes 1 kB a pixel."""
    row = torch.arange(height, device=device, dtype=torch.float64)
    for some in row.split(max(1, _PIXELS // width)):
        yield _looks(some, height, width)


_EDGE = 2e-15
"""Rounding of the side of an edge that a direction lies on: on the edge both faces are right."""

_ICOSAHEDRON = spherical_mesh(0).vertices[spherical_mesh(0).faces].tolist()
"""Numbers, so that a compiler need not look into how they are made."""


def locate(directions: Tensor, level: int) -> Tensor:
    """The face that holds each direction.

    By descent: one of the 20 faces, and then at each level the child on whose side of the centre
    child's edges the direction lies.

    Args:
        directions: (…, 3), any length above 0; exact in float64.
        level: of the mesh.

    Returns:
        (…) int64. On an edge one of the faces that share it.
    """
    return _descend(directions, level)[0]


def _descend(directions: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """The face, (…), and its corners, (…, 3, 3).

    All three slots are worked off together: a graph that is exported has fewer nodes.
    """
    face_count(level)
    triangles = directions.new_tensor(_ICOSAHEDRON)  # (20, 3, 3)
    sides = directions.flatten(0, -2) @ _edges(triangles).flatten(0, 1).T
    inside = (sides.unflatten(-1, (20, 3)).amin(-1) >= -_EDGE).to(directions.dtype)
    order = torch.arange(20, 0, -1, device=directions.device, dtype=directions.dtype)
    face = (inside * order).argmax(-1).view(directions.shape[:-1])  # the first of several
    corners = triangles[face]
    for _ in range(level):
        middle = _turn(corners, 1) + _turn(corners, 2)
        middle = middle / (middle * middle).sum(-1, keepdim=True).sqrt()
        # Child i is beyond the edge of the centre child that faces corner i.
        beyond = (directions[..., None, :] * _edges(middle)).sum(-1) < -_EDGE
        face = 4 * face + 3 - (beyond * (3 - torch.arange(3, device=face.device))).sum(-1)
        # Child i keeps corner i in slot i, and has in each other slot what is opposite the third.
        beyond = beyond[..., None]
        inner = torch.where(_turn(beyond, 1), _turn(middle, 2), middle)
        inner = torch.where(_turn(beyond, 2), _turn(middle, 1), inner)
        corners = torch.where(beyond, corners, inner)
    return face, corners


def _turn(x: Tensor, steps: int) -> Tensor:
    """(…, 3, C) with what is so many slots further on in each slot."""
    return torch.cat((x[..., steps:, :], x[..., :steps, :]), -2)


def _edges(corners: Tensor) -> Tensor:
    """(…, 3, 3): normals of the planes through the origin and the edges opposite the corners."""
    a, b = _turn(corners, 1), _turn(corners, 2)
    a1, a2 = (torch.cat((a[..., k:], a[..., :k]), -1) for k in (1, 2))
    b1, b2 = (torch.cat((b[..., k:], b[..., :k]), -1) for k in (1, 2))
    return a1 * b2 - a2 * b1


def barycentric(directions: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """The face that holds each direction, (…), and the weights of its corners, (…, 3).

    The weights are not negative, their sum is 1, and they interpolate linearly on the flat
    triangle that the corners span.
    """
    face, corners = _descend(directions, level)
    weights = (directions[..., None, :] * _edges(corners)).sum(-1).clamp(min=0)
    return face, weights / weights.sum(-1, keepdim=True)


@cache
def vertex_weights(level: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """How much each face around a vertex counts in the vertex's value.

    The nearest weights to the faces' solid angles that reproduce functions linear in the plane that
    touches the sphere at the vertex.

    Returns:
        Faces (V, 6) int32 and weights (V, 6) float64; where only 5 meet the last weighs 0.

    Raises:
        ValueError: an unknown level.
    """
    mesh = spherical_mesh(level)
    faces, degrees = mesh.incident
    there = np.arange(6) < degrees[:, None]
    weights = mesh.solid_angles[faces] * there
    weights /= weights.sum(1, keepdims=True)
    axis = mesh.vertices[:, None]  # (V, 1, 3)
    helper = np.eye(3)[np.abs(mesh.vertices).argmin(1)][:, None]
    p = np.cross(axis, helper)
    p /= np.linalg.norm(p, axis=-1, keepdims=True)
    centres = mesh.centroids[faces]
    centres = centres / (centres * axis).sum(-1, keepdims=True)
    rows = [np.ones_like(weights), *((centres * a).sum(-1) for a in (p, np.cross(axis, p)))]
    # Lengths of one face's, so that the small system is well conditioned at every level.
    scale = np.linalg.norm(mesh.vertices[mesh.faces[0, 0]] - mesh.centroids[0])
    matrix = np.stack([rows[0], rows[1] / scale, rows[2] / scale], 1) * there[:, None]
    lacking = np.array([1.0, 0, 0]) - np.einsum("vif,vf->vi", matrix, weights)
    gram = matrix @ matrix.transpose(0, 2, 1)
    multipliers = np.linalg.solve(gram, lacking[..., None])
    weights = weights + (matrix.transpose(0, 2, 1) @ multipliers)[..., 0]
    return kept(faces, device), kept(weights, device)


def vertex_values(values: Tensor) -> Tensor:
    """Values of faces (N, F, C) as values of the mesh's vertices, (N, V, C)."""
    faces, weights = vertex_weights(level_of(values.shape[1]), values.device)
    near = values.index_select(1, faces.flatten()).unflatten(1, faces.shape)
    return (near * weights.to(values.dtype)[..., None]).sum(2)
