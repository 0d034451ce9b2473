"""The loss over iterations."""

import pytest
import torch

from vizoo.mvs.losses import _normalized_inverse, sequence_loss


def case(batch=2):
    generator = torch.Generator().manual_seed(0)
    depth_range = torch.tensor([[1.0, 4.0], [2.0, 20.0]])[:batch]

    def depths(height, width):
        inverse = torch.rand(batch, 1, height, width, generator=generator)
        near, far = (1 / depth_range)[..., None, None, None].unbind(1)
        return 1 / (far + inverse * (near - far))

    valid = torch.rand(batch, 1, 16, 24, generator=generator) > 0.5
    coarse, fine = [depths(4, 6) for _ in range(3)], [depths(16, 24) for _ in range(2)]
    return coarse, fine, depths(16, 24), valid, depth_range


def test_equals_the_formula():
    coarse, fine, depth, valid, depth_range = case()
    wanted = 0.0
    for predictions, step in ((coarse, 4), (fine, 1)):
        known = valid[:, :, ::step, ::step]
        truth = _normalized_inverse(depth, depth_range)[:, :, ::step, ::step][known]
        for i, prediction in enumerate(predictions):
            error = _normalized_inverse(prediction, depth_range)[known] - truth
            wanted += 0.9**i * error.abs().mean().item()
    loss = sequence_loss(coarse, fine, depth, valid, depth_range)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_ends_of_the_range():
    depth_range = torch.tensor([[1.0, 4.0]])
    found = _normalized_inverse(torch.tensor([1.0, 1.6, 4.0]).view(1, 1, 1, 3), depth_range)
    torch.testing.assert_close(found.flatten(), torch.tensor([1.0, 0.5, 0.0]), atol=1e-5, rtol=0)


def test_nothing_known_is_zero():
    coarse, fine, depth, valid, depth_range = case()
    fine[0].requires_grad_()
    none, unknown = torch.zeros_like(valid), torch.zeros_like(depth)
    loss = sequence_loss(coarse, fine, unknown, none, depth_range)
    loss.backward()
    assert loss == 0 and (fine[0].grad == 0).all()


def test_unknown_depth_is_not_looked_at():
    coarse, fine, depth, valid, depth_range = case()
    loss = sequence_loss(coarse, fine, depth, valid, depth_range)
    for nothing in (0.0, float("nan"), float("inf")):
        other = torch.where(valid, depth, nothing)
        assert sequence_loss(coarse, fine, other, valid, depth_range) == loss
