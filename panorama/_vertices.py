"""Values of faces as values of the mesh's vertices."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .mesh import kept, level_of, spherical_mesh

__all__ = ["vertex_values", "vertex_weights"]


@cache
def vertex_weights(
    level: int, kind: Literal["area", "exact"] = "exact"
) -> tuple[np.ndarray, np.ndarray]:
    """How much each face around a vertex counts in the vertex's value.

    Args:
        level: of the mesh.
        kind: `area` takes solid angles; `exact` the nearest weights to these that reproduce
            functions linear in the plane that touches the sphere at the vertex.

    Returns:
        Faces (V, 6) int32 and weights (V, 6) float64; where only 5 meet the last weighs 0.

    Raises:
        ValueError: an unknown level or kind.
    """
    if kind not in ("area", "exact"):
        raise ValueError(f"vertex weights {kind!r} are unknown: choose 'area' or 'exact'")
    mesh = spherical_mesh(level)
    faces, degrees = mesh.incident
    there = np.arange(6) < degrees[:, None]
    weights = mesh.solid_angles[faces] * there
    weights /= weights.sum(1, keepdims=True)
    if kind == "exact":
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
    weights.setflags(write=False)
    return faces, weights


def vertex_values(values: Tensor, kind: Literal["area", "exact"] = "exact") -> Tensor:
    """Values of faces (N, F, C) as values of the mesh's vertices, (N, V, C)."""
    faces, weights = _vertex_table(level_of(values.shape[1]), kind, values.device)
    near = values.index_select(1, faces.flatten()).unflatten(1, faces.shape)
    return (near * weights.to(values.dtype)[..., None]).sum(2)


@cache
def _vertex_table(
    level: int, kind: Literal["area", "exact"], device: torch.device
) -> tuple[Tensor, Tensor]:
    faces, weights = vertex_weights(level, kind)
    return kept(faces, device), kept(weights, device)
