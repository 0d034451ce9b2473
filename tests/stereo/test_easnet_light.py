"""EASNet light: the checks of every network and supernet, its costs and its scores."""

from __future__ import annotations

import pytest
import torch
from network_tester import StereoNetworkTester
from stereo_fixtures import one_peak
from supernet_tester import StereoSupernetTester, SupernetTester

from vizoo.nas.supernet import search_space
from vizoo.stereo._easnet_layers import peak_argmin
from vizoo.stereo.easnet_elastic import EASNetLight, cosines
from vizoo.vision.hub.create import create_model
from vizoo.vision.ops import soft_argmin


class TestSupernet(StereoSupernetTester):
    name = "easnet_light"

    test_exports_without_the_supernet = SupernetTester.test_exports_without_the_supernet


class TestNetwork(StereoNetworkTester):
    name = "easnet_light"
    parameters = 1_161_495
    multiple = 24
    trains_at_any_size = True
    architecture = {"subnet": search_space(EASNetLight()).largest().to_json()}
    exported = {"subnet": search_space(EASNetLight()).smallest().to_json()}

    @classmethod
    def build(cls, arguments):
        return one_peak(super().build(arguments))


def test_disparities_come_of_the_scores():
    torch.manual_seed(0)
    net = create_model("easnet_light", max_disparity=48).eval()
    views = torch.rand(2, 1, 3, 50, 97).unbind()
    with torch.inference_mode():
        (stage,), volumes = net.forward_volumes(*views)
        full = net(*views)
    assert [tuple(scores.shape[1:]) for scores, _ in volumes] == [
        (16, 17, 33),
        (8, 9, 17),
        (4, 5, 9),
    ]
    assert [step for _, step in volumes] == [3, 6, 12]
    torch.testing.assert_close(stage[0], full)
    torch.testing.assert_close(stage[1], peak_argmin(volumes[0][0], step=3)[0])
    for disparity, (scores, step) in zip(stage[2:], volumes[1:], strict=True):
        torch.testing.assert_close(disparity, soft_argmin(-scores, step=step))
    assert 0 <= full.min() and full.max() <= 45 + 1e-4


def test_costs_are_cosines():
    left, right = torch.randn(2, 2, 6, 3, 20).unbind()
    costs = cosines(left, right, 4)
    assert costs.abs().max() <= 1 + 1e-6
    torch.testing.assert_close(costs, cosines(7 * left, 0.1 * right, 4))
    shifted = torch.roll(left, -2, dims=3)  # right x - 2 is left x
    torch.testing.assert_close(cosines(left, shifted, 4)[:, 2, :, 2:], torch.ones(2, 3, 18))


@pytest.mark.parametrize("max_disparity", [0, 20, -12])
def test_a_range_that_has_no_candidates(max_disparity):
    with pytest.raises(ValueError, match=f"multiple of 12, not {max_disparity}"):
        create_model("easnet_light", max_disparity=max_disparity)


def test_depthwise_gradients_under_autocast_are_those_of_float32():
    torch.manual_seed(0)
    net = create_model("easnet_light", max_disparity=48)
    views = torch.rand(2, 2, 3, 48, 96).unbind()
    with torch.autocast("cpu", torch.bfloat16):
        (stage,), _ = net.forward_volumes(*views)
    stage[0].mean().backward()
    assert all(p.grad.dtype == torch.float32 for p in net.parameters() if p.grad is not None)
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
