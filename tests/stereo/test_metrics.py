from __future__ import annotations

import pytest
import torch

from vizoo.stereo.metrics import DisparityMetrics


def _compute(prediction, disparity, valid=None, **arguments):
    metrics = DisparityMetrics(**arguments)
    metrics.update(prediction, disparity, disparity > 0 if valid is None else valid)
    return {name: value.item() for name, value in metrics.compute().items()}


def test_values_by_hand():
    disparity = torch.tensor([10.0, 10.0, 100.0, 0.0]).view(1, 1, 2, 2)
    prediction = torch.tensor([10.5, 12.5, 104.0, 7.0]).view(1, 1, 2, 2)
    values = _compute(prediction, disparity)
    assert values["epe"] == pytest.approx((0.5 + 2.5 + 4) / 3)
    assert values["smooth_l1"] == pytest.approx((0.125 + 2.0 + 3.5) / 3)
    shares = {"bad1": 2 / 3, "bad2": 2 / 3, "bad3": 1 / 3, "d1": 0}
    for name, share in shares.items():
        assert values[name] == pytest.approx(share), name


def test_images_count_alike_per_image_and_by_size_per_pixel():
    disparity = torch.full((2, 1, 1, 4), 10.0)
    disparity[1, ..., 1:] = 0
    prediction = torch.full((2, 1, 1, 4), 11.0)
    prediction[1] = 15
    values = _compute(prediction, disparity)
    assert values["epe"] == pytest.approx(3)
    assert values["epe_pixel"] == pytest.approx((4 * 1 + 5) / 5)


def test_the_range_is_open_at_both_ends():
    disparity = torch.tensor([191.0, 192.0, 500.0]).view(1, 1, 1, 3)
    prediction = torch.zeros_like(disparity)
    assert _compute(prediction, disparity)["epe"] == 191
    assert _compute(prediction, disparity, max_disparity=None)["epe"] == pytest.approx(883 / 3)


def test_unknown_pixels_do_not_count_whatever_they_hold():
    disparity = torch.tensor([5.0, float("nan"), float("inf")]).view(1, 1, 1, 3)
    valid = torch.tensor([True, False, False]).view(1, 1, 1, 3)
    assert _compute(torch.full_like(disparity, 6.0), disparity, valid)["epe"] == 1


def test_known_disparities_that_are_masked_do_not_count():
    disparity = torch.tensor([10.0, 20.0]).view(1, 1, 1, 2)
    valid = torch.tensor([True, False]).view(1, 1, 1, 2)
    values = _compute(torch.full_like(disparity, 11.0), disparity, valid)
    assert values["epe"] == values["epe_pixel"] == 1 and values["bad2"] == 0


def test_a_prediction_that_is_no_number_is_wrong():
    disparity = torch.full((1, 1, 1, 2), 5.0)
    values = _compute(torch.tensor([5.0, float("nan")]).view(1, 1, 1, 2), disparity)
    assert all(values[name] == 0.5 for name in ("bad1", "bad2", "bad3", "d1"))


def test_images_without_truth_are_left_out():
    disparity = torch.zeros(2, 1, 2, 2)
    disparity[0] = 4
    assert _compute(torch.full_like(disparity, 5.0), disparity)["epe"] == 1
    assert torch.tensor(_compute(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))["epe"]).isnan()


def test_updates_add_up():
    disparity, prediction = torch.rand(2, 4, 1, 6, 6) * 30 + 1
    whole = _compute(prediction, disparity)
    metrics = DisparityMetrics()
    for i in range(4):
        metrics.update(prediction[i : i + 1], disparity[i : i + 1], disparity[i : i + 1] > 0)
    for name, value in metrics.compute().items():
        assert value.item() == pytest.approx(whole[name], rel=1e-5)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\(1, 1, 2, 2\)"):
        _compute(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 3))
