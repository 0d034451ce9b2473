"""Which face of the spherical mesh a direction meets, computed without a table."""

from __future__ import annotations

import torch
from torch import Tensor

from .mesh import face_count, spherical_mesh

__all__ = ["barycentric", "locate"]

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
