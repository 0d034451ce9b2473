"""Meshes photographed by Open3D's ray caster."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from vizoo.datasets.mvs import mesh_scene
from vizoo.datasets.mvs.cameras import lift

# A cube of side 2 around (5, -3, 100), so that its place in the world matters.
CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) + [5, -3, 100]
FACES = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
TRIANGLES = np.array([t for a, b, c, d in FACES for t in ((a, b, c), (a, c, d))])


def test_a_cube():
    pytest.importorskip("open3d")
    scene = mesh_scene([(CORNERS, TRIANGLES)], 3, 48, 64, seed=4, supersample=1)
    again = mesh_scene([(CORNERS, TRIANGLES)], 3, 48, 64, seed=4, supersample=1)
    for index, view in enumerate(scene.views):
        depth, valid = scene.depth(index)
        assert valid.all() and torch.equal(scene.image(index), again.image(index))
        points = lift(depth[0], view.intrinsics, view.extrinsics)
        away = (points - torch.tensor([5.0, -3.0, 100.0])).abs().amax(-1)
        on_the_cube = (away - 1).abs() < 1e-3
        assert 0.05 < on_the_cube.float().mean() < 0.6
        assert (on_the_cube | (away > 1.5)).all()  # else on the background
        least, greatest = view.depth_range
        assert least < depth.min() and depth.max() < greatest
    assert scene.sources(0, 2) != [] and scene.image(0).std() > 0.1


def test_files_and_bad_meshes(tmp_path):
    open3d = pytest.importorskip("open3d")
    mesh = open3d.geometry.TriangleMesh.create_sphere(2.0)
    open3d.io.write_triangle_mesh(str(tmp_path / "ball.ply"), mesh)
    scene = mesh_scene([tmp_path / "ball.ply"], 2, 16, 24, supersample=1, name="ball")
    assert scene.name == "ball" and scene.depth(0)[0].min() > 2
    with pytest.raises(FileNotFoundError, match="gone.ply: no such mesh"):
        mesh_scene([tmp_path / "gone.ply"])
    with pytest.raises(ValueError, match="mesh: not a mesh with triangles"):
        mesh_scene([(CORNERS, [])])
    with pytest.raises(ValueError, match="or a triangle's is not there"):
        mesh_scene([(CORNERS, TRIANGLES + 1)])
    with pytest.raises(ValueError, match="0 meshes"):
        mesh_scene([])


def test_without_open3d(monkeypatch):
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(ImportError, match="meshes need Open3D .*pip install open3d"):
        mesh_scene([(CORNERS, TRIANGLES)])
