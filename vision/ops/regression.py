"""From a cost volume to a disparity map."""

import torch
from torch import Tensor

__all__ = ["soft_argmin"]


def soft_argmin(cost: Tensor, *, start: float = 0.0, step: float = 1.0) -> Tensor:
    """Expected disparity under softmax(-cost).

    Args:
        cost: (B, D, H, W), low where the match is good.
        start: disparity of the first candidate, pixels.
        step: pixels between candidates.

    Returns:
        (B, 1, H, W), float32 (float64 for float64 costs).
    """
    cost = cost if cost.dtype == torch.float64 else cost.float()
    candidates = start + step * torch.arange(cost.shape[1], device=cost.device, dtype=cost.dtype)
    return torch.einsum("bdhw,d->bhw", torch.softmax(-cost, dim=1), candidates)[:, None]
