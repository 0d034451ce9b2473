"""The mesh: counts, angles, neighbours, numbering, patterns, symmetry; reference numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sphere import REFLECTIONS, find, moves, public, rotations

from vizoo.panorama.mesh import MAX_LEVEL, face_count, level_of, spherical_mesh
from vizoo.panorama.sampling import locate, pixel_directions

LEVELS = range(5)


@pytest.mark.parametrize("level", range(7))
def test_counts_and_angles(level):
    mesh = spherical_mesh(level)
    faces = 20 * 4**level
    assert len(mesh.faces) == faces == face_count(level) and level_of(faces) == level
    assert len(mesh.vertices) == 10 * 4**level + 2
    assert np.allclose(np.linalg.norm(mesh.vertices, axis=1), 1, atol=1e-15)
    assert mesh.solid_angles.sum() == pytest.approx(4 * np.pi, abs=1e-12)
    known = (1, 1.203127, 1.274511, 1.293962, 1.298932, 1.300181, 1.3006)[level]
    ratio = mesh.solid_angles.max() / mesh.solid_angles.min()
    assert ratio == pytest.approx(known, abs=1e-5 if level < 6 else 2e-4)
    corners = mesh.vertices[mesh.faces]
    assert (np.linalg.det(corners) > 0).all()  # counter-clockwise from outside


@pytest.mark.parametrize("level", range(7))
def test_neighbours_share_the_edge_across(level):
    mesh = spherical_mesh(level)
    faces, near, slots = mesh.faces, mesh.neighbours, mesh.slots
    own = np.arange(len(faces))
    assert (np.sort(near, 1)[:, 1:] != np.sort(near, 1)[:, :-1]).all()
    for i in range(3):
        assert (near[near[:, i], slots[:, i]] == own).all()
        edge = faces[own, (i + 1) % 3], faces[own, (i + 2) % 3]
        other = near[:, i], slots[:, i]
        assert (faces[other[0], (other[1] + 1) % 3] == edge[1]).all()
        assert (faces[other[0], (other[1] + 2) % 3] == edge[0]).all()


def test_graph_of_level_0():
    near = spherical_mesh(0).neighbours
    graph = np.zeros((20, 20))
    graph[np.arange(20)[:, None], near] = 1
    root = 5**0.5
    want = [-root] * 3 + [-2] * 4 + [0] * 4 + [1] * 5 + [root] * 3 + [3]
    assert np.allclose(np.linalg.eigvalsh(graph), want)


@pytest.mark.parametrize("level", range(1, 6))
def test_children(level):
    mesh, parents = spherical_mesh(level), spherical_mesh(level - 1)
    sums = mesh.solid_angles.reshape(-1, 4).sum(1)
    assert np.abs(sums - parents.solid_angles).max() < 1e-14
    held = locate(torch.tensor(mesh.centroids), level - 1)
    assert torch.equal(held, torch.arange(len(mesh.faces)) // 4)
    family = mesh.neighbours[3::4]
    assert (family == np.arange(len(mesh.faces)).reshape(-1, 4)[:, :3]).all()
    corners = mesh.vertices[mesh.faces].reshape(-1, 4, 3, 3)
    for j in range(3):  # corner child j holds corner j in its slot j
        assert (corners[:, j, j] == parents.vertices[parents.faces[:, j]]).all()
    assert (mesh.vertices[: len(parents.vertices)] == parents.vertices).all()


@pytest.mark.parametrize("level", range(5))
def test_around_vertices(level):
    mesh = spherical_mesh(level)
    faces, degrees = mesh.incident
    assert sorted(set(degrees.tolist())) == ([5] if level == 0 else [5, 6])
    assert (degrees == 5).sum() == 12
    own = np.arange(len(degrees))[:, None]
    assert (mesh.faces[faces] == own[..., None]).any(-1).all()
    shared = [len({*faces[mesh.faces[f]].ravel().tolist()}) - 1 for f in range(len(mesh.faces))]
    if level == 0:
        assert set(shared) == {9}
    else:
        assert shared.count(11) == 60 and set(shared) == {11, 12}


@pytest.mark.parametrize("level", range(5))
def test_rings(level):
    mesh = spherical_mesh(level)
    own = np.arange(len(mesh.faces))[:, None]
    ring = mesh.ring(5)
    assert ((np.sort(ring, 1)[:, 1:] - np.sort(ring, 1)[:, :-1]) > 0).all() and (ring != own).all()
    assert (ring[:, 1::3] == mesh.neighbours).all()
    for steps in (2, 3, 4):
        handed, both = mesh.ring(3, steps), mesh.ring(3, steps, symmetric=True)
        assert (np.bincount(handed.ravel()) == 3).all() and (both[:, 1::2] == handed).all()
    for arguments, message in (((4,), "kernel 4"), ((5, 2), "dilation 2"), ((3, 0), "dilation 0")):
        with pytest.raises(ValueError, match=message):
            mesh.ring(*arguments)


def test_axes_are_vertices_and_centroids_lie_on_the_seam():
    for level in range(1, 5):
        mesh = spherical_mesh(level)
        find(np.concatenate((np.eye(3), -np.eye(3))), mesh.vertices)
        x, y, z = mesh.centroids.T
        assert (np.abs(x)[z < 0] < 1e-12).sum() == 2 ** (level + 1)
        assert np.abs(y).max() < 1


@pytest.mark.parametrize("level", range(4))
def test_symmetry(level):
    mesh, icosahedral = spherical_mesh(level), rotations()
    assert len(np.unique(icosahedral.round(6), axis=0)) == 60
    for matrix in (*icosahedral, *REFLECTIONS):
        assert np.allclose(matrix @ matrix.T, np.eye(3), atol=1e-14)
        find(mesh.vertices @ matrix.T, mesh.vertices)
    for move in moves((*icosahedral, *REFLECTIONS), level):
        assert (np.sort(mesh.neighbours[move], 1) == np.sort(move[mesh.neighbours], 1)).all()


@pytest.mark.parametrize("level", [0, 1, 3, 6])
def test_location(level):
    mesh = spherical_mesh(level)
    looks = torch.nn.functional.normalize(torch.randn(500, 3, dtype=torch.float64), dim=1)
    looks = torch.cat((looks, 7 * pixel_directions(6, 8).flatten(0, 1)))
    face = locate(looks, level).numpy()
    a, b, c = np.moveaxis(mesh.vertices[mesh.faces[face]], 1, 0)
    sides = [(looks.numpy() * np.cross(*edge)).sum(1) for edge in ((b, c), (c, a), (a, b))]
    assert np.min(sides) > -1e-14
    if level:
        assert (locate(looks, level - 1).numpy() == face // 4).all()
    half = locate(looks.float(), level)
    assert (half.numpy() == face).mean() > 0.99


def test_tables_are_shared_and_cannot_be_written():
    mesh = spherical_mesh(2)
    assert spherical_mesh(2) is mesh
    with pytest.raises(ValueError, match="read-only"):
        mesh.neighbours[0, 0] = 1
    for level in (-1, MAX_LEVEL + 1):
        with pytest.raises(ValueError, match=f"0 to 8, not {level}"):
            spherical_mesh(level)
    with pytest.raises(ValueError, match="81 faces"):
        level_of(81)


@pytest.mark.slow
def test_finest_level():
    mesh = spherical_mesh(MAX_LEVEL)
    assert len(mesh.faces) == 1_310_720 and len(mesh.vertices) == 655_362
    assert mesh.solid_angles.sum() == pytest.approx(4 * np.pi, abs=1e-12)


@pytest.mark.parametrize("level", LEVELS)
class TestGolden:
    """Reference numbers, compared centroid by centroid."""

    def test_lists(self, golden, level):
        mesh, want = spherical_mesh(level), golden(f"mesh_level{level}")
        assert len(mesh.faces) == want["n_faces"] and len(mesh.vertices) == want["n_vertices"]
        assert np.abs(np.sort(mesh.solid_angles) - want["solid_angle_sorted"]).max() < 1e-12
        edges = np.concatenate([mesh.faces[:, [i - 2, i - 1]] for i in range(3)])
        edges = mesh.vertices[np.unique(np.sort(edges, 1), axis=0)]
        assert len(edges) == want["n_edges"]
        chords = np.linalg.norm(edges[:, 0] - edges[:, 1], axis=1)
        arcs = 2 * np.arcsin(chords / 2)
        assert np.abs(np.sort(arcs) - want["edge_arc_sorted"]).max() < 1e-12
        mean = (mesh.solid_angles * public(mesh.centroids)).sum() / (4 * np.pi)
        assert mean == pytest.approx(3, abs=0.1 / 4**level)

    def test_graph(self, golden, level):
        mesh, want = spherical_mesh(level), golden(f"mesh_level{level}")
        if "dual_spectrum" not in want:
            return
        count = len(mesh.faces)
        graph = np.zeros((count, count))
        graph[np.arange(count)[:, None], mesh.neighbours] = 1
        assert np.abs(np.linalg.eigvalsh(graph) - want["dual_spectrum"]).max() < 1e-10
        seen, front, histogram = np.eye(count, dtype=bool), np.eye(count, dtype=bool), []
        while front.any():
            histogram.append(int(front.sum()))
            front = front[:, mesh.neighbours].any(2) & ~seen
            seen |= front
        assert histogram == want["dual_distance_hist"].tolist()

    def test_faces(self, golden, level):
        mesh, want = spherical_mesh(level), golden(f"mesh_level{level}")
        own = find(want["centroid"], mesh.centroids)
        assert np.abs(mesh.solid_angles[own] - want["solid_angle"]).max() < 1e-13
        assert np.abs(public(mesh.centroids)[own] - want["f_centroid"]).max() < 1e-12
        faces, _ = mesh.incident
        shared = [len({*faces[mesh.faces[f]].ravel().tolist()}) - 1 for f in own]
        assert shared == want["vertex_share_count"].tolist()
        rings = {
            "nbr_sum": mesh.neighbours,
            "ring5_sum": mesh.ring(5),
            "dil2_sum": mesh.ring(3, 2),
            "dil3_sum": mesh.ring(3, 3),
        }
        for name, ring in rings.items():
            if name in want:
                found = mesh.centroids[ring].sum(1)[own]
                assert np.abs(found - want[name]).max() < 1e-12, name
        if level:
            parents = spherical_mesh(level - 1).centroids[own // 4]
            assert np.abs(parents - want["parent_centroid"]).max() < 1e-12
            assert (want["is_centre"] == (own % 4 == 3)).all()

    def test_means_over_faces(self, golden, level):
        """A mean over the spherical triangle, from the function at finer and finer centroids."""
        mesh, want = spherical_mesh(level), golden(f"mesh_level{level}")
        finer = spherical_mesh(level + 2), spherical_mesh(level + 1)
        means = []
        for fine in finer:
            share = fine.solid_angles.reshape(len(mesh.faces), -1)
            values = public(fine.centroids).reshape(share.shape)
            means.append((values * share).sum(1) / share.sum(1))
        own = find(want["centroid"], mesh.centroids)
        better = means[0] + (means[0] - means[1]) / 3  # Richardson
        assert np.abs(better[own] - want["f_mean"]).max() < 2e-2 / 16**level + 1e-12

    def test_vertices(self, golden, level):
        mesh, want = spherical_mesh(level), golden(f"mesh_level{level}")
        own = find(want["vertex"], mesh.vertices)
        assert (mesh.incident[1][own] == want["vertex_degree"]).all()


def test_rotations_are_the_group(golden):
    want = golden("symmetry")
    both = np.concatenate((rotations(), want["rotations"])).round(6) + 0.0
    assert len(np.unique(both, axis=0)) == 60
    assert np.allclose(np.sort(want["reflections"], 0), np.sort(REFLECTIONS, 0))
