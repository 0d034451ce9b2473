"""Rectification by matches alone: rows agree, pictures stay what they are, doubts are said."""

import cv2
import numpy as np
import pytest
from raw_rigs import HEIGHT, WIDTH, Board, make_rig, noise, two_planes

from vizoo.stereo.auto_rectify import auto_rectifier
from vizoo.stereo.rectification import check_pair, measure_pair


@pytest.fixture(scope="module")
def pairs():
    return [two_planes(make_rig("plain"), seed) for seed in range(3)]


@pytest.mark.parametrize("count", [1, 3])
def test_rows_agree(pairs, count):
    assert any("not rectified" in doubt for doubt in check_pair(*pairs[0]))
    rectifier = auto_rectifier(pairs[:count])
    for pair in pairs[:count]:
        found = measure_pair(*rectifier(*pair))
        assert found.row_offset < 0.3 and found.row_trend < 0.5
        assert found.shift > 5 and found.swapped_share == 0
    (note,) = rectifier.notes
    assert "without a calibration" in note and "not how far" in note
    assert rectifier.calibration is None


def test_pictures_are_hardly_changed(pairs):
    rectifier = auto_rectifier(pairs)
    own = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT)), -1)
    for places in rectifier.maps:
        step = np.diff(places, axis=1)
        assert 0.9 < step[..., 0].min() and step[..., 0].max() < 1.1
        assert np.abs(places - own).mean() < 40


def test_disparities_are_above_0(pairs):
    """Where cameras look at something near, what is far behind moves the other way."""
    moved = [(left, np.roll(right, 60, axis=1)) for left, right in pairs]
    assert measure_pair(*moved[0]).shift < 0
    assert measure_pair(*auto_rectifier(moved)(*moved[0])).swapped_share < 0.1


def test_swapped(pairs):
    notes = auto_rectifier([(right, left) for left, right in pairs]).notes
    assert any("swapped" in note for note in notes)


def test_too_little_to_go_by(pairs):
    flat = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    with pytest.raises(ValueError, match="0 keypoints .* 30 are needed .* calibration, or more"):
        auto_rectifier([(flat, flat)])
    with pytest.raises(ValueError, match="50x100 and 240x320 pixels are not of the same"):
        auto_rectifier([pairs[0], (flat[:50, :100], flat[:50, :100])])


def test_files_of_twelve_bits(pairs, tmp_path):
    """A camera of 12 bits leaves the upper ones of its files empty."""
    files = [tmp_path / "left.png", tmp_path / "right.png"]
    for file, view in zip(files, pairs[0], strict=True):
        cv2.imwrite(str(file), 16 * view[..., ::-1].astype(np.uint16))
    found = measure_pair(*auto_rectifier([files])(*files))
    assert found.matches >= 50 and found.row_offset < 0.3


def test_lenses_that_bend_are_doubted():
    rig, plane = make_rig("fisheye"), Board((0, 0, 0.5), (0.1, 0.3, 0))
    pair = plane.pair(rig, noise(1))
    rectifier = auto_rectifier([pair])
    assert any("straight lines: a calibration does better" in note for note in rectifier.notes)
    assert measure_pair(*rectifier(*pair)).matches > 100  # and still one sees something


def test_what_is_no_stereo_pair_is_refused(pairs):
    left, _ = pairs[0]
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    waved = cv2.remap(left, x + 5, y + 9 * np.sin(x / 20), cv2.INTER_LINEAR)
    with pytest.raises(ValueError, match="not|keypoints match"):
        auto_rectifier([(left, waved)])
