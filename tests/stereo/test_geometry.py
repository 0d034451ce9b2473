"""Disparity, depth and points."""

import pytest
import torch

from vizoo.stereo.geometry import depth_to_points, disparity_to_depth, smooth_surface


def test_depth_of_disparity():
    disparity = torch.tensor([10.0, 0.0, -1.0, torch.inf, torch.nan])
    depth = disparity_to_depth(disparity, focal=500.0, baseline=0.2)
    assert depth.tolist() == [10.0, 0, 0, 0, 0]
    assert disparity_to_depth(disparity[:1], 500.0, 0.2, doffs=10).item() == 5
    assert disparity_to_depth(disparity[:1], 500.0, 0.2, doffs=-10).item() == 0


def test_there_and_back():
    disparity = torch.rand(2, 1, 5, 7) * 50 + 1
    depth = disparity_to_depth(disparity, 700.0, 0.5, doffs=3.0)
    torch.testing.assert_close(700.0 * 0.5 / depth - 3.0, disparity)


def test_gradient_at_unknown_pixels_is_finite():
    disparity = torch.tensor([4.0, 0.0], requires_grad=True)
    disparity_to_depth(disparity, 2.0, 2.0).sum().backward()
    assert disparity.grad.tolist() == [-0.25, 0.0]


def test_points_project_back_to_their_pixels():
    depth = torch.rand(2, 1, 4, 6) + 1
    x, y, z = depth_to_points(depth, 300.0, 2.2, 1.1, focal_y=310.0).unbind(1)
    torch.testing.assert_close(x / z * 300 + 2.2, torch.arange(6.0).expand(2, 4, 6))
    torch.testing.assert_close(y / z * 310 + 1.1, torch.arange(4.0)[:, None].expand(2, 4, 6))
    with pytest.raises(ValueError, match=r"\(B, 1, H, W\), got \(4, 6\)"):
        depth_to_points(depth[0, 0], 300.0, 2.2, 1.1)


def test_steps_are_not_surface():
    disparity = torch.full((1, 1, 6, 8), 10.0)
    disparity[..., 4:] = 30
    disparity[..., 0, 0] = 0
    surface = smooth_surface(disparity)[0, 0]
    assert not surface[:, 3:5].any() and surface[:, 5:].all()
    assert not surface[0, 0] and surface[1, 1]
    ramp = torch.arange(1.0, 60.0).mul(0.3).expand(1, 1, 5, 59)
    assert smooth_surface(ramp).all()
