"""The sphere as a mesh: an icosahedron whose faces are cut into four, again and again.

Axes: x right, y up, z forward. The 12 vertices of level 0 are all (0, ±1, ±φ), (±1, ±φ, 0) and
(±φ, 0, ±1), made unit vectors; a new vertex is the geodesic midpoint of an edge. So ±x, ±y, ±z are
vertices from level 1 on, and the coordinate planes are planes of symmetry.

Numbering: the children of face f are 4 f + j. The corner child j = 0, 1, 2 keeps corner j in slot
j, the centre child is j = 3. So an ancestor is a shift, pooling is a reshape, and the neighbours of
children follow from those of their parents without a search. The corners are counter-clockwise seen
from outside, and neighbour i lies across the edge opposite corner i, as in SubdivNet (Hu et al.,
TOG 2022). Orientation, order and subdivision are our own choice: SphereDepth published none.

All is NumPy in float64 and kept for the life of the process, once for each level.
"""

from __future__ import annotations

from functools import cache, cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

__all__ = ["MAX_LEVEL", "SphericalMesh", "face_count", "kept", "level_of", "spherical_mesh"]

MAX_LEVEL = 8

_NEXT, _PREVIOUS = np.array([1, 2, 0]), np.array([2, 0, 1])


class SphericalMesh:
    """One level; ask `spherical_mesh` for it.

    Attributes:
        level: 0 to 8.
        vertices: (V, 3) unit vectors; those of the level before come first.
        faces: (F, 3) int32, vertices of each face.
        neighbours: (F, 3) int32, the face across the edge opposite each corner.
    """

    def __init__(
        self, level: int, vertices: np.ndarray, faces: np.ndarray, neighbours: np.ndarray
    ) -> None:
        self.level = level
        self.vertices = _frozen(vertices)
        self.faces = _frozen(faces.astype(np.int32))
        self.neighbours = _frozen(neighbours.astype(np.int32))

    @cached_property
    def slots(self) -> np.ndarray:
        """(F, 3) int32: which neighbour of its neighbour i the face itself is."""
        back = self.neighbours[self.neighbours]  # (F, 3, 3)
        own = np.arange(len(self.faces), dtype=np.int32)[:, None, None]
        return _frozen((back == own).argmax(-1).astype(np.int32))

    @cached_property
    def centroids(self) -> np.ndarray:
        """(F, 3) unit vectors: the corners' sum."""
        return _frozen(_unit(self.vertices[self.faces].sum(1)))

    @cached_property
    def solid_angles(self) -> np.ndarray:
        """(F,) in steradian; their sum is 4 π."""
        a, b, c = np.moveaxis(self.vertices[self.faces], 1, 0)
        volume = np.einsum("fc,fc->f", a, np.cross(b, c))
        dots = sum(np.einsum("fc,fc->f", u, v) for u, v in ((a, b), (b, c), (c, a)))
        return _frozen(2 * np.arctan2(volume, 1 + dots))

    @cached_property
    def incident(self) -> tuple[np.ndarray, np.ndarray]:
        """Faces around each vertex, (V, 6) int32, and their number, (V,) 5 or 6.

        Where there are 5 the sixth is the first again.
        """
        corners = self.faces.ravel()
        order = np.argsort(corners, kind="stable")
        degrees = np.bincount(corners, minlength=len(self.vertices))
        starts = np.cumsum(degrees) - degrees
        place = np.arange(6)[None] % degrees[:, None]
        return _frozen((order[starts[:, None] + place] // 3).astype(np.int32)), _frozen(degrees)

    def ring(self, kernel: int = 3, dilation: int = 1, symmetric: bool = False) -> np.ndarray:
        """What a mesh convolution looks at around each face, counter-clockwise.

        Args:
            kernel: 3 for the neighbours; 5 for those and their other neighbours, 9 faces.
            dilation: how many faces to walk instead of one (kernel 3): through slot s, then by
                turns to the slot before and after the one entered through.
            symmetric: dilated walks of either hand, 6 faces, so that a mirrored sphere gives
                mirrored results.

        Returns:
            (F, n) int32.

        Raises:
            ValueError: another kernel, a dilation below 1, or one of kernel 5.
        """
        check_ring(kernel, dilation)
        if kernel == 5:
            near, entry = self.neighbours, self.slots
            turns = [near[near, (entry + turn) % 3] for turn in (1, 2)]
            return np.stack((turns[0], near, turns[1]), -1).reshape(len(near), 9)
        if dilation == 1:
            return self.neighbours
        if not symmetric:
            return self._walk(dilation, first=2)
        return np.stack([self._walk(dilation, turn) for turn in (1, 2)], -1).reshape(-1, 6)

    def _walk(self, steps: int, first: int) -> np.ndarray:
        face, entry = self.neighbours, self.slots
        for step in range(1, steps):
            leave = (entry + (first if step % 2 else 3 - first)) % 3
            face, entry = self.neighbours[face, leave], self.slots[face, leave]
        return face


@cache
def spherical_mesh(level: int) -> SphericalMesh:
    """The mesh of a level, the same object each time.

    Raises:
        ValueError: `level` is not 0 to 8.
    """
    face_count(level)
    return _icosahedron() if level == 0 else _subdivide(spherical_mesh(level - 1))


def face_count(level: int) -> int:
    """Faces of a level: 20 · 4^level.

    Raises:
        ValueError: `level` is not 0 to 8.
    """
    if not 0 <= level <= MAX_LEVEL:
        raise ValueError(f"a mesh level is 0 to {MAX_LEVEL}, not {level}")
    return 20 * 4**level


def level_of(faces: int) -> int:
    """The level that has so many faces.

    Raises:
        ValueError: no level has so many.
    """
    for level in range(MAX_LEVEL + 1):
        if faces == face_count(level):
            return level
    raise ValueError(f"no mesh level has {faces} faces: they are 20 · 4^level, level 0 to 8")


@torch.inference_mode(False)
def kept(array: np.ndarray, device: torch.device | str) -> Tensor:
    """An array as a tensor that may be kept, whatever mode it was first asked for in."""
    return torch.from_numpy(array.copy()).to(device)


def check_ring(kernel: int, dilation: int) -> None:
    """Raises ValueError unless a ring of that kernel and dilation is defined."""
    if kernel not in (3, 5):
        raise ValueError(f"kernel {kernel} has no ring of faces: choose 3 or 5")
    if dilation < 1 or (dilation > 1 and kernel != 3):
        raise ValueError(
            f"dilation {dilation}, kernel {kernel}: dilations from 1 on go with kernel 3"
        )


def _icosahedron() -> SphericalMesh:
    golden = (1 + 5**0.5) / 2
    corners = [(0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    vertices = _unit(np.array([np.roll(corner, k) for k in range(3) for corner in corners]))
    near = np.isclose(vertices @ vertices.T, 5**-0.5)
    faces = []
    for a, b, c in combinations(range(12), 3):
        if near[a, b] and near[b, c] and near[c, a]:
            outward = np.linalg.det(vertices[[a, b, c]]) > 0
            faces.append((a, b, c) if outward else (a, c, b))
    across = {}
    for face, corner in enumerate(faces):
        for slot in range(3):
            across[corner[_NEXT[slot]], corner[_PREVIOUS[slot]]] = face
    neighbours = [[across[f[_PREVIOUS[s]], f[_NEXT[s]]] for s in range(3)] for f in faces]
    return SphericalMesh(0, vertices, np.array(faces), np.array(neighbours))


def _subdivide(mesh: SphericalMesh) -> SphericalMesh:
    faces, across, slots = mesh.faces, mesh.neighbours, mesh.slots
    count, known = len(faces), len(mesh.vertices)
    # An edge is two halves, one in each face; the half of the lower number makes the vertex.
    half, mate = np.arange(3 * count).reshape(-1, 3), 3 * across.astype(np.int64) + slots
    maker = half < mate
    made = np.cumsum(maker.ravel()) - 1 + known
    middle = np.where(maker, made[half], made[mate])  # (F, 3): of the edge opposite each corner
    face, slot = np.nonzero(maker)
    new = mesh.vertices[faces[face, _NEXT[slot]]] + mesh.vertices[faces[face, _PREVIOUS[slot]]]

    corners = np.empty((count, 4, 3), np.int64)
    corners[:, 3] = middle
    nearby = np.empty((count, 4, 3), np.int64)
    children = 4 * np.arange(count)
    for i in range(3):
        after, before = _NEXT[i], _PREVIOUS[i]
        corners[:, i, i] = faces[:, i]
        corners[:, i, after], corners[:, i, before] = middle[:, before], middle[:, after]
        nearby[:, 3, i], nearby[:, i, i] = children + i, children + 3
        nearby[:, after, i] = 4 * across[:, i] + (slots[:, i] + 2) % 3
        nearby[:, before, i] = 4 * across[:, i] + (slots[:, i] + 1) % 3
    vertices = np.concatenate((mesh.vertices, _unit(new)))
    return SphericalMesh(mesh.level + 1, vertices, corners.reshape(-1, 3), nearby.reshape(-1, 3))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _frozen(array: np.ndarray) -> np.ndarray:
    """Shared by all: nobody may write to it."""
    array.setflags(write=False)
    return array
