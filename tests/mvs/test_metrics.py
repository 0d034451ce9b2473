"""Depth metrics against plain formulae."""

import pytest
import torch

from vizoo.mvs.metrics import DepthMetrics


def maps(seed=0, batch=2):
    generator = torch.Generator().manual_seed(seed)
    depth = 1 + 9 * torch.rand(batch, 1, 12, 15, generator=generator)
    prediction = depth * (1 + 0.05 * torch.randn(depth.shape, generator=generator))
    return prediction, depth, torch.rand(depth.shape, generator=generator) > 0.3


def test_equals_plain_formulae():
    metrics = DepthMetrics(thresholds=[0.1, 0.5], relative_thresholds=[1, 5])
    both = [maps(0), maps(1)]
    for batch in both:
        metrics.update(*batch)
    prediction, depth, valid = (torch.cat(x) for x in zip(*both, strict=True))
    error = (prediction - depth).abs()
    relative = (error / depth)[valid]
    found = metrics.compute()
    each = [error[i][valid[i]].mean() for i in range(len(error))]
    wanted = {
        "abs": error[valid].mean(),
        "abs_image": torch.stack(each).mean(),
        "rel": relative.mean(),
        "within_0.1": (error[valid] < 0.1).float().mean(),
        "within_0.5": (error[valid] < 0.5).float().mean(),
        "within_1%": (relative < 0.01).float().mean(),
        "within_5%": (relative < 0.05).float().mean(),
    }
    assert set(found) == {*wanted, "rel_median"}
    for name, value in wanted.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-5), name
    assert found["rel_median"].item() == pytest.approx(relative.median().item(), rel=0.01)


def test_unknown_pixels_do_not_count():
    prediction, depth, valid = maps()
    depth[~valid] = 0
    prediction[~valid] = float("nan")
    metrics = DepthMetrics()
    metrics.update(prediction, depth, torch.ones_like(valid))
    assert all(value.isfinite() for value in metrics.compute().values())


def test_a_prediction_that_is_no_number_is_far_off():
    metrics = DepthMetrics()
    depth = torch.ones(1, 1, 2, 2)
    metrics.update(torch.full_like(depth, float("nan")), depth, depth > 0)
    found = metrics.compute()
    assert found["within_5%"] == 0 and found["rel_median"] > 100


def test_nothing_known():
    metrics = DepthMetrics(thresholds=[1.0])
    depth = torch.zeros(1, 1, 2, 2)
    metrics.update(depth, depth, depth > 0)
    assert all(value.isnan() for value in metrics.compute().values())


def test_exact_depth():
    metrics = DepthMetrics(thresholds=[1.0])
    _, depth, valid = maps()
    metrics.update(depth, depth, valid)
    found = metrics.compute()
    assert found["abs"] == found["rel"] == 0 and found["within_1"] == found["within_1%"] == 1
    assert found["rel_median"] < 1e-5


def test_shapes_must_agree():
    prediction, depth, valid = maps()
    with pytest.raises(ValueError, match=r"\(2, 1, 12, 14\).*one shape"):
        DepthMetrics().update(prediction[..., 1:], depth, valid)
