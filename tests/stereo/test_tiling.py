"""Any range and size: what is near or large is matched in moved tiles, without a seam."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stereo_fixtures import BlockMatcher, pair_of

import vizoo
from vizoo.stereo.tiling import least_pixels, offsets, refine, tiles


def slope(height=160, width=480, low=10.0, high=36.0):
    """A plane: disparities grow from the top to the bottom."""
    return torch.linspace(low, high, height)[:, None].expand(height, width).contiguous()


@given(
    st.integers(1, 900),
    st.integers(1, 900),
    st.one_of(st.none(), st.integers(1, 500_000)),
    st.integers(0, 200),
)
def test_tiles_cover_everything_once(height, width, pixels, margin):
    total = torch.zeros(height, width)
    for rows, columns, weight in tiles(height, width, pixels, margin):
        assert 0 <= rows.start < rows.stop <= height and 0 <= columns.start < columns.stop <= width
        assert (weight >= 0).all()
        total[rows, columns] += weight
    torch.testing.assert_close(total, torch.ones_like(total))


def test_tiles_fit_into_memory():
    sizes = [
        (rows.stop - rows.start) * (columns.stop - columns.start + 96)
        for rows, columns, _ in tiles(6000, 8000, 1_000_000, 96)
    ]
    assert max(sizes) <= 1_000_000 and len(sizes) < 120


def test_tiles_take_in_no_more_than_is_needed():
    """Beside them, what was found and a little; never more than the picture."""
    sizes = {60: [], 300: []}
    for reach, seen in sizes.items():

        def match(left, right, seen=seen):
            seen.append(left.shape[1:])
            return torch.full((1, *left.shape[1:]), 10.0)

        coarse = torch.full((1, 400, 900), 10.0)
        refine(match, *torch.rand(2, 3, 400, 900), coarse, 0.5, reach, 120_000)
    assert sizes[60] == sizes[300] and len(sizes[60]) >= 4
    assert max(height * width for height, width in sizes[60]) <= 120_000
    assert least_pixels(400, 250, 300) == 258 * 250 < least_pixels(400, 900, 300) == 258 * 558


@given(st.floats(0, 300), st.integers(4, 200))
def test_every_disparity_is_brought_within_reach(disparity, reach):
    part = torch.full((3, 4), disparity)
    moves = list(offsets(part, reach))
    total = sum(weight for _, weight in moves)
    torch.testing.assert_close(total, torch.ones_like(total), atol=2 / reach + 1e-5, rtol=0)
    for offset, weight in moves:
        if (weight > 0.01).any():
            assert -1 <= disparity - offset <= reach + 1


def test_what_is_beyond_reach_is_found_at_full_size():
    truth = slope()
    left, right = pair_of(truth)
    predictor = vizoo.StereoPredictor(BlockMatcher(24), "cpu")
    with pytest.warns(UserWarning, match="beyond the network's 24 px: .* then at its own around"):
        result = predictor(left, right)
    seen = np.arange(480) > 40
    error = np.abs(result.disparity - truth.numpy())[:, seen]
    coarse = predictor(left, right, scale=result.scale, check=False).disparity
    assert result.scale < 0.7 and np.median(error) < 0.5
    assert np.median(np.abs(coarse - truth.numpy())[:, seen]) > 1.5 * np.median(error)


def test_the_largest_disparity_may_be_said():
    truth = slope(low=40.0, high=90.0)
    left, right = pair_of(truth)
    predictor = vizoo.StereoPredictor(BlockMatcher(24), "cpu")
    result = predictor(left, right, max_disparity=100)
    assert result.scale == 0.24
    error = np.abs(result.disparity - truth.numpy())[:, 110:]
    assert np.median(error) < 0.5


@pytest.mark.parametrize("reach", [None, 64])
def test_no_seam_between_tiles(reach):
    """Tiles whose results differ by nearly a pixel pass into one another without a step."""
    calls = []

    def match(left, right):
        calls.append(left.shape)
        return torch.full_like(left[:1], 10 + 0.4 * (-1) ** len(calls))

    left, right = torch.rand(2, 3, 500, 700).unbind()
    coarse = torch.full((1, 500, 700), 10.0)
    tiled = refine(match, left, right, coarse, 0.5, reach, pixels=120_000)[0]
    assert len(calls) >= 6 and tiled.max() - tiled.min() > 0.7
    assert tiled.diff(dim=0).abs().max() < 0.05 and tiled.diff(dim=1).abs().max() < 0.05


def test_tiles_and_one_piece_agree():
    truth = slope(256, 448, 10.0, 60.0)
    left, right = pair_of(truth)
    net = BlockMatcher(24)

    def match(*views):
        return net(*(view[None] for view in views))[0]

    coarse = truth[None] + 1.5 * torch.sin(torch.arange(448) / 40)
    whole = refine(match, left, right, coarse, 0.5, 24)
    tiled = refine(match, left, right, coarse, 0.5, 24.0, pixels=40_000)
    assert len(list(tiles(256, 448, 40_000, 24))) >= 4
    assert ((whole - tiled).abs() > 0.5).float().mean() < 0.02


def test_memory_bounds_the_network(monkeypatch):
    """The network never gets more pixels than memory allows, finds the same, and it is said."""
    truth = slope(384, 640, 4.0, 18.0)
    left, right = pair_of(truth)
    seen = []

    class Watched(BlockMatcher):
        def forward(self, left, right):
            seen.append(left.shape[-2] * left.shape[-1])
            return super().forward(left, right)

    predictor = vizoo.StereoPredictor(Watched(24), "cpu")
    free = predictor(left, right, check=False)
    assert max(seen) == 384 * 640
    monkeypatch.setattr("vizoo.stereo.infer._LEAST", 10_000)
    monkeypatch.setattr("vizoo.stereo.infer._SAFETY", 1.0)
    monkeypatch.setattr("vizoo.stereo.infer.held_memory", lambda: 100_000_000)
    predictor._bytes = None
    with pytest.warns(UserWarning, match="384x640 pixels do not fit into memory at once"):
        tiled = predictor(left, right, memory=(384 * 640 * 28 + 1e9) / 0.9, check=False)
    after = seen[seen.index(256 * 512) + 1 :]  # the pair that memory is measured with
    assert max(after) <= 100_000 and len(after) >= 5 and tiled.scale < 0.7
    assert np.median(np.abs(tiled.disparity - free.disparity)) < 0.3
    held = r"0.12 GB of memory \(0.1 GB are held already\): in the smallest tiles it needs [1-9]"
    with pytest.raises(ValueError, match="384x640 pixels does not fit into " + held):
        predictor(left, right, memory=1.2e8, check=False)


def test_a_look_at_what_is_far_beyond_reach():
    """The first look saturates, so the pair is looked at smaller still."""
    truth = torch.full((120, 600), 150.0)
    left, right = pair_of(truth)
    with pytest.warns(UserWarning, match="reach about 1[45]"):
        result = vizoo.StereoPredictor(BlockMatcher(40), "cpu")(left, right, check=False)
    assert np.median(np.abs(result.disparity[:, 170:] - 150)) < 1


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"max_disparity": -4}, {"memory": float("nan")}])
def test_refused(wrong):
    left, right = pair_of(slope(64, 96, 2.0, 4.0))
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be positive"):
        vizoo.StereoPredictor(BlockMatcher(24), "cpu")(left, right, **wrong)
