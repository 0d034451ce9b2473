"""Less flicker over generated sequences with truth, and an error that is not worse."""

import cv2
import numpy as np
import pytest

from vizoo.datasets.worlds.sequence import WorldSequence
from vizoo.stereo.steadiness import Steadiness, flicker
from vizoo.vision.io.images import to_bytes


def texture(height=120, width=200, seed=0):
    noise = np.random.default_rng(seed).random((height, width, 3), dtype=np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), 2.5)
    return np.uint8(255 * (noise - noise.min()) / (noise.max() - noise.min()))


@pytest.fixture(scope="module")
def frames():
    return list(WorldSequence(12, 120, 192, layouts=["table"], seed=3))


def test_noise_goes_and_the_error_with_it(frames):
    """Of noise of 0.5 px on the truth, which is new in each frame."""
    random, steady = np.random.default_rng(0), Steadiness()
    errors = {"raw": [], "steady": []}
    for frame in frames:
        truth = frame["disparity"][0].numpy()
        noise = cv2.GaussianBlur(random.normal(0, 1, truth.shape).astype(np.float32), (0, 0), 3)
        raw = np.maximum(truth + 0.5 * noise / noise.std(), 0.1)
        found = {"raw": raw, "steady": steady(to_bytes(frame["left"]), raw)}
        for name, disparity in found.items():
            errors[name].append(np.where(frame["valid"][0], disparity - truth, np.nan))
    last = {name: np.nanmean(np.abs(maps[4:])) for name, maps in errors.items()}
    assert last["steady"] < 0.75 * last["raw"]
    changes = {
        name: np.mean(
            [
                flicker(maps[i], maps[i - 1], frames[i]["earlier"].numpy())
                for i in range(1, len(maps))
            ]
        )
        for name, maps in errors.items()
    }
    assert changes["steady"] < 0.5 * changes["raw"]


def test_the_truth_stays_the_truth(frames):
    """The motion of the rig is no flicker: what was right before it does not hold it back."""
    steady = Steadiness()
    for frame in frames:
        truth = frame["disparity"][0].numpy()
        found = steady(to_bytes(frame["left"]), truth)
        assert np.abs(found - truth).mean() < 0.1


def test_what_appears_is_taken_at_once():
    """A cut, and a thing that comes before what was there."""
    steady, flat = Steadiness(), np.full((120, 200), 10, np.float32)
    steady(texture(seed=1), flat)
    np.testing.assert_array_equal(steady(texture(seed=1), flat), flat)
    new = steady(texture(seed=2), flat + 4)
    np.testing.assert_allclose(np.median(new), 14, atol=0.3)
    nearer = flat + 4
    nearer[40:80, 60:120] = 30
    found = steady(texture(seed=2), nearer)
    assert np.abs(found[40:80, 60:120] - 30).max() < 0.1


def test_unknown_stays_unknown_and_is_forgotten():
    steady, picture = Steadiness(), texture()
    steady(picture, np.zeros((120, 200), np.float32))
    flat = np.full((120, 200), 10, np.float32)
    np.testing.assert_array_equal(steady(picture, flat), flat)
    hole = flat.copy()
    hole[50:60, 50:60] = 0
    assert not steady(picture, hole)[50:60, 50:60].any()


def test_no_mean_with_what_was_unknown():
    """Beside a hole, and at the border, a picture that moves by parts of a pixel looks between."""
    picture = texture() // 5
    moved = cv2.warpAffine(
        picture, np.float32([[1, 0, 0.4], [0, 1, 0.3]]), (200, 120), borderMode=cv2.BORDER_REPLICATE
    )
    flat = np.full((120, 200), 20, np.float32)
    holes = flat.copy()
    holes[40:60, 50:90] = 0
    steady = Steadiness()
    steady(picture, holes)
    assert np.abs(steady(moved, flat) - 20).max() < 0.01


@pytest.mark.parametrize("size", [(1, 1), (8, 40), (16, 16), (40, 1300)])
def test_any_size_and_a_change_of_it(size):
    steady = Steadiness()
    steady(texture(), np.ones((120, 200), np.float32))
    for _ in range(2):
        found = steady(texture(*size), np.full(size, 3, np.float32))
        np.testing.assert_allclose(found, 3, atol=1e-5)
        assert found.dtype == np.float32
