"""Expected disparity under a softmax: ``kernels/regression.cu``."""

from __future__ import annotations

import torch
from torch import Tensor

from .._kernels import TYPES, Arguments, launch

KERNELS = ("soft_argmin_forward<{}>", "soft_argmin_backward<{}>")


def forward(cost: Tensor, start: float, step: float) -> Tensor:
    """(B, D, H, W) to the expected value (B, 1, H, W) of `start`, `start + step`, …, float32."""
    batch, count, height, width = cost.shape
    out = cost.new_empty(batch, 1, height, width, dtype=torch.float32)
    maps: Arguments = cost, *cost.stride(), out
    launch(
        "regression",
        f"soft_argmin_forward<{TYPES[cost.dtype]}>",
        (-(-height * width // 128), 1, batch),
        128,
        *maps,
        *(batch, count, height, width, float(start), float(step)),
    )
    return out


def backward(gradient: Tensor, cost: Tensor, start: float, step: float) -> Tensor:
    """The gradient of the costs (B, D, H, W)."""
    batch, count, height, width = cost.shape
    to_cost = torch.empty_like(cost)
    maps: Arguments = cost, *cost.stride(), to_cost, *to_cost.stride()
    launch(
        "regression",
        f"soft_argmin_backward<{TYPES[cost.dtype]}>",
        (-(-height * width // 128), 1, batch),
        128,
        gradient.float().contiguous(),
        *maps,
        *(batch, count, height, width, float(step)),
    )
    return to_cost
