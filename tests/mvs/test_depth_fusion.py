"""The fusion of two depth maps: bounds, invariances, what it learns."""

import pytest
import torch
from network_tester import NetworkTester, slow
from torch.nn import functional as F

import vizoo
from vizoo.mvs.guided import clues
from vizoo.mvs.losses import fusion_loss


class TestDepthFusion(NetworkTester):
    name = "depth_fusion"
    parameters = 69_360

    test_exports = slow(NetworkTester.test_exports)  # EASNet's has all of its operators
    test_images_of_other_ranges_are_refused = None  # it sees none

    def trained_outputs(self, net):
        return net.forward_scored(*self.inputs(net, batch=2))

    @pytest.mark.parametrize("size", [(33, 47), (16, 16), (1, 2)])
    def test_any_size(self, net, size):
        inputs = self.inputs(net, *size)
        with torch.inference_mode():
            depth, chance = net.predict(*inputs)
            assert net(*inputs).equal(depth)
        assert depth.shape == chance.shape == (1, 1, *size)
        assert 0 <= chance.min() and chance.max() <= 1

    def test_channels_are_refused(self):
        with pytest.raises(ValueError, match="channels must be at least 1, not -1"):
            vizoo.create_model(self.name, channels=-1)


@pytest.fixture(scope="module")
def views(textured_views):
    return [textured_views[name] for name in ("images", "intrinsics", "extrinsics")]


@pytest.fixture(scope="module")
def claims(textured_views):
    """The truth, and a depth that is right on the left half alone."""
    truth = torch.where(textured_views["valid"], textured_views["depth"], 1.0)[0]
    wrong = truth.clone()
    wrong[:, truth.shape[1] // 2 :] *= 1.5
    return torch.stack((truth, wrong))


def test_depth_lies_between_what_is_claimed_around(claims, views):
    torch.manual_seed(0)
    net = vizoo.create_model("depth_fusion").eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    depth = net(claims[None], clues(*views, claims)[None])[0, 0]
    around = F.pad(claims, (1, 1, 1, 1), "replicate")
    highest = F.max_pool2d(around, 3, 1).amax(0)
    lowest = -F.max_pool2d(-around, 3, 1).amax(0)
    assert ((depth < 1.001 * highest) & (depth > 0.999 * lowest)).all()


def test_another_unit_changes_no_clue(claims, views):
    images, intrinsics, extrinsics = views
    larger = extrinsics.clone()
    larger[:, :3, 3] *= 1000
    told, again = clues(*views, claims), clues(images, intrinsics, larger, 1000 * claims)
    assert torch.isclose(told, again, rtol=1e-2, atol=1e-2).float().mean() > 0.999


def test_learns_which_claim_is_right(claims, views, textured_views):
    torch.manual_seed(0)
    net = vizoo.create_model("depth_fusion", weights=None, channels=8)
    truth, valid = textured_views["depth"][None], textured_views["valid"][None]
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    told = clues(*views, claims)[None]
    # Either order of the claims: their place says nothing.
    orders = [(claims[None], told), (claims.flip(0)[None], clues(*views, claims.flip(0))[None])]
    for step in range(30):
        loss = fusion_loss(*net.forward_scored(*orders[step % 2]), truth, valid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (claims.shape[-1] // 2 + 8) * [False] + (claims.shape[-1] // 2 - 8) * [True]
    right = valid & torch.tensor(right)
    for order in orders:
        error = ((net(*order) - truth).abs() / truth)[right]
        assert error.mean() < 0.1  # a half has 0.25


def test_the_loss_counts_known_pixels_alone():
    depth, truth = torch.full((1, 1, 2, 2), 2.0), torch.full((1, 1, 2, 2), 2.0)
    truth[..., 1, :] = 0
    odds = torch.zeros(1, 1, 2, 2)
    entropy = torch.tensor(2.0).log()
    loss = fusion_loss(depth, odds, truth, truth > 0)
    torch.testing.assert_close(loss, entropy)
    assert fusion_loss(depth, odds, truth, truth < 0) == 0
    worse = fusion_loss(1.1 * depth, odds, truth, truth > 0)
    torch.testing.assert_close(worse, entropy + torch.tensor(6.0).log(), rtol=1e-4, atol=0)
