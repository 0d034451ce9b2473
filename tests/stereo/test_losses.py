from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from vizoo.stereo.losses import (
    _pool_disparity,
    matching_loss,
    multiscale_loss,
    upsampled_loss,
)
from vizoo.vision.hub.create import create_model


def test_pooling_of_dense_disparity_is_the_plain_average():
    disparity = torch.rand(2, 1, 8, 16) * 50 + 1
    pooled, known = _pool_disparity(disparity, torch.ones_like(disparity, dtype=torch.bool), 4)
    torch.testing.assert_close(pooled, F.avg_pool2d(disparity, 4))
    assert known.all()


def test_pooling_takes_known_pixels_only():
    disparity = torch.tensor([[[[2.0, 6.0], [float("nan"), float("inf")]]]])
    valid = torch.tensor([[[[True, True], [False, False]]]])
    pooled, known = _pool_disparity(disparity, valid, 2)
    assert pooled.item() == 4 and known.item()
    pooled, known = _pool_disparity(disparity, torch.zeros_like(valid), 2)
    assert pooled.item() == 0 and not known.item()


def test_perfect_prediction_costs_nothing():
    disparity = torch.rand(1, 1, 8, 8) * 20 + 1
    valid = torch.ones_like(disparity, dtype=torch.bool)
    stage = [disparity, _pool_disparity(disparity, valid, 2)[0]]
    assert multiscale_loss([stage, stage], disparity, valid, [1, 0.5]) == 0


def test_value_by_hand():
    truth = torch.tensor([[[[10.0, 20.0, 30.0, 300.0, 192.0]]]])
    stage = [torch.tensor([[[[10.5, 22.0, 99.0, 0.0, 0.0]]]])]
    valid = torch.tensor([[[[True, True, False, True, True]]]])
    # Smooth L1 of 0.5 and 2, the third unknown, the fourth beyond the range, the last its end.
    expected = 0.7 * (0.125 + 1.5) / 2
    assert multiscale_loss([stage], truth, valid, [0.7]).item() == pytest.approx(expected)


def test_nothing_known_gives_zero_with_gradient():
    prediction = torch.rand(1, 1, 4, 4, requires_grad=True)
    disparity = torch.full((1, 1, 4, 4), float("nan"))
    valid = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    loss = multiscale_loss([[prediction]], disparity, valid, [1])
    loss.backward()
    assert loss == 0 and (prediction.grad == 0).all()


def test_logarithms_count_the_finest_error_of_each_stage():
    disparity = torch.full((1, 1, 4, 8), 5.0)
    valid = torch.ones_like(disparity, dtype=torch.bool)
    valid[..., 4:] = False
    finest = torch.where(valid, disparity + 3, 100.0).requires_grad_()
    stages = [[finest, disparity[..., ::2, ::2] + 7], [disparity + 1]]
    args = stages, disparity, valid, [0.0]
    assert upsampled_loss(*args) == 0
    total = upsampled_loss(*args, log_weight=0.5)
    torch.testing.assert_close(total, torch.tensor(0.5 * (math.log(4) + math.log(2))))
    total.backward()
    slope = torch.where(valid, 0.5 / 4 / 16, 0.0)  # of the mean over 16 known pixels
    torch.testing.assert_close(finest.grad, slope)


def test_more_weights_than_scales():
    disparity = torch.ones(1, 1, 4, 4)
    with pytest.raises(ValueError, match="2 scale weights for a network with 1 scales"):
        multiscale_loss([[disparity]], disparity, disparity > 0, [1, 1])


def test_matching_wants_the_candidates_beside_the_truth():
    truth = torch.full((1, 1, 6, 6), 7.5)  # with a step of 3: half between candidates 2 and 3
    valid = torch.ones_like(truth, dtype=torch.bool)
    chances = torch.zeros(1, 5, 2, 2)
    chances[:, 2] = chances[:, 3] = 0.5
    right = matching_loss([(chances.clamp(min=1e-9).log(), 3)], truth, valid)
    assert right.item() == pytest.approx(math.log(2), abs=1e-6)
    indifferent = matching_loss([(torch.zeros(1, 5, 2, 2), 3)], truth, valid, [2.0])
    assert indifferent.item() == pytest.approx(2 * math.log(5), abs=1e-6)


def test_matching_leaves_out_what_is_unknown_or_out_of_range():
    truth = torch.tensor([float("nan"), float("inf"), 0.0, 9.0, 100.0, 3.0]).view(1, 1, 1, 6)
    valid = torch.tensor([False, False, True, True, True, True]).view(1, 1, 1, 6)
    truth, valid = (x.repeat(1, 1, 3, 1).repeat_interleave(3, dim=3) for x in (truth, valid))
    scores = torch.randn(1, 4, 1, 6, requires_grad=True)
    loss = matching_loss([(scores, 3)], truth, valid)
    loss.backward()
    assert loss.isfinite() and scores.grad.isfinite().all()
    assert scores.grad.abs().sum(1).flatten().nonzero().flatten().tolist() == [5]
    nothing = matching_loss([(scores, 3)], truth, torch.zeros_like(valid))
    assert nothing == 0


def ramp(height, width, cell):
    """Disparities of a slanted plane, at the middle of each cell."""
    rows, columns = ((torch.arange(n) + 0.5) * cell for n in (height, width))
    return (4 + 0.2 * rows[:, None] + 0.1 * columns)[None, None]


def test_maps_may_go_beyond_the_image():
    truth = ramp(64, 100, 1)
    valid = torch.zeros_like(truth, dtype=torch.bool)
    valid[..., 20:-20, 20:-20] = True  # at the border enlarging repeats the last cell
    sizes = {4.5: (16, 24), 9: (8, 12), 18: (4, 6)}  # they cover 72 rows and 108 columns
    volumes = [(torch.zeros(1, 8, *size), step) for step, size in sizes.items()]
    refined = ramp(24, 36, 3)
    stage = [refined, *(ramp(*size, step) for step, size in sizes.items())]
    assert upsampled_loss([stage], truth, valid, [1.0], volumes=volumes) < 1e-6
    assert upsampled_loss([stage], truth, valid, [1.0]) > 0.1


def test_scores_may_go_beyond_the_image():
    truth = ramp(64, 100, 1)
    at_cells = ramp(8, 12, 9) / 9
    candidates = torch.arange(8).view(1, -1, 1, 1)
    scores = (1 - (candidates - at_cells).abs()).clamp(min=1e-9).log()
    known = torch.ones_like(truth, dtype=torch.bool)
    loss = matching_loss([(scores, 9)], truth, known)
    share = at_cells.frac()[..., :7, :11]  # the last row and column lie beyond
    entropy = -(share * share.log() + (1 - share) * (1 - share).log())
    torch.testing.assert_close(loss, entropy.mean(), atol=0.01, rtol=0)


@pytest.mark.parametrize("size", [(128, 256), (97, 96)])
@pytest.mark.parametrize("name", ["easnet_extended", "easnet_small"])
def test_refined_maps_of_networks_lie_on_the_image(name, size):
    """Their shapes with a plane in them; at the border enlarging repeats the last cell."""
    net = create_model(name, max_disparity=48).eval()
    with torch.inference_mode():
        (stage,), volumes = net.forward_volumes(*torch.rand(2, 1, 3, *size).unbind())
    truth = ramp(*size, 1)
    inner = torch.zeros_like(truth, dtype=torch.bool)
    inner[..., 16:-16, 16:-16] = True
    half = stage[1]
    plane = F.interpolate(truth, half.shape[-2:], mode="bilinear")
    if name == "easnet_small":  # padded to whole cells
        plane = ramp(*half.shape[-2:], 2)
    assert upsampled_loss([[plane]], truth, inner, [1.0], volumes=volumes) < 1e-4
