"""Layers that the engine and the networks share, and the mode in which they run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["CHANNELS_LAST", "Number", "SqueezeExcitation", "channels_last", "evaluating"]

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory format of images and of volumes, by their number of axes."""


def channels_last(net: nn.Module) -> nn.Module:
    """Put a network's weights and buffers into channels-last memory, in place, and return it."""
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.dim() in CHANNELS_LAST:
            tensor.data = tensor.data.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])
    return net


class Number(nn.Module):
    """Holds an int that no layer's size shows, such as how often a block runs."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def extra_repr(self) -> str:
        """The number."""
        return str(self.value)


class SqueezeExcitation(nn.Module):
    """Scales each channel of images by a gate, relu6(x + 3) / 6, that sees every channel's mean.

    Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018, with the gate of MobileNetV3.

    Args:
        fc1: 1x1 convolution from the channels to fewer.
        fc2: 1x1 convolution from fewer to the channels.
    """

    def __init__(self, fc1: nn.Module, fc2: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2 = fc1, fc2

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W), as many channels as `fc1` reads, to the same."""
        gate = self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1))))
        return F.hardsigmoid(gate) * x


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block; afterwards the modes are as before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
