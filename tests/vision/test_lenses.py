"""Lens models: there and back, against OpenCV, and what lies beyond a lens's field."""

import math

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vizoo.vision.lenses import MODELS, Lens

CAMERA = {"focal": (310.0, 305.0), "centre": (322.5, 241.0), "width": 640, "height": 480}
LENSES = {
    "plain": Lens("pinhole", **CAMERA),
    "radtan": Lens("pinhole", distortion=(-0.28, 0.07, 2e-4, 2e-5), **CAMERA),
    "rational": Lens("pinhole", distortion=(3.1, 1.2, 1e-4, -2e-4, 0.05, 3.5, 2.4, 0.3), **CAMERA),
    "prism": Lens(
        "pinhole",
        distortion=(-0.2, 0.05, 1e-3, -1e-3, 0.01, 0, 0, 0, 1e-3, 1e-4, -1e-3, 2e-4),
        **CAMERA,
    ),
    "fisheye": Lens("fisheye", distortion=(-0.013, 0.021, -0.012, 0.003), **CAMERA),
    "fov": Lens("fov", distortion=(0.93,), **CAMERA),
    "mei": Lens(
        "mei",
        distortion=(1.4, -0.2, 0.05, 1e-3, -5e-4),
        skew=1.5,
        **{**CAMERA, "focal": (700.0, 690.0)},
    ),
    "ds": Lens("ds", distortion=(-0.18, 0.59), **CAMERA),
    "eucm": Lens("eucm", distortion=(0.6, 1.1), **CAMERA),
}
EVERY = pytest.mark.parametrize("name", LENSES)


def ray(angle, turn):
    return np.array(
        [math.sin(angle) * math.cos(turn), math.sin(angle) * math.sin(turn), math.cos(angle)]
    )


@EVERY
@given(angle=st.floats(0, 0.8), turn=st.floats(0, 6.3), depth=st.floats(0.01, 100))
def test_there_and_back(name, angle, turn, depth):
    lens, point = LENSES[name], ray(angle, turn)
    pixel = lens.project(point * depth)
    assert np.isfinite(pixel).all()
    assert lens.unproject(pixel) == pytest.approx(point, abs=1e-9)


@EVERY
@given(u=st.floats(-300, 940), v=st.floats(-300, 780))
def test_pixels_that_look_somewhere_lie_there(name, u, v):
    """Or they look nowhere."""
    lens = LENSES[name]
    found = lens.unproject(np.array([u, v]))
    if np.isfinite(found).all():
        assert np.linalg.norm(found) == pytest.approx(1)
        assert lens.project(found) == pytest.approx(np.array([u, v]), abs=1e-5)


@EVERY
def test_the_axis_is_the_centre_and_pictures_are_seen_whole(name):
    lens = LENSES[name]
    assert lens.project(np.array([0, 0, 2.0])) == pytest.approx(lens.centre)
    grid = np.stack(np.meshgrid(np.arange(0, 640, 20), np.arange(0, 480, 20)), -1)
    assert np.isfinite(lens.unproject(grid)).all()


@pytest.mark.parametrize("name", ["fisheye", "mei", "ds", "eucm"])
def test_wide_lenses_see_sideways(name):
    lens = LENSES[name]
    point = ray(1.65, 0.4)  # 95 degrees off the axis
    assert lens.unproject(lens.project(point)) == pytest.approx(point, abs=1e-9)


@pytest.mark.parametrize("name", ["plain", "radtan", "rational", "prism", "fov"])
def test_what_lies_behind_is_not_seen(name):
    assert np.isnan(LENSES[name].project(np.array([0.1, 0.1, -1.0]))).all()


def test_a_lens_that_folds_back_sees_nothing_beyond():
    """Past its turning point a polynomial would lead back into the picture."""
    lens = Lens("pinhole", distortion=(-0.3, 0.0, 0, 0), **CAMERA)
    turning = math.sqrt(1 / 0.9)
    inside, beyond = ((turning * s, 0, 1) for s in (0.99, 1.01))
    assert np.isfinite(lens.project(np.array(inside))).all()
    assert np.isnan(lens.project(np.array(beyond))).all()
    assert np.isnan(lens.unproject(np.array([640.0, 241]))).all()  # no ray leads there


def points():
    generator = np.random.default_rng(1)
    return generator.uniform((-1, -1, 1.5), (1, 1, 4), (50, 3))


@pytest.mark.parametrize("name", ["plain", "radtan", "rational", "prism"])
def test_pinhole_is_opencvs(name):
    lens = LENSES[name]
    matrix = np.array([[310, 0, 322.5], [0, 305, 241], [0, 0, 1]])
    nothing = np.zeros(3)
    numbers = np.array(lens.distortion or (0, 0, 0, 0), float)
    expected, _ = cv2.projectPoints(points(), nothing, nothing, matrix, numbers)
    assert lens.project(points()) == pytest.approx(expected[:, 0], abs=1e-8)


def test_fisheye_is_opencvs():
    lens = LENSES["fisheye"]
    matrix = np.array([[310, 0, 322.5], [0, 305, 241], [0, 0, 1]])
    nothing = np.zeros((3, 1))
    expected, _ = cv2.fisheye.projectPoints(
        points()[:, None], nothing, nothing, matrix, np.array(lens.distortion)
    )
    assert lens.project(points()) == pytest.approx(expected[:, 0], abs=1e-8)


def test_models_agree_where_one_is_a_case_of_another():
    plain, seen = LENSES["plain"].project(points()), points()
    for model, numbers in (("mei", (0.0,)), ("ds", (0.0, 0.0)), ("eucm", (0.0, 1.0))):
        assert Lens(model, distortion=numbers, **CAMERA).project(seen) == pytest.approx(plain)
    # Mei's sphere is the unified camera, of which alpha = xi / (1 + xi) at a scaled focal length.
    xi, focal = 0.9, tuple(f * 1.9 for f in CAMERA["focal"])
    unified = Lens("mei", distortion=(xi,), **{**CAMERA, "focal": focal})
    assert Lens("eucm", distortion=(xi / 1.9, 1.0), **CAMERA).project(seen) == pytest.approx(
        unified.project(seen)
    )


def test_another_size():
    lens = LENSES["mei"]
    half, point = lens.resized(240, 320), np.array([0.3, -0.2, 1.0])
    assert half.project(point) == pytest.approx((lens.project(point) + 0.5) / 2 - 0.5)
    said = r"480x640 \(height x width\), these have 640x640: not the same picture"
    with pytest.raises(ValueError, match=said):
        lens.resized(640, 640)
    unknown = Lens("pinhole", (300, 300), (320, 240))
    assert unknown.resized(480, 640).width == 640


@pytest.mark.parametrize(
    ("model", "numbers", "message"),
    [
        ("tele", (), f"unknown lens model 'tele': {', '.join(MODELS)}"),
        ("pinhole", (1, 2, 3), "pinhole has 0 or 4 or 5 or 8 or 12 or 14 numbers, got 3"),
        ("pinhole", (0,) * 13 + (0.1,), "tilted sensor"),
        ("fisheye", (1, 2), "fisheye has 4 numbers"),
        ("fov", (4,), "0 < w < pi"),
        ("mei", (-1,), "0 <= xi"),
        ("ds", (0, 1), "alpha < 1"),
        ("eucm", (0.5, 0), "beta > 0"),
        ("ds", (0, math.nan), "not finite"),
    ],
)
def test_impossible_lenses(model, numbers, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Lens(model, distortion=numbers, **CAMERA)
    with pytest.raises(ValueError, match="focal length must be positive"):
        Lens("pinhole", (0, 1), (0, 0))
    for width, height in ((0, 480), (-640, -480), (640, None)):
        with pytest.raises(ValueError, match=f"{height}x{width}"):
            Lens("pinhole", (1, 1), (0, 0), width=width, height=height)
