"""What tests of spheres share: matching without numbering, symmetries, a function, a room."""

from __future__ import annotations

import functools

import numpy as np
import torch
from scipy.spatial import cKDTree

from vizoo.panorama.mesh import spherical_mesh

CORNERS = torch.tensor([[-1.7, -1.5, -2.9], [2.4, 1.1, 1.6]], dtype=torch.float64)
"""Lowest and highest, of an empty room with the camera in the origin."""
REFLECTIONS = np.stack([np.diag(1 - 2 * row) for row in np.eye(3)])


def find(points, own):
    """For each point the index of the own one that it is."""
    distance, index = cKDTree(own).query(points)
    assert distance.max() < 1e-9
    return index


def moves(matrices, level):
    """(R, F): the face to which each orthogonal matrix takes each face."""
    return _moves(np.asarray(matrices, float).tobytes(), level)


@functools.lru_cache(maxsize=32)
def _moves(matrices, level):
    centres = spherical_mesh(level).centroids
    turned = np.einsum("rij,fj->rfi", np.frombuffer(matrices).reshape(-1, 3, 3), centres)
    return find(turned, centres)


def rotations():
    """The 60 rotations that map the mesh to itself."""
    base = spherical_mesh(0)
    corners = base.vertices[base.faces]
    frame = np.linalg.inv(corners[0].T)
    return np.stack([np.roll(corner, s, 0).T @ frame for corner in corners for s in range(3)])


def public(points):
    """A smooth function of degree 4 on unit vectors, whose mean over the sphere is 3."""
    x, y, z = np.moveaxis(np.asarray(points), -1, 0)
    waves = 0.25 * (35 * y**4 - 30 * y**2 + 3) / 8
    return 3 + 0.8 * y + 0.6 * (x**2 - z**2) + 1.5 * x * y * z + waves


def room_depth(rays):
    """(..., 3) unit vectors to the distance of the room's walls along each."""
    return (torch.where(rays > 0, CORNERS[1], CORNERS[0]) / rays).min(-1).values
