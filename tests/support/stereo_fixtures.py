"""Networks without weights, and pairs whose disparity is known, for tests of inference."""

import functools

import cv2
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vizoo.__main__ import main
from vizoo.stereo import infer
from vizoo.vision.viz.cloud import cloud_picture


class Constant(nn.Module):
    """Finds 5 px everywhere."""

    def forward(self, left, right):
        return torch.full_like(left[:, :1], 5.0)


def one_peak(net, finest=0):
    """A network of random weights whose finest scores have one peak: rounding chooses none."""
    head = list(net.heads)[finest]
    with torch.no_grad():
        head.weight *= 0.01
        head.bias -= (torch.arange(len(head.bias)) - 8).square()
    return net


@pytest.fixture
def stand_in(monkeypatch):
    """`--model stand-in` is `Constant`; other names are looked up."""
    original = infer.load_network
    monkeypatch.setattr(
        infer, "load_network", lambda m, task: Constant() if m == "stand-in" else original(m, task)
    )


@pytest.fixture(autouse=True)
def small_clouds(monkeypatch):
    """Large pictures of the point clouds of small pairs would take most of the tests' time."""
    small = functools.partial(cloud_picture, width=160)
    monkeypatch.setattr("vizoo.stereo.result.cloud_picture", small)


def refused_line(capsys, words):
    """Run a command that must fail; return its one line."""
    assert main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("vizoo: error: "), lines
    return lines[0]


class BlockMatcher(nn.Module):
    """Stands in for a network: the best of `reach` candidates by differences of 9x9 windows."""

    def __init__(self, reach):
        super().__init__()
        self.reach = reach

    def forward(self, left, right):
        wide = F.pad(right, (self.reach - 1, 0, 0, 0), mode="replicate")
        moved = [wide[..., self.reach - 1 - d :][..., : right.shape[-1]] for d in range(self.reach)]
        # Candidates last in memory: pooled so, and by rows and columns, it takes a third.
        costs = torch.stack([(left - view).abs().mean(1) for view in moved], -1).movedim(-1, 1)
        for window, around in (((9, 1), (4, 0)), ((1, 9), (0, 4))):
            costs = F.avg_pool2d(costs, window, 1, around, count_include_pad=False)
        return costs.argmin(1, keepdim=True).float()


def pair_of(disparity, seed=1):
    """Left and right (3, H, W) of a smooth texture; the left one has the disparities (H, W)."""
    height, width = disparity.shape
    right, hidden_by = (_texture(height, width, seed + more) for more in (0, 100))
    x = torch.arange(width) - disparity
    y = torch.arange(height)[:, None].expand_as(x)
    grid = torch.stack((2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1), -1)
    left = F.grid_sample(right[None], grid[None].float(), align_corners=True)[0].clamp(0, 1)
    # What nearer things hide in the right view has a texture of its own.
    place = x.round().long().clamp(0, width - 1)
    nearest = torch.zeros_like(disparity).scatter_reduce_(1, place, disparity, "amax")
    return torch.where(disparity < nearest.gather(1, place) - 1, hidden_by, left), right


def _texture(height, width, seed):
    noise = np.random.default_rng(seed).random((height, width, 3), dtype=np.float32)
    texture = torch.from_numpy(cv2.GaussianBlur(noise, (0, 0), 1.5)).permute(2, 0, 1)
    return (texture - texture.min()) / (texture.max() - texture.min())
