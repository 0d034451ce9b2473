"""Calibration: a known temperature, a calibration error made by hand, the diagram's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vizoo.classification.calibration import (
    calibration_error,
    fit_temperature,
    reliability,
    reliability_picture,
)


@pytest.mark.parametrize("scale", [0.2, 1.0, 6.0])
def test_a_known_temperature_is_found(scale):
    """Labels drawn from the softmax itself: logits times `scale` want just that temperature."""
    logits = 2 * torch.randn(20000, 5)
    labels = torch.multinomial(logits.softmax(1), 1)[:, 0]
    found = fit_temperature(scale * logits, labels)
    assert found == pytest.approx(scale, rel=0.04)
    before, after = (F.cross_entropy(scale * logits / t, labels) for t in (1.0, found))
    assert after <= before + 1e-6
    assert calibration_error((scale * logits / found).softmax(1), labels) < 0.015


def test_temperature_stays_within_bounds():
    logits = torch.eye(3).repeat(4, 1)
    assert fit_temperature(logits, logits.argmax(1)) == pytest.approx(0.05, rel=0.01)
    assert fit_temperature(logits, (logits.argmax(1) + 1) % 3) == pytest.approx(20, rel=0.01)
    with pytest.raises(ValueError, match=r"\(0, 3\)"):
        fit_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))


def test_calibration_error_by_hand():
    """Four samples of confidence 0.9, half right; six of 0.6, all right: 0.4 * 0.4 + 0.6 * 0.4."""
    probabilities = torch.tensor([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 6)
    labels = torch.tensor([0, 0, 1, 1] + [1] * 6)
    assert calibration_error(probabilities, labels, bins=10) == pytest.approx(0.4, abs=1e-5)
    confidence, accuracy, counts = reliability(probabilities, labels, bins=10)
    some = np.flatnonzero(counts)
    assert counts[some].tolist() == [6, 4]
    assert confidence[some] == pytest.approx([0.6, 0.9]) and accuracy[some].tolist() == [1, 0.5]
    assert np.isnan(accuracy[counts == 0]).all()
    assert len(reliability(probabilities, labels)[2]) == 15  # as published


def test_calibration_error_of_sums_that_rounding_lifts_above_one():
    """As those of the mean of ten networks: of probabilities, not of logits, all the same."""
    probabilities = torch.tensor([[1.0, 0.0], [0.3, 0.7]] * 5)
    labels = torch.tensor([0, 0] * 5)
    mean = sum(probabilities / 10 for _ in range(10))
    assert mean.max() > 1
    assert calibration_error(mean, labels) == pytest.approx(0.35, abs=1e-6)


def test_diagram():
    probabilities = torch.randn(50, 3).softmax(1)
    picture = reliability_picture(probabilities, torch.randint(3, (50,)), "some $^$")
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.std() > 5
