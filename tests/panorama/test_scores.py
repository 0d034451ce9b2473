"""Losses and metrics: reference numbers, what must not count, weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vizoo.panorama.losses import berhu_loss, coarsen_depth, multiscale_loss, solid_angles
from vizoo.panorama.metrics import NAMES, PanoramaMetrics, depth_errors, sphere_weights

F64 = torch.float64


@pytest.fixture
def case(golden):
    found = golden("loss_metrics")
    tensors = (torch.from_numpy(found[name])[:, None] for name in ("pred", "gt", "mask"))
    return found, *tensors


def test_golden_loss(case):
    want, prediction, depth, valid = case
    for adaptive, name in ((False, "berhu_fixed_0p2"), (True, "berhu_adaptive_0p2")):
        found = berhu_loss(prediction, depth, valid, adaptive=adaptive)
        assert found.item() == pytest.approx(float(want[name]), abs=1e-12)


@pytest.mark.parametrize("weighting", ["erp", "sphere"])
def test_golden_metrics(case, weighting):
    want, prediction, depth, valid = case
    assert tuple(want["names"]) == NAMES
    weights = sphere_weights(depth) if weighting == "sphere" else None
    found = depth_errors(prediction, depth, valid, weights).numpy()
    assert np.abs(found - want[f"metrics_{weighting}_per_image"]).max() < 1e-12
    metrics = PanoramaMetrics()
    for image in range(2):
        metrics.update(*(x[image : image + 1] for x in (prediction, depth, valid)))
    ending = "_sphere" if weighting == "sphere" else ""
    means = [metrics.compute()[name + ending].item() for name in NAMES]
    assert np.allclose(means, want[f"metrics_{weighting}"], rtol=1e-6)


@pytest.mark.parametrize("adaptive", [False, True])
def test_what_is_not_valid_touches_nothing(adaptive):
    prediction = torch.rand(2, 80, dtype=F64, requires_grad=True)
    depth, valid = torch.rand(2, 80, dtype=F64) + 1, torch.rand(2, 80) > 0.4
    found = []
    for planted in (1.0, float("nan"), float("inf"), -float("inf")):
        spoilt = torch.where(valid, depth, planted)
        loss = multiscale_loss((prediction,), spoilt, valid, adaptive=adaptive)
        found.append((loss.detach(), *torch.autograd.grad(loss, prediction)))
        assert (found[-1][1][~valid] == 0).all()
        scores = depth_errors(prediction.detach(), spoilt, torch.ones_like(valid), None)
        if planted != 1.0:
            want = depth_errors(prediction.detach(), spoilt, valid, None)
            assert torch.equal(scores, want)
        for one, first in zip(found[-1], found[0], strict=True):
            assert torch.equal(one, first)
    unseen = torch.where(valid, prediction.detach(), float("nan")).requires_grad_()
    berhu_loss(unseen, depth, valid).backward()
    assert unseen.grad.isfinite().all()


def test_nothing_valid_gives_zero_with_a_graph():
    prediction = torch.rand(1, 80, requires_grad=True)
    nothing = torch.zeros(1, 80, dtype=torch.bool)
    for adaptive in (False, True):
        loss = berhu_loss(prediction, torch.ones(1, 80), nothing, adaptive=adaptive)
        loss.backward()
        assert loss == 0 and (prediction.grad == 0).all()
    metrics = PanoramaMetrics()
    metrics.update(torch.ones(1, 80), torch.ones(1, 80), nothing)
    assert all(x.isnan() for x in metrics.compute().values())


def test_berhu_is_smooth_at_its_border_and_exact_at_zero():
    error = torch.tensor([0.2 - 1e-6, 0.2 + 1e-6, 0.0, 1.0], dtype=F64)
    zero, one = torch.zeros(1, dtype=F64), torch.ones(1, dtype=torch.bool)
    values, slopes = [], []
    for e in error:
        e = e[None].requires_grad_()
        loss = berhu_loss(e, zero, one)
        values.append(loss.item())
        slopes.append(torch.autograd.grad(loss, e)[0].item())
    assert values[1] - values[0] == pytest.approx(2e-6, rel=1e-3)
    assert slopes[:3] == pytest.approx([1, 1, 0], abs=1e-4)
    assert values[2:] == pytest.approx([0, (1 + 0.04) / 0.4])
    perfect = berhu_loss(zero.requires_grad_(), torch.zeros(1, dtype=F64), one, adaptive=True)
    perfect.backward()
    assert perfect == 0 and zero.grad.isfinite().all()


def test_scales():
    depth, valid = torch.rand(2, 1280, dtype=F64) + 1, torch.rand(2, 1280) > 0.5
    coarse, known = coarsen_depth(depth, valid)
    children, there = depth.view(2, 320, 4), valid.view(2, 320, 4)
    assert torch.equal(known, there.any(2))
    want = torch.where(there, children, 0).sum(2)[known] / there.sum(2)[known]
    torch.testing.assert_close(coarse[known], want)
    outputs = torch.rand(2, 1280, dtype=F64), torch.rand(2, 320, dtype=F64)
    want = berhu_loss(outputs[0], depth, valid) + berhu_loss(outputs[1], coarse, known) / 2
    torch.testing.assert_close(multiscale_loss(outputs, depth, valid), want)
    finer = multiscale_loss(outputs[1:], depth, valid)
    torch.testing.assert_close(finer, berhu_loss(outputs[1], coarse, known))


def test_weights_of_the_sphere():
    """A constant error weighs the same either way; another one counts by its solid angle."""
    depth = torch.full((1, 1, 8, 16), 2.0)
    valid = torch.rand(depth.shape) > 0.3
    plain, sphere = (
        depth_errors(depth + 0.5, depth, valid, w) for w in (None, sphere_weights(depth))
    )
    torch.testing.assert_close(plain, sphere)
    faces = torch.full((1, 320), 2.0, dtype=F64)
    every = torch.ones_like(faces, dtype=torch.bool)
    off = faces.clone()
    off[0, 7] += 1
    share = solid_angles(2)[7] / (4 * np.pi)
    found = depth_errors(off, faces, every, sphere_weights(faces))[0, 0]
    assert found.item() == pytest.approx(share.item())
    one = multiscale_loss((off,), faces, every, weight="solid_angle").item()
    assert one == pytest.approx(share.item() * (1 + 0.04) / 0.4)


def test_predictions_that_are_not_numbers_are_wrong():
    depth = torch.full((1, 80), 2.0)
    depth_found = torch.full((1, 80), float("nan"))
    scores = depth_errors(depth_found, depth, depth > 0)[0]
    assert scores[:6].isnan().all() and (scores[6:] == 0).all()
    scores = depth_errors(torch.full((1, 80), float("inf")), depth, depth > 0)[0]
    assert scores[0] == 8


def test_refuses():
    x, yes = torch.ones(1, 80), torch.ones(1, 80, dtype=torch.bool)
    for call, message in (
        (lambda: berhu_loss(x, x[:, 1:], yes), r"\(1, 79\)"),
        (lambda: berhu_loss(x, x, yes, threshold=0), "threshold 0"),
        (lambda: multiscale_loss((x, x), x, yes, [1]), "1 scale weights for 2 outputs"),
        (lambda: multiscale_loss((x,), x[:, :20], yes[:, :20]), "80 faces and the truth 20"),
        (lambda: multiscale_loss((x,), x, yes, weight="pixel"), "'pixel'"),
        (lambda: depth_errors(x, x[:, 1:], yes), r"\(1, 79\)"),
        (lambda: sphere_weights(x[0]), r"\(80,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
