"""Overlays: a picture shows through where nothing is hot, and everything has its place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vizoo.classification.overlays import overlay_picture


def inside(picture, side, wide=None):
    """The first panel of a picture without a title."""
    return picture[8 : 8 + side, 8 : 8 + (wide or side)].astype(int)


def test_cold_pixels_keep_their_grey_and_hot_ones_are_coloured():
    grey = np.tile(np.linspace(0, 1, 40, dtype=np.float32), (40, 1))
    heat = np.zeros((40, 40), np.float32)
    heat[20:] = 1
    found = inside(overlay_picture([grey], [heat], side=160), 160)
    upper, lower = found[20:60], found[100:140]
    assert np.abs(upper - upper[:, :, :1]).max() == 0  # grey
    assert (np.diff(upper[0, :, 0]) >= -1).all() and upper[0, -1, 0] > 250 > 5 > upper[0, 0, 0]
    assert (lower[:, :, 0] - lower[:, :, 2]).min() > 40  # red


def test_images_and_volumes_alike():
    """Grey and RGB, arrays and tensors, maps of fewer cells, sides that differ."""
    heat = torch.zeros(3, 4)
    grey = overlay_picture([torch.full((1, 30, 40), 0.5)], [heat], side=80)
    assert np.array_equal(grey, overlay_picture([np.full((30, 40), 0.5)], [heat.numpy()], side=80))
    colour = torch.zeros(3, 30, 40)
    colour[2] = 1
    found = inside(overlay_picture([colour], [heat], side=80), 60, 80)
    assert (found == (0, 0, 255)).all()


def test_the_place_of_a_heat_is_kept():
    heat = np.zeros((8, 8), np.float32)
    heat[2, 6] = 1
    found = inside(overlay_picture([np.zeros((64, 64))], [heat], side=128), 128)
    rows, columns = np.indices((128, 128))
    weight = found.sum(2)
    centre = [(weight * axis).sum() / weight.sum() for axis in (rows, columns)]
    assert centre == pytest.approx([2.5 * 16, 6.5 * 16], abs=2)


def test_words_make_room():
    """Title and note stand beside the pictures, captions and marks on them."""
    blank = [np.zeros((32, 32))] * 3
    plain = overlay_picture(blank, blank, side=128)
    assert plain.dtype == np.uint8 and plain.shape[1] > 3 * 128
    titled = overlay_picture(blank, blank, side=128, title="t", note="n")
    assert titled.shape[0] > plain.shape[0] and titled.shape[1] == plain.shape[1]
    assert overlay_picture(blank, blank, side=128, title="t " * 90).shape[0] > titled.shape[0]
    plainly = overlay_picture(blank, blank, side=128, title="t", note="n", label="$_$")
    assert plainly.shape == titled.shape  # names of files and classes are no formulas
    written = overlay_picture(blank, blank, side=128, captions=["slice $^$ 1"] * 3, marks="RLAP")
    assert written.shape == plain.shape
    left, right, upper, lower = (
        inside(written, 128)[rows, columns].max()
        for rows, columns in (
            (slice(50, 78), slice(0, 20)),
            (slice(50, 78), slice(108, 128)),
            (slice(0, 24), slice(56, 72)),
            (slice(104, 128), slice(56, 72)),
        )
    )
    assert min(left, right, upper, lower) > 100 and inside(plain, 128).max() == 0


@pytest.mark.parametrize(
    ("images", "heats", "captions", "said"),
    [
        ([], [], (), "0 pictures, 0 heat maps"),
        ([torch.rand(4, 4)], [], (), "1 pictures, 0 heat maps"),
        ([torch.rand(4, 4)], [torch.rand(4, 4)], ("a", "b"), "2 captions"),
        ([torch.rand(2, 4, 4)], [torch.rand(4, 4)], (), r"got \(2, 4, 4\)"),
        ([torch.rand(4, 4)], [torch.rand(1, 4, 4)], (), r"got \(1, 4, 4\)"),
    ],
)
def test_refused(images, heats, captions, said):
    with pytest.raises(ValueError, match=said):
        overlay_picture(images, heats, captions=captions)


def test_pictures_of_one_frame_share_nothing():
    """Slices of a scan have title, note and bar in common, which are drawn once."""
    blank, black = [np.zeros((32, 32))], np.zeros((32, 32))
    first = overlay_picture(blank, [black], side=128, title="scan")
    expected = first.copy()
    first[:] = 7
    assert np.array_equal(overlay_picture(blank, [black], side=128, title="scan"), expected)
    other = overlay_picture(blank, [black], side=128, title="another")
    assert other.shape == expected.shape and not np.array_equal(other, expected)
