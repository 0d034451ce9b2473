"""Training in channels-last memory, at the shapes of the configs: oneDNN has crashed in some."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vizoo.stereo import fadnet

CODE = """
import torch
from vizoo.stereo import fadnet
torch.manual_seed(0)
net = fadnet.{name}().train().to(memory_format=torch.channels_last)
stages = net.forward_stages(*torch.rand(2, {batch}, 3, {height}, {width}))
sum(scale.mean() for stage in stages for scale in stage).backward()
assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
"""


@pytest.mark.parametrize("name", ["fadnet_plus_micro", "fadnet_plus_tiny"])
@pytest.mark.parametrize("shape", [(4, 320, 640), (8, 256, 448)])
def test_a_step_does_not_crash(name, shape):
    """In a process of its own, since what is feared is a segmentation fault."""
    batch, height, width = shape
    code = CODE.format(name=name, batch=batch, height=height, width=width)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_gradients_are_those_of_the_plain_layout():
    left, right = torch.rand(2, 2, 3, 64, 128, dtype=torch.float64)
    gradients = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        net = fadnet.fadnet_plus_micro().double().train().to(memory_format=layout)
        stages = net.forward_stages(left, right)
        sum(scale.square().mean() for stage in stages for scale in stage).backward()
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    for plain, last in zip(*gradients, strict=True):
        scale = plain.abs().max().item()
        torch.testing.assert_close(last, plain, rtol=1e-6, atol=1e-8 * scale + 1e-12)
