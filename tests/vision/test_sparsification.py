"""What an order of pixels is worth: the best, none, the worst, and what is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vizoo.vision.sparsification import ause, sparsification

random = torch.Generator().manual_seed(0)
ERROR = torch.rand(5000, generator=random) ** 3


def test_the_errors_themselves_are_the_best_order():
    assert ause(ERROR, -ERROR) == pytest.approx(0, abs=1e-12)
    curve, oracle = sparsification(ERROR, -ERROR)
    assert curve[0] == pytest.approx(1) and (oracle.diff() <= 0).all()


def test_a_random_order_is_worth_nothing_and_the_reverse_misleads():
    assert ause(ERROR, torch.rand(5000, generator=random)) == pytest.approx(1, abs=0.1)
    assert ause(ERROR, ERROR) > 1.5


def test_a_curve_by_hand():
    error = torch.tensor([0.0] * 30 + [1.0] * 10)
    curve, oracle = sparsification(error, torch.arange(40.0))
    kept = [(20 - step) / 20 for step in range(20)]
    # Kept are the last ones: the ten that are wrong first of all.
    assert curve.tolist() == pytest.approx([min(0.25 / share, 1) / 0.25 for share in kept])
    assert oracle.tolist() == pytest.approx([max(0, share - 0.75) / share / 0.25 for share in kept])


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_units_do_not_matter(unit, scale):
    confidence = torch.cos(37 * ERROR)
    assert ause(unit * ERROR, scale * confidence) == pytest.approx(ause(ERROR, confidence))


def test_nothing_to_rank():
    for error in (torch.ones(40), torch.zeros(40)):
        assert math.isnan(ause(error, torch.arange(40.0)))


@pytest.mark.parametrize(
    ("error", "confidence"), [((40,), (41,)), ((19,), (19,)), ((6, 9), (6, 9))]
)
def test_refused(error, confidence):
    with pytest.raises(ValueError, match="want two vectors of one length from 20 on"):
        ause(torch.zeros(error), torch.zeros(confidence))
