"""A training step in channels-last memory, for a process that may crash of it."""

from __future__ import annotations

import torch

from vizoo.stereo import fadnet


def step(name: str, batch: int, height: int, width: int) -> None:
    """Run a network of FADNet's family and its backward pass once, in training."""
    torch.manual_seed(0)
    net = getattr(fadnet, name)().train().to(memory_format=torch.channels_last)
    stages = net.forward_stages(*torch.rand(2, batch, 3, height, width))
    sum(scale.mean() for stage in stages for scale in stage).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
