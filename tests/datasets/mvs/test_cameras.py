"""Cameras: projecting and lifting are inverse, wrong ones are named."""

from __future__ import annotations

import pytest
import torch

from vizoo.datasets.mvs.cameras import (
    camera_centre,
    check_camera,
    crop_intrinsics,
    invert_intrinsics,
    invert_pose,
    lift,
    project,
    relative_pose,
    resize_intrinsics,
)


def cameras(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    skew = torch.randn(count, 3, 3, generator=generator, dtype=torch.float64)
    extrinsics = torch.eye(4, dtype=torch.float64).repeat(count, 1, 1)
    extrinsics[:, :3, :3] = torch.matrix_exp(0.3 * (skew - skew.mT))
    extrinsics[:, :3, 3] = torch.randn(count, 3, generator=generator)
    intrinsics = torch.tensor([[90.0, 0.5, 15.0], [0, 80, 11], [0, 0, 1]], dtype=torch.float64)
    return intrinsics.repeat(count, 1, 1), extrinsics


def test_lift_and_project_are_inverse():
    intrinsics, extrinsics = cameras(3)
    depth = 2 + torch.rand(3, 5, 7, dtype=torch.float64)
    points = lift(depth, intrinsics, extrinsics)
    assert points.shape == (3, 5, 7, 3)
    pixels, z = project(points, intrinsics, extrinsics)
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(7.0), indexing="ij")
    expected = torch.stack([x, y], -1).double().expand(3, 5, 7, 2)
    torch.testing.assert_close(pixels, expected)
    torch.testing.assert_close(z, depth)


def test_project_broadcasts_one_cloud_over_cameras_and_one_camera_over_clouds():
    intrinsics, extrinsics = cameras(3)
    points = torch.randn(1, 6, 3, dtype=torch.float64)
    pixels, depth = project(points, intrinsics, extrinsics)
    assert pixels.shape == (3, 6, 2) and depth.shape == (3, 6)
    one, z = project(points, intrinsics[1], extrinsics[1])
    torch.testing.assert_close(one[0], pixels[1])
    torch.testing.assert_close(z[0], depth[1])


def test_project_of_the_camera_centre_is_finite():
    intrinsics, extrinsics = cameras(1)
    pixels, depth = project(camera_centre(extrinsics)[0], intrinsics[0], extrinsics[0])
    assert torch.isfinite(pixels).all() and depth.abs() < 1e-12


def test_relative_pose_carries_points_between_cameras():
    _, extrinsics = cameras(2)
    point = torch.tensor([0.2, -1.0, 3.0, 1.0], dtype=torch.float64)
    motion = relative_pose(extrinsics[0], extrinsics[1])
    torch.testing.assert_close(motion @ (extrinsics[0] @ point), extrinsics[1] @ point)
    torch.testing.assert_close(
        invert_pose(extrinsics) @ extrinsics, torch.eye(4).double().expand(2, 4, 4)
    )


def test_resized_and_cropped_intrinsics():
    intrinsics, _ = cameras(1)
    scaled = resize_intrinsics(intrinsics, 0.5, 2.0)[0]
    assert scaled[:2].tolist() == [[45.0, 0.25, 7.5], [0.0, 160.0, 22.0]]
    cropped = crop_intrinsics(intrinsics, left=5, top=1)
    assert (cropped[0, 0, 2], cropped[0, 1, 2]) == (10, 10)
    assert intrinsics[0, 0, 2] == 15  # the argument is left alone
    torch.testing.assert_close(
        invert_intrinsics(intrinsics) @ intrinsics, torch.eye(3).double()[None]
    )


def test_good_cameras_pass():
    intrinsics, extrinsics = cameras(4)
    check_camera(intrinsics, extrinsics)
    check_camera(intrinsics[0].float(), extrinsics[0].float(), "cam.txt")


def broken(which, where, value):
    intrinsics, extrinsics = cameras(3)
    {"K": intrinsics, "E": extrinsics}[which][(1, *where)] = value
    return intrinsics, extrinsics


@pytest.mark.parametrize(
    ("which", "where", "value", "said"),
    [
        ("K", (0, 0), 0.0, "must be positive"),
        ("K", (1, 1), -3.0, "must be positive"),
        ("K", (2, 2), 0.0, "are not"),
        ("K", (0, 1), torch.nan, "not finite"),
        ("E", (0, 3), torch.inf, "not finite"),
        ("E", (0, 0), 2.0, "not a rotation"),
        ("E", (3, 3), 2.0, "last row"),
    ],
)
def test_a_wrong_camera_is_named(which, where, value, said):
    intrinsics, extrinsics = broken(which, where, value)
    with pytest.raises(ValueError, match=f"^cams: view 1: .*{said}"):
        check_camera(intrinsics, extrinsics, "cams")
    with pytest.raises(ValueError, match=f"^b: .*{said}"):
        check_camera(intrinsics, extrinsics, ["a", "b", "c"])
    with pytest.raises(ValueError, match=f"^file.txt: the .*{said}"):
        check_camera(intrinsics[1], extrinsics[1], "file.txt")


def test_a_reflection_and_a_wrong_shape_are_refused():
    intrinsics, extrinsics = cameras(1)
    extrinsics[0, 0] *= -1
    with pytest.raises(ValueError, match="reflection"):
        check_camera(intrinsics, extrinsics)
    with pytest.raises(ValueError, match=r"extrinsics must be \(..., 4, 4\), got \(3, 4\)"):
        check_camera(intrinsics[0], extrinsics[0, :3])
