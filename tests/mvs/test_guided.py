"""A network guided by a plane sweep: what is fused, how sure it is, what it starts from."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vizoo
from vizoo.datasets.mvs.cameras import resize_intrinsics
from vizoo.mvs.classical import PlaneSweep, plane_sweep
from vizoo.mvs.dispmvs import start_from
from vizoo.mvs.guided import Guided
from vizoo.mvs.poses import refine_poses
from vizoo.nas.supernet import activate, search_space

NAMES = ("images", "intrinsics", "extrinsics", "depth_range")


class HalfRight(nn.Module):
    """Knows the depth of the left half, and says twice as much on the right."""

    input_names = ("images", "intrinsics", "extrinsics", "depth_range", "start")

    def __init__(self, truth):
        super().__init__()
        self.truth, self.start = truth, None

    def forward(self, images, intrinsics, extrinsics, depth_range, start=None, *, generator=None):
        self.start = start
        depth = self.truth.clone()
        depth[:, depth.shape[1] // 2 :] *= 2
        return depth[None, None]


def views_of(sample):
    return [sample[name][None] for name in NAMES]


def test_each_pixel_takes_what_is_right(textured_views):
    truth, known = textured_views["depth"][0], textured_views["valid"][0]
    net = HalfRight(torch.where(known, truth, 1.0))
    views = views_of(textured_views)
    depth = Guided(net)(*views)[0, 0]
    images, intrinsics, extrinsics, depth_range = (x[0] for x in views)
    rough = plane_sweep(
        F.avg_pool2d(images, 2), resize_intrinsics(intrinsics, 0.5, 0.5), extrinsics,
        tuple(depth_range.tolist()), smooth=True,
    )[0]  # fmt: skip
    refined = refine_poses(images, intrinsics, extrinsics, rough)
    swept = plane_sweep(images, intrinsics, refined, tuple(depth_range.tolist()), smooth=True)[0]
    torch.testing.assert_close(net.start, start_from(swept[None, None]))
    middle = truth.shape[1] // 2
    error, alone = ((x - truth).abs().div(truth) for x in (depth, swept))
    left, right = known.clone(), known.clone()
    left[:, middle:], right[:, :middle] = False, False
    assert error[left].mean() < 0.9 * alone[left].mean()  # the network's, which is the truth
    assert error[right].median() < 0.01  # the sweep's, where the network is twice too far


def test_the_faster_form_and_the_predictor_give_the_same(textured_views):
    torch.manual_seed(0)
    net = vizoo.create_model("dispmvs_tiny", coarse_iterations=2, fine_iterations=1).eval()
    views = views_of(textured_views)
    with torch.no_grad():
        depth, chance = (part[0, 0] for part in Guided(net).predict(*views))
    predictor = vizoo.MVSPredictor(net, "cpu", guided=True)
    assert predictor.model == "DispMVS" and predictor.guided
    assert predictor.fingerprint != vizoo.MVSPredictor(net, "cpu").fingerprint
    result = predictor.predict_sample(
        {name: view[0] for name, view in zip(NAMES, views, strict=True)}
    )
    torch.testing.assert_close(torch.from_numpy(result.depth), depth, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(torch.from_numpy(result.confidence), chance, rtol=0, atol=1e-3)
    assert 0 <= chance.min() < chance.max() <= 1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dispmvs_tiny", {"coarse_iterations": 2, "fine_iterations": 1}),
        ("dispmvs_elastic", {"feature_width": 1}),
    ],
)
def test_a_batch_of_two_is_two_of_one(textured_views, name, settings):
    net = vizoo.create_model(name, **settings).eval()
    if name == "dispmvs_elastic":
        activate(net, search_space(net).smallest())  # of two views
    views = [view.expand(2, *view.shape[1:]).clone() for view in views_of(textured_views)]
    views[3][1] *= 2
    with torch.no_grad():
        both = Guided(net)(*views)
        single = Guided(net)(*(view[1:] for view in views))
    # One pixel in a hundred may take the other depth where both are as sure.
    assert torch.isclose(both[1:], single, rtol=1e-3).float().mean() > 0.99


def test_bfloat16_is_close(textured_views):
    full, half = (
        vizoo.MVSPredictor(dtype=dtype, device="cpu").predict_sample(textured_views).depth
        for dtype in ("float32", "bfloat16")
    )
    assert np.median(np.abs(full - half) / full) < 0.02


def test_a_start_is_the_median_of_each_square():
    depth = torch.full((1, 1, 20, 33), 4.0)
    depth[0, 0, :4, :4] = 1.0
    start = start_from(depth)
    assert start.shape == (1, 1, 2, 3) and torch.equal(start, torch.full_like(start, 4.0))


def test_a_network_without_a_start_is_refused():
    with pytest.raises(ValueError, match="PlaneSweep takes no depth to start from; DispMVS does"):
        Guided(PlaneSweep())
