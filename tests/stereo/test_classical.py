"""OpenCV's semi-global matching as a yardstick."""

from __future__ import annotations

import pytest
import torch

from vizoo.datasets.stereo import GeneratedStereo
from vizoo.stereo.classical import block_matching, semi_global_matching
from vizoo.stereo.metrics import DisparityMetrics


@pytest.mark.parametrize("match", [semi_global_matching, block_matching])
def test_matching_finds_most_scenes(match):
    scenes = GeneratedStereo(4, 128, 256, seed=3, max_disparity=32)
    found, constant = DisparityMetrics(), DisparityMetrics()
    for sample in scenes:
        truth, valid = sample["disparity"][None], sample["valid"][None]
        disparity = match(sample["left"], sample["right"])
        found.update(truth.new_tensor(disparity)[None, None], truth, valid)
        constant.update(truth[valid].median().expand_as(truth), truth, valid)
    assert found.compute()["bad2"] < constant.compute()["bad2"] / 2


def test_semi_global_matching_of_nothing_is_zero():
    grey = torch.full((3, 64, 160), 0.5)
    assert (semi_global_matching(grey, grey) == 0).all()


@pytest.mark.parametrize("rows", [1, 2, 5, 9, 15, 16])
def test_low_pictures_are_matched(rows):
    texture = torch.rand(3, rows, 200, generator=torch.Generator().manual_seed(0))
    found = semi_global_matching(texture[..., :-8], texture[..., 8:], disparities=32, fill=False)
    assert found.shape == (rows, 192) and (found >= 0).all()
    if rows > 4:
        assert abs(found[found > 0] - 8).max() < 1 and (found > 0).mean() > 0.5
    for narrow in (1, 2, 3):
        few = texture[..., :narrow]
        assert semi_global_matching(few, few, disparities=32).shape == (rows, narrow)


def test_what_is_not_sure_is_left_out():
    """Of what is left most is right; the rest, and what lies beyond the reach, is 0."""
    scene = GeneratedStereo(1, 128, 256, seed=3, max_disparity=32)[0]
    views, truth = (scene["left"], scene["right"]), scene["disparity"][0]
    whole = torch.from_numpy(semi_global_matching(*views, disparities=32))
    sure = torch.from_numpy(semi_global_matching(*views, disparities=32, fill=False))
    wrong = (whole - truth).abs() > 1
    assert 0.5 < (sure > 0).float().mean() < 1 and sure.min() == 0 and whole.gt(0).all()
    assert whole[sure > 0].equal(sure[sure > 0])
    assert wrong[sure == 0].float().mean() > 1.5 * wrong[sure > 0].float().mean()
    assert semi_global_matching(*views, disparities=16, fill=False).max() < 16


def test_small_squares_and_penalties_find_what_is_thin():
    torch.manual_seed(0)
    background, bar = torch.rand(3, 64, 160), torch.rand(3, 64, 4)
    left, right = background, background.roll(-2, -1)
    left[..., 80:84] = right[..., 72:76] = bar
    shares = []
    for how in ({}, {"block": 3, "penalty": 4}):
        disparity = semi_global_matching(left, right, disparities=16, **how)
        shares.append((abs(disparity[8:-8, 80:84] - 8) < 1).mean())
    assert shares[0] < 0.2 and shares[1] > 0.7
