"""How sure a disparity is: it ranks, it is a chance, and it is written where people look for it."""

import numpy as np
import pytest
import torch
from stereo_fixtures import BlockMatcher, pair_of

import vizoo
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.datasets.stereo.calibration import StereoCalibration
from vizoo.stereo.confidence import confidence, evidence, left_right_difference
from vizoo.vision.io.disparity import read_disparity
from vizoo.vision.io.images import read_pixels
from vizoo.vision.io.pfm import read_pfm
from vizoo.vision.sparsification import ause


def stepped():
    """A board of 20 px before a wall of 6 px."""
    truth = torch.full((120, 240), 6.0)
    truth[30:90, 90:170] = 20.0
    return truth


def test_left_and_right_agree_where_both_see():
    left = stepped()
    right = torch.full((120, 240), 6.0)
    right[30:90, 70:150] = 20.0
    difference = left_right_difference(left, right)
    assert difference[:, :6].isinf().all()  # their matches lie outside
    # Beside the board, 14 columns are hidden behind it in the right image.
    hidden = torch.zeros(120, 240, dtype=torch.bool)
    hidden[30:90, 76:90] = True
    assert (difference[hidden] > 10).all()
    assert (difference[:, 6:][~hidden[:, 6:]] == 0).all()


@pytest.fixture(scope="module")
def scenes():
    made = GeneratedStereo(3, 128, 256, seed=8, max_disparity=60)
    return [made[index] for index in range(3)]


@pytest.fixture(scope="module")
def predictors():
    """Of a network alone, and of it guided."""
    return [vizoo.StereoPredictor("easnet_small", "cpu", guided=guided) for guided in (False, True)]


@pytest.mark.parametrize(
    ("both", "scale", "guided"),
    [(False, 1, False), (True, 1, False), (False, 0.5, False), (False, 1, True), (True, 1, True)],
)
def test_a_real_network_is_ranked_and_about_right(scenes, predictors, both, scale, guided):
    """On scenes that fitted nothing; a chance is off by a tenth at most in the mean."""
    predictor, said, right = predictors[guided], [], []
    for sample in scenes:
        views = sample["left"], sample["right"]
        result = predictor(*views, check=False, both=both, scale=scale)
        known = sample["valid"][0]
        error = (torch.from_numpy(result.disparity) - sample["disparity"][0]).abs()[known]
        sure = torch.from_numpy(result.confidence)[known]
        limit = 0.6 if not both else 0.5 if guided else 0.45  # fused views err in the same places
        assert ause(error.clamp(max=10), sure) < limit
        said.append(sure)
        right.append((error < 1 / scale).float())
    assert abs(torch.cat(said).mean() - torch.cat(right).mean()) < 0.12


def test_any_network_has_one():
    """Without scores of its own: from the images, and from the right one's disparity if asked."""
    truth = stepped()
    views = pair_of(truth)
    predictor = vizoo.StereoPredictor(BlockMatcher(32), "cpu")
    one, both = (predictor(*views, check=False, both=both) for both in (False, True))
    for result in (one, both):
        assert result.confidence.shape == truth.shape and result.confidence.dtype == np.float32
        assert 0 <= result.confidence.min() < result.confidence.max() <= 1
    assert one.occluded is None and one.right_disparity is None
    assert both.occluded[40:80, 78:88].mean() > 0.8  # hidden behind the board
    assert both.occluded[:, 180:].mean() < 0.1
    assert np.median(np.abs(both.right_disparity[40:80, 72:145] - 20)) < 1
    inner = both.confidence[:, 180:]
    assert both.confidence[both.occluded].mean() < 0.5 * inner.mean()


def test_evidence_is_where_it_is():
    truth = stepped()
    left, right = pair_of(truth)
    alike, rough, peak, agree = evidence(left, right, truth)
    assert peak is None and agree is None
    assert alike[:, 30:60].median() > -0.05 and rough[60, 20] < -4 < rough[60, 89]
    wrong = evidence(left, right, truth + 3)[0]
    assert wrong[:, 30:].mean() < alike[:, 30:].mean() - 0.2
    sure = confidence(left, right, truth)
    assert sure[:, 180:].mean() > confidence(left, right, truth + 3)[:, 180:].mean() + 0.1


def test_large_pictures_are_worked_on_in_strips(monkeypatch):
    left, right = pair_of(stepped())
    whole = evidence(left, right, stepped())[:2]
    monkeypatch.setattr("vizoo.stereo.confidence._STRIP", 2400)
    for part, all_of_it in zip(evidence(left, right, stepped())[:2], whole, strict=True):
        torch.testing.assert_close(part, all_of_it, atol=1e-3, rtol=1e-3)


def test_what_is_not_sure_is_left_out(tmp_path):
    views = pair_of(stepped())
    result = vizoo.StereoPredictor(BlockMatcher(32), "cpu")(*views, check=False, both=True)
    kept = result.confident(0.5)
    out = result.confidence < 0.5
    assert 0 < out.mean() < 1 and np.isinf(kept.disparity[out]).all()
    np.testing.assert_array_equal(kept.disparity[~out], result.disparity[~out])
    assert kept.summary()["left_out"] == pytest.approx(out.mean(), abs=1e-4)
    camera = StereoCalibration(200.0, 0.1)
    assert (kept.depth(camera)[out] == 0).all() and (kept.depth(camera)[~out] > 0).any()
    assert len(kept.points(camera)[0]) <= (~out).sum()
    files = {file.name: file for file in kept.save(tmp_path)}
    assert np.isinf(read_pfm(files["pair_disparity.pfm"])[out]).all()
    assert (read_pixels(files["pair_disparity.png"])[out] == 0).all()
    for suffix in ("pfm", "png", "npy"):
        _, valid = read_disparity(files[f"pair_disparity.{suffix}"])
        assert not valid[0].numpy()[out].any()
    np.testing.assert_array_equal(read_pfm(files["pair_confidence.pfm"]), result.confidence)
    np.testing.assert_array_equal(read_pixels(files["pair_occluded.png"]) == 255, result.occluded)
    np.testing.assert_array_equal(
        read_pfm(files["pair_right_disparity.pfm"]), result.right_disparity
    )


@pytest.mark.parametrize("least", [-0.1, 1.1, float("nan")])
def test_refused(least):
    result = vizoo.StereoPredictor(BlockMatcher(32), "cpu")(*pair_of(stepped()), check=False)
    with pytest.raises(ValueError, match="want 0 to 1, of a result that has one"):
        result.confident(least)
