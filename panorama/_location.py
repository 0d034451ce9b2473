"""Which face of the spherical mesh a direction meets, computed without a table."""

from __future__ import annotations

import torch
from torch import Tensor

from .mesh import face_count, spherical_mesh

__all__ = ["barycentric", "locate"]

_EDGE = 2e-15
"""Rounding of the side of an edge that a direction lies on: on the edge both faces are right."""


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


def _descend(directions: Tensor, level: int) -> tuple[Tensor, list[Tensor]]:
    """The face, and its three corners, each (…, 3)."""
    face_count(level)
    base = spherical_mesh(0)
    triangles = directions.new_tensor(base.vertices[base.faces].tolist())  # (20, 3, 3)
    normals = torch.stack([_cross(triangles[:, i - 2], triangles[:, i - 1]) for i in range(3)], 1)
    sides = directions.flatten(0, -2) @ normals.flatten(0, 1).T
    inside = (sides.unflatten(-1, (20, 3)).amin(-1) >= -_EDGE).to(directions.dtype)
    order = torch.arange(20, 0, -1, device=directions.device, dtype=directions.dtype)
    face = (inside * order).argmax(-1).view(directions.shape[:-1])  # the first of several
    corners = list(triangles[face].unbind(-2))
    for _ in range(level):
        middle = [_middle(corners[i - 2], corners[i - 1]) for i in range(3)]
        # Child i is beyond the edge of the centre child that faces the corner i.
        beyond = [
            (directions * _cross(middle[i - 2], middle[i - 1])).sum(-1, keepdim=True) < -_EDGE
            for i in range(3)
        ]
        child = torch.full_like(face, 3)
        inner = list(middle)
        for i in range(3):
            child = torch.where(beyond[i][..., 0], i, child)
            own = [corners[i] if s == i else middle[3 - i - s] for s in range(3)]
            inner = [torch.where(beyond[i], a, b) for a, b in zip(own, inner, strict=True)]
        face, corners = 4 * face + child, inner
    return face, corners


def _middle(a: Tensor, b: Tensor) -> Tensor:
    total = a + b
    return total / (total * total).sum(-1, keepdim=True).sqrt()


def _cross(a: Tensor, b: Tensor) -> Tensor:
    a0, a1, a2 = a.unbind(-1)
    b0, b1, b2 = b.unbind(-1)
    return torch.stack((a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0), -1)


def barycentric(directions: Tensor, level: int) -> tuple[Tensor, Tensor]:
    """The face that holds each direction, (…), and the weights of its corners, (…, 3).

    The weights are not negative, their sum is 1, and they interpolate linearly on the flat
    triangle that the corners span.
    """
    face, corners = _descend(directions, level)
    sides = [(directions * _cross(corners[i - 2], corners[i - 1])).sum(-1) for i in range(3)]
    weights = torch.stack(sides, -1).clamp(min=0)
    return face, weights / weights.sum(-1, keepdim=True)
