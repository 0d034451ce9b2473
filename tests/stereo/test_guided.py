"""A network guided by semi-global matching: its fusion, and what the predictor makes of it."""

from __future__ import annotations

import pytest
import torch
from network_tester import NetworkTester
from stereo_fixtures import BlockMatcher
from torch import nn

import vizoo
from vizoo.datasets.stereo import GeneratedStereo
from vizoo.stereo.classical import fill_holes
from vizoo.stereo.guided import Guided, guidance
from vizoo.stereo.losses import fusion_loss
from vizoo.stereo.task import FusionTask
from vizoo.vision.inference import optimize


class TestDisparityFusion(NetworkTester):
    name = "disparity_fusion"
    parameters = 63_528

    @pytest.mark.parametrize("size", [(65, 127), (40, 301), (1, 1)])
    def test_any_size_within_what_is_claimed(self, net, size):
        *views, disparity, certainty, matched, filled = self.inputs(net, *size)
        with torch.inference_mode():
            fused = net(*views, disparity, certainty, matched * (matched > 4), filled)
        assert fused.shape == disparity.shape
        claims = torch.cat((disparity, matched, filled))
        assert claims.min() - 1e-4 <= fused.min() and fused.max() <= claims.max() + 1e-4


class Given(nn.Module):
    """Says what it is told to."""

    def __init__(self, disparity):
        super().__init__()
        self.disparity = nn.Buffer(disparity)

    def forward(self, left, right):
        return self.disparity.expand(len(left), -1, -1, -1)


@pytest.fixture(scope="module")
def scene():
    return GeneratedStereo(1, 128, 256, seed=3, max_disparity=32)[0]


def views_of(scene):
    return scene["left"][None], scene["right"][None]


def test_holes_take_the_rows_smaller_neighbour():
    rows = torch.tensor([[0, 3, 0, 0, 5, 0], [0, 0, 0, 0, 0, 0], [2, 0, 1, 4, 0, 4]]).float()
    filled = [[3, 3, 3, 3, 5, 5], [0, 0, 0, 0, 0, 0], [2, 1, 1, 4, 4, 4]]
    assert fill_holes(rows.numpy()).tolist() == filled


def test_what_is_off_by_a_few_pixels_is_put_right(scene):
    truth, known = scene["disparity"][None], scene["valid"][None]
    wrong = truth.clone()
    wrong[..., 100:160] += 3
    with torch.inference_mode():
        fused = Guided(Given(wrong)).eval()(*views_of(scene))
    error, before = ((x - truth).abs()[..., 100:160][known[..., 100:160]] for x in (fused, wrong))
    assert (error > 1).float().mean() < 0.3 < (before > 1).float().mean()
    right = known.clone()
    right[..., 90:170] = False
    assert ((fused - truth).abs()[right] > 1).float().mean() < 0.2


@pytest.mark.parametrize(("largest", "searched"), [(0.0, 16), (20.0, 32), (90.0, 112), (1e9, 512)])
def test_the_range_that_is_searched_is_the_networks(largest, searched, monkeypatch):
    seen = []

    def matching(left, right, disparities, fill):
        seen.append(disparities)
        return torch.zeros(left.shape[1:]).numpy()

    monkeypatch.setattr("vizoo.stereo.guided.semi_global_matching", matching)
    net = Given(torch.linspace(0, largest, 6000).view(1, 1, 60, 100))
    disparity, certainty, matched, filled = guidance(net, *torch.rand(2, 1, 3, 60, 100), False)
    assert seen == [searched] and disparity.equal(net.disparity)
    assert not certainty.any() and not matched.any() and not filled.any()


def test_the_faster_form_and_the_predictor_give_the_same(scene):
    torch.manual_seed(0)
    net = vizoo.create_model("easnet_scaled.worlds").eval()
    with torch.inference_mode():
        plain, certainty = Guided(net).eval().predict(*views_of(scene))
        fast, sure = optimize(Guided(net)).predict(*views_of(scene))
    torch.testing.assert_close(fast, plain, rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(sure, certainty, rtol=1e-3, atol=1e-2)
    predictor = vizoo.StereoPredictor(net, "cpu", guided=True)
    maps = predictor.maps(scene["left"], scene["right"])
    torch.testing.assert_close(maps, torch.cat((plain, certainty), 1)[0], rtol=1e-3, atol=2e-2)


def test_bfloat16_keeps_fractions_of_a_pixel(scene):
    far = scene["disparity"][None] + 128  # there bfloat16 has whole pixels
    claims = far, torch.ones_like(far), far + 0.3, far + 0.3
    fusion = vizoo.create_model("disparity_fusion.worlds").eval()
    with torch.inference_mode():
        full = fusion(*views_of(scene), *claims)
        half = optimize(fusion, torch.bfloat16)(*views_of(scene), *claims)
    assert half.dtype == torch.float32 and (full - half).abs().median() < 0.05


def test_a_batch_of_two_is_two_of_one(scene):
    other = GeneratedStereo(2, 128, 256, seed=3, max_disparity=32)[1]
    net = Guided(BlockMatcher(32)).eval()
    left, right = (torch.stack((scene[side], other[side])) for side in ("left", "right"))
    with torch.inference_mode():
        both = net(left, right)
        single = torch.cat([net(left[i : i + 1], right[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(both, single, rtol=1e-4, atol=1e-3)


def test_what_is_not_finite_is_refused():
    net = Given(torch.full((1, 1, 32, 48), torch.nan))
    with pytest.raises(ValueError, match="the network's output is not finite"):
        vizoo.StereoPredictor(net, "cpu", guided=True)(*torch.rand(2, 3, 32, 48), check=False)


def test_the_default_is_guided_and_others_as_asked():
    assert vizoo.StereoPredictor(device="cpu").guided
    assert not vizoo.StereoPredictor(device="cpu", guided=False).guided
    assert not vizoo.StereoPredictor("fadnet_plus_tiny", "cpu").guided
    assert vizoo.StereoPredictor("fadnet_plus_tiny", "cpu", guided=True).guided


def test_the_loss_counts_wrong_pixels():
    truth = torch.tensor([4.0, 4, 0, 200]).view(1, 1, 1, 4)
    disparity = torch.tensor([5.0, 34, 9, 9]).view(1, 1, 1, 4)
    loss = fusion_loss(disparity, truth, truth > 0)
    assert loss.item() == pytest.approx((0.5 + 0.1 + 30 / 31 + 2) / 2)
    assert fusion_loss(disparity, truth, truth < 0) == 0


def test_training_learns_and_leaves_the_network(scene):
    torch.manual_seed(0)
    task = FusionTask(net="easnet_scaled.worlds", optimizer="adamw")
    batch = {name: scene[name][None] for name in ("left", "right", "disparity", "valid")}
    before = {name: value.clone() for name, value in task._matching[0].state_dict().items()}
    optimizer = torch.optim.AdamW(task.net.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        loss = task.loss(task.outputs(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < 0.8 * losses[0]
    assert all(value.equal(before[name]) for name, value in task._matching[0].state_dict().items())
    assert not any(name.startswith("_matching") for name in task.state_dict())
