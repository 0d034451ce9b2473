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
    scale_intrinsics,
    upright,
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
    assert scaled[:2].tolist() == [[45.0, 0.25, 7.25], [0.0, 160.0, 22.5]]
    scaled = scale_intrinsics(intrinsics, 0.5, 2.0)[0]
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


def rolled(degrees):
    """A rotation about the line of sight."""
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    motion = torch.eye(4, dtype=torch.float64)
    motion[:2, :2] = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])
    return motion


@pytest.mark.parametrize("degrees", [-170, -130, -90, -50, 50, 90, 100, 180])
def test_a_turned_camera_is_made_upright_and_sees_the_same(degrees):
    intrinsics, extrinsics = cameras(2)
    intrinsics[:, 0, 1] = 0
    extrinsics[1] = rolled(degrees) @ extrinsics[0]
    extrinsics[1, 0, 3] += 0.3
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(32.0), indexing="ij")
    images = torch.stack([x, y, torch.ones_like(x)]).repeat(2, 1, 1, 1)
    turned, matrices, motions = upright(images, intrinsics, extrinsics)
    torch.testing.assert_close(turned[0], images[0])
    check_camera(matrices, motions)
    relative = relative_pose(motions[0], motions[1])
    assert torch.atan2(relative[1, 0], relative[0, 0]).abs() <= torch.pi / 4 + 1e-6
    torch.testing.assert_close(camera_centre(motions), camera_centre(extrinsics))
    # A pixel says where it came from: there the camera as it was saw the same point.
    places = turned[1].flatten(1).T.double()
    points = lift(torch.full((24, 32), 2.0).double(), matrices[1], motions[1]).reshape(-1, 3)
    before, depth = project(points, intrinsics[1], extrinsics[1])
    seen = places[:, 2] == 1
    assert seen.sum() >= 24 * 24 - 24
    torch.testing.assert_close(before[seen], places[seen, :2])
    torch.testing.assert_close(depth, torch.full_like(depth, 2.0))


def test_upright_and_skewed_cameras_stay_as_they_are():
    intrinsics, extrinsics = cameras(2)
    extrinsics[1] = rolled(40) @ extrinsics[0]
    images = torch.rand(2, 3, 8, 9)
    for motion in (extrinsics[1], rolled(90) @ extrinsics[0]):
        views = images, intrinsics, torch.stack([extrinsics[0], motion])
        for before, after in zip(views, upright(*views), strict=True):
            torch.testing.assert_close(after, before, rtol=0, atol=0)
