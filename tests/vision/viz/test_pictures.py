"""Pictures: colours, legends and clouds say what they should."""

import numpy as np
import pytest
import torch

from vizoo.vision.viz import cloud, colour
from vizoo.vision.viz.cloud import cloud_picture
from vizoo.vision.viz.colour import (
    colour_range,
    colourise,
    comparison_picture,
    disparity_picture,
)


def test_colourise():
    values = np.array([[1.0, 10.0, 0.0], [np.nan, np.inf, 5.0]], np.float32)
    picture = colourise(values, low=1, high=10)
    assert picture.shape == (2, 3, 3) and picture.dtype == np.uint8
    assert (picture[0, 2] == 0).all() and (picture[1, :2] == 0).all()
    assert picture[0, 0].tolist() == [48, 18, 59]  # turbo's first colour
    assert picture[0, 1].tolist() == [122, 4, 3]  # and its last
    masked = colourise(torch.from_numpy(values)[None], np.array([[True] * 3, [False] * 3]))
    assert (masked[1] == 0).all()
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        colourise(np.ones(3))


def test_large_maps_are_coloured_in_strips(monkeypatch):
    values = np.random.default_rng(0).uniform(0, 50, (37, 53)).astype(np.float32)
    values[:5] = np.inf
    whole = colourise(values)
    monkeypatch.setattr(colour, "_STRIP", 200)
    np.testing.assert_array_equal(colourise(values), whole)


def test_logarithmic_colours_follow_ratios():
    values = np.array([[1.0, 10.0, 100.0]], np.float32)
    straight = colourise(np.array([[1.0, 2.0, 3.0]], np.float32), low=1, high=3)
    np.testing.assert_array_equal(colourise(values, low=1, high=100, logarithmic=True), straight)
    picture = disparity_picture(values, label="depth [m]", palette="turbo_r", logarithmic=True)
    assert picture.shape[1] > 3
    assert disparity_picture(np.zeros((4, 4)), logarithmic=True).size


@pytest.mark.parametrize(
    ("low", "high"),
    [(1.3, 19.4), (0.9, 11), (0.1, 50), (3.0, 3.1), (425, 1935), (0.306, 7.96), (0.5, 3.6)],
)
def test_a_logarithmic_legend_reaches_both_ends(low, high, monkeypatch):
    figures = []
    draw = colour.draw_figure
    monkeypatch.setattr(colour, "draw_figure", lambda f: figures.append(f) or draw(f))
    disparity_picture(np.full((240, 60), 2.0), low=low, high=high, logarithmic=True)
    (figure,) = figures
    ticks = [tick for axes in figure.axes for tick in axes.get_yticks()]
    assert ticks == sorted(ticks) and ticks[0] == low and ticks[-1] == high
    assert len(ticks) > 3 or high < 2 * low
    steps = np.diff(np.log(ticks)) / np.log(high / low)
    assert steps.min() > 0.05  # about the height of the type
    assert figure.axes[0].get_yticklabels()[-1].get_text() == str(high)


def test_a_legend_has_room_for_its_label_beside_long_numbers():
    how = {"low": 0.306, "high": 7.96, "logarithmic": True}
    plain, labelled = (
        disparity_picture(np.full((320, 60), 2.0), label=label, **how)
        for label in ("", "depth [m]")
    )
    added = labelled[:, plain.shape[1] :]
    assert (added.min(axis=(0, 2)) < 90).sum() > 5  # columns with type
    assert labelled[:, -3:].min() == plain[:, -3:].min() == 255


def test_range_ignores_outliers_and_unknown_pixels():
    values = np.linspace(10, 20, 1000, dtype=np.float32).reshape(10, 100)
    values[0, :5] = (0, -1, np.nan, np.inf, 1e6)
    low, high = colour_range(values)
    assert 9 < low < 10.5 and 19.5 < high < 21
    assert colour_range(np.zeros((2, 2))) == (0, 1)
    for logarithmic in (False, True):
        low, high = colour_range(np.full((2, 2), 7.0), logarithmic=logarithmic)
        assert low < 7 < high


def test_a_far_background_takes_no_colours_from_near_things():
    depth = np.geomspace(1.5, 80, 1000, dtype=np.float32).reshape(10, 100)
    low, high = colour_range(depth, logarithmic=True)
    assert 1.3 < low < 1.7 and 70 < high < 90
    shown = colourise(depth, palette="turbo_r", logarithmic=True)
    straight = colourise(np.log(depth), palette="turbo_r", low=np.log(low), high=np.log(high))
    assert (np.abs(shown.astype(int) - straight).max(axis=2) < 12).all()


@pytest.mark.parametrize("shape", [(30, 40), (490, 300)])
def test_legend_stands_beside_the_map(shape):
    values = np.random.default_rng(0).uniform(1, 60, shape).astype(np.float32)
    picture = disparity_picture(values)
    enlarge = 8 if shape[0] == 30 else 1
    height, width = shape[0] * enlarge, shape[1] * enlarge
    assert picture.shape[0] == height and picture.shape[1] > width
    np.testing.assert_array_equal(picture[::enlarge, :width:enlarge], colourise(values))
    strip = picture[:, width:]
    assert (strip == 255).all(axis=2).mean() > 0.4  # paper
    assert (strip.max(axis=2) < 90).sum() > 30  # type


def test_comparison():
    left = torch.rand(3, 40, 60)
    truth = np.full((40, 60), 5.0, np.float32)
    truth[:10] = 0
    full = comparison_picture(left, truth + 1, truth)
    half = comparison_picture(left, torch.from_numpy(truth)[None] + 1)
    assert full.dtype == np.uint8 and full.shape[2] == 3
    assert half.shape[1] == full.shape[1] and half.shape[0] < full.shape[0]
    assert comparison_picture(left, truth, np.zeros_like(truth)).size


def plane(z: float, colour, focal=100.0, size=(40, 60)):
    rows, columns = np.mgrid[: size[0], : size[1]].reshape(2, -1)
    points = np.stack(
        [(columns - 30) * z / focal, (rows - 20) * z / focal, np.full(rows.size, z)], 1
    )
    return points, np.full((rows.size, 3), colour, np.uint8)


def test_cloud_is_dense_and_nearer_points_hide_farther_ones():
    far, near = plane(10, (0, 0, 255)), plane(4, (255, 0, 0))
    middle = (np.abs(near[0][:, 0]) < 0.4) & (np.abs(near[0][:, 1]) < 0.3)
    points = np.concatenate([near[0][middle], far[0]])
    colours = np.concatenate([near[1][middle], far[1]])
    picture = cloud_picture(points, colours, source_focal=100, source_size=(40, 60), width=300)
    assert picture.shape[1] == 300 and picture.dtype == np.uint8
    red = (picture[:, :, 0] > 200).mean()
    blue = (picture[:, :, 2] > 200).mean()
    assert 0.03 < red < 0.4 and blue > 0.4
    inside = np.argwhere(picture[:, :, 0] > 200).mean(axis=0).astype(int)
    patch = picture[inside[0] - 5 : inside[0] + 5, inside[1] - 5 : inside[1] + 5]
    assert (patch[:, :, 0] > 200).all()  # no far point shines through, and no hole


@pytest.mark.parametrize("far", [1.0, 1e4, 1e30])
def test_each_pixel_of_a_cloud_shows_the_nearest_square(monkeypatch, far):
    monkeypatch.setattr(cloud, "_OVERSAMPLE", 1)
    monkeypatch.setattr(cloud, "_close_gaps", lambda *maps: maps)
    draws = np.random.default_rng(0)
    rows, columns = far * (draws.uniform(-1, 2, (2, 200)) * [[24], [32]]).astype(np.float32)
    depth, sides = draws.uniform(1, 9, 200).astype(np.float32), draws.uniform(0, 24, 200)
    colours = draws.integers(0, 256, (200, 3), dtype=np.uint8)
    wanted = np.empty((24, 32, 3), np.uint8)
    wanted[:] = cloud._BACKGROUND
    for i in np.argsort(-depth):
        side = int(np.clip(np.ceil(1.2 * sides[i]), 1, 24))
        top, left = (float(np.rint(x[i] - side / 2)) for x in (rows, columns))
        if max(abs(top), abs(left)) < 100:
            low, high = max(int(top), 0), max(int(left), 0)
            wanted[low : max(int(top) + side, 0), high : max(int(left) + side, 0)] = colours[i]
    painted = cloud._paint(rows, columns, depth, sides, colours, (24, 32))
    np.testing.assert_array_equal(painted, wanted)


def test_cloud_refuses():
    points, colours = plane(3, (1, 2, 3))
    with pytest.raises(ValueError, match="no point in front"):
        cloud_picture(-points, colours, source_focal=100, source_size=(40, 60))
    with pytest.raises(ValueError, match=r"both \(N, 3\)"):
        cloud_picture(points, colours[1:], source_focal=100, source_size=(40, 60))


def test_one_point_is_a_cloud():
    picture = cloud_picture(
        np.array([[0, 0, 2.0]]),
        np.array([[9, 200, 9]]),
        source_focal=50,
        source_size=(30, 40),
        width=80,
    )
    assert (picture[:, :, 1] > 100).any()
