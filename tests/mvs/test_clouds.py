"""Meshes of fused views."""

import numpy as np
import pytest
import torch

from vizoo.mvs.clouds import TSDFMesh
from vizoo.vision.io.ply import read_ply


def test_a_white_mesh_leaves_standard_output_alone(tmp_path, capfd):
    """There the command prints its summary as JSON."""
    pytest.importorskip("open3d", exc_type=ImportError)
    mesh = TSDFMesh(0.2)
    matrix = torch.tensor([[60.0, 0, 39.5], [0, 60, 29.5], [0, 0, 1]])
    columns, rows = np.meshgrid(np.arange(80), np.arange(60))
    depth = (2 + 0.3 * np.sin(columns / 9) + 0.002 * rows).astype(np.float32)
    for number in range(3):
        pose = torch.eye(4)
        pose[0, 3] = 0.1 * number
        mesh.add(depth, np.full((60, 80, 3), 255, np.uint8), matrix, pose)
    assert mesh.write(tmp_path / "mesh.ply") > 100
    assert capfd.readouterr().out == ""


def test_cells_far_below_a_pixel_are_told(tmp_path):
    """Between the pixels that Open3D looks at nothing is allocated then."""
    pytest.importorskip("open3d", exc_type=ImportError)
    depth = np.full((16, 16), 2, np.float32)
    matrix = torch.tensor([[60.0, 0, 7.5], [0, 60, 7.5], [0, 0, 1]])
    mesh = TSDFMesh(0.007)
    mesh.add(depth, np.zeros((16, 16, 3), np.uint8), matrix, torch.eye(4))
    with pytest.warns(UserWarning, match=r"cells of 0.007 .* pieces: a pixel covers 0.033; take"):
        mesh.write(tmp_path / "mesh.ply")


@pytest.mark.parametrize("slope", [(0.8, 0.0), (0.0, -0.8)])
def test_a_mesh_lies_on_the_plane_that_depth_shows(tmp_path, slope):
    """Half a pixel beside it a slanted surface would be 4 mm off, everywhere."""
    pytest.importorskip("open3d", exc_type=ImportError)
    matrix = torch.tensor([[100.0, 0, 39.5], [0, 100, 29.5], [0, 0, 1]])
    columns, rows = np.meshgrid(np.arange(80), np.arange(60))
    tilt = slope[0] * (columns - 39.5) / 100 + slope[1] * (rows - 29.5) / 100
    depth = (1 / (1 - tilt)).astype(np.float32)  # z = 1 + slope . (x, y)
    mesh = TSDFMesh(0.01)
    mesh.add(depth, np.zeros((60, 80, 3), np.uint8), matrix, torch.eye(4))
    mesh.write(tmp_path / "mesh.ply")
    x, y, z = read_ply(tmp_path / "mesh.ply")[0].T
    assert abs(np.median(z - 1 - slope[0] * x - slope[1] * y)) < 1e-3
