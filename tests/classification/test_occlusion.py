"""Where covering the input changes the answer."""

import pytest
import torch
from torch import nn

from vizoo.classification.cam import explain, occlusion


class Bright(nn.Module):
    """Its second class is as likely as the brightest pixel is bright."""

    def forward(self, x):
        peak = x.flatten(1).amax(1)
        return torch.stack((torch.zeros_like(peak), 10 * peak), 1)


@pytest.mark.parametrize("size, spot", [((24, 30), (5, 22)), ((8, 24, 24), (6, 3, 20))])
def test_the_map_is_highest_where_the_evidence_is(size, spot):
    x = 0.1 * torch.rand(1, 1, *size)
    x[(0, 0, *spot)] = 1.0
    found = occlusion(Bright(), x)
    assert found.classes.tolist() == [1] and found.values.shape == (1, *size)
    assert found.values[0][spot] > 0.999 and found.values.min() == 0
    covers = "x".join(str(max(4, side // 6)) for side in size)
    assert found.method == f"occlusion, covers of {covers}"
    far = found.values[0].flip(tuple(range(len(size))))[spot]
    assert far < 0.1
    assert torch.equal(explain(Bright(), x, None, "occlusion", mirrors=True).raw, found.raw)


def test_all_of_the_input_is_covered_and_restored():
    x = torch.rand(2, 3, 7, 10)
    before = x.clone()
    net = nn.Sequential(nn.Flatten(), nn.Linear(210, 3)).train()
    found = occlusion(net, x, torch.tensor([0, 2]))
    assert torch.equal(x, before) and net.training
    assert found.raw.isfinite().all() and found.raw.shape == (2, 7, 10)
