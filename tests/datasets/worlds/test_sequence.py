"""A rig that moves through a world: what its frames agree on, and what repeats."""

import cv2
import numpy as np
import pytest
import torch

from vizoo.datasets.worlds.layouts import LAYOUTS
from vizoo.datasets.worlds.sequence import WorldSequence

SIZE = (80, 128)


@pytest.fixture(scope="module")
def frames():
    return list(WorldSequence(4, *SIZE, layouts=["table"], seed=3))


def test_the_world_stands_still_while_the_rig_moves(frames):
    """What two frames say of a point agrees: its colour, and its disparity up to the motion."""
    for before, frame in zip(frames, frames[1:], strict=False):
        x, y = (np.nan_to_num(part, nan=-1) for part in frame["earlier"].numpy())
        seen = np.isfinite(frame["earlier"][0].numpy()) & frame["valid"][0].numpy()
        assert 0.8 < seen.mean() < 1
        moved = np.hypot(x - np.arange(SIZE[1]), y - np.arange(SIZE[0])[:, None])[seen]
        assert 0.3 < np.median(moved) < 20
        for name, most in (("left", 0.06), ("disparity", 1.0)):
            past = before[name].numpy().transpose(1, 2, 0)
            past = cv2.remap(np.ascontiguousarray(past), x, y, cv2.INTER_LINEAR)
            off = np.abs(frame[name].numpy().transpose(1, 2, 0) - past.reshape(*SIZE, -1))
            assert np.median(off[seen]) < most, name
            stayed = np.abs(frame[name].numpy() - before[name].numpy())
            assert np.mean(off[seen]) < np.mean(stayed), name


def test_frames_are_what_they_were_in_any_order(frames):
    again = WorldSequence(4, *SIZE, layouts=["table"], seed=3)
    for index in (3, 1):
        one, other = dict(frames[index]), again[index]
        assert one.pop("name") == other.pop("name")
        assert all(torch.equal(one[key].nan_to_num(), other[key].nan_to_num()) for key in other)


def test_the_rig_comes_back_and_the_noise_is_new():
    sequence = WorldSequence(5, 48, 80, layouts=["room"], period=4, noise=0.02)
    first, last = sequence[0], sequence[4]
    torch.testing.assert_close(first["disparity"], last["disparity"])
    off = (first["left"] - last["left"]).std()
    assert 0.01 < off < 0.04
    clean = WorldSequence(5, 48, 80, layouts=["room"], period=4, photometric=False)
    torch.testing.assert_close(clean[0]["left"], clean[4]["left"], atol=0.01, rtol=0)
    assert (clean[0]["left"] - clean[2]["left"]).abs().mean() > 0.01


@pytest.mark.parametrize("layout", LAYOUTS)
def test_disparities_are_about_as_large_as_asked_for(layout):
    sequence = WorldSequence(9, 48, 80, layouts=[layout], max_disparity=20, period=8)
    largest = max(float(sequence[i]["disparity"].max()) for i in (0, 2, 4, 6))
    assert 10 < largest < 40


@pytest.mark.parametrize("wrong", [{"max_disparity": 3}, {"period": 3}, {"noise": -1}])
def test_what_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} {next(iter(wrong.values()))}"):
        WorldSequence(4, 48, 80, **wrong)
