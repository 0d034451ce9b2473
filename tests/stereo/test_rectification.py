"""Warnings about swapped and unrectified pairs: given when due, silent otherwise."""

import cv2
import numpy as np
import pytest

from vizoo.stereo.rectification import check_pair, matched_points, measure_pair
from vizoo.vision.io.images import read_image

REAL = [
    "stereo_real/playground/im0.png stereo_real/playground/im1.png",
    "stereo_real/cones/left.png stereo_real/cones/right.png",
    "kitti_sample/left.png kitti_sample/right.png",
    "sceneflow_sample/left.png sceneflow_sample/right.png",
]


def synthetic_pair(height=200, width=320):
    """A blobby texture whose rows slant away from 6 to 18 pixels of disparity."""
    noise = np.random.default_rng(3).integers(0, 256, (height, width + 40, 3), dtype=np.uint8)
    texture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2.0), None, 0, 255, cv2.NORM_MINMAX)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    disparity = 6 + 12 * rows / height
    left = cv2.remap(texture, columns + 20, rows, cv2.INTER_LINEAR)
    right = cv2.remap(texture, columns + 20 + disparity, rows, cv2.INTER_LINEAR)
    return left, right


def rotated(image, degrees):
    height, width = image.shape[:2]
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1)
    return cv2.warpAffine(image, turn, (width, height))


def test_good_pair():
    found = measure_pair(*synthetic_pair())
    assert found.matches > 50 and found.row_offset < 0.3 and found.row_trend < 1
    assert 8 < found.shift < 16 and found.swapped_share == 0
    assert check_pair(*synthetic_pair()) == []


def test_swapped():
    left, right = synthetic_pair()
    (warning,) = check_pair(right, left)
    assert "left and right look swapped" in warning


@pytest.mark.parametrize("change", [lambda i: rotated(i, 2), lambda i: np.roll(i, 6, axis=0)])
def test_not_rectified(change):
    left, right = synthetic_pair()
    (warning,) = check_pair(left, change(right))
    assert "not rectified" in warning and "median vertical offset" in warning
    assert "\n" not in warning


def test_a_glance_at_a_large_pair_measures_the_same():
    left, right = (cv2.resize(view, (1000, 600)) for view in synthetic_pair())
    moved = np.roll(right, 3, axis=0)
    whole, glance = (measure_pair(left, moved, glance=glance) for glance in (False, True))
    assert glance.row_offset == pytest.approx(whole.row_offset, abs=0.05)
    assert glance.shift == pytest.approx(whole.shift, rel=0.05)
    (warning,) = check_pair(left, moved)
    assert "median vertical offset 3.0 px" in warning
    assert check_pair(left, right) == []


def test_places_in_a_reduced_picture_are_of_pixels_centres():
    """Those of a picture and of itself turned by half a turn add up to its last pixel."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 2400, 3), dtype=np.uint8)
    texture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 5.0), None, 0, 255, cv2.NORM_MINMAX)
    one, other = matched_points(texture, texture[::-1, ::-1])
    assert len(one) > 50
    np.testing.assert_allclose(np.median(one + other, axis=0), (2399, 299), atol=0.1)


@pytest.mark.parametrize("size", [(2, 6000), (6000, 2), (1, 1)])
def test_nothing_is_said_of_slivers(size):
    noise = np.random.default_rng(0).integers(0, 256, (2, *size, 3), dtype=np.uint8)
    assert check_pair(*noise) == []


def test_nothing_is_said_without_matches():
    flat = np.full((60, 80, 3), 128, np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (2, 60, 80, 3), dtype=np.uint8)
    assert measure_pair(flat, flat) is None
    assert check_pair(flat, flat) == check_pair(*noise) == []


@pytest.mark.parametrize("names", REAL)
def test_real_pairs(shared, names):
    left, right = (
        read_image(shared / "data" / name).mul(255).byte().permute(1, 2, 0).numpy()
        for name in names.split()
    )
    assert check_pair(left, right) == []
    (warning,) = check_pair(right, left)
    assert "swapped" in warning
    (warning,) = check_pair(left, rotated(right, 2))
    assert "not rectified" in warning
