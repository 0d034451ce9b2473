"""Losses of multi-view depth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fusion_loss", "sequence_loss"]


def _normalized_inverse(depth: Tensor, depth_range: Tensor) -> Tensor:
    """Inverse of depth (B, 1, H, W), 1 at the nearest and 0 at the furthest of a range (B, 2).

    It is not clipped.
    """
    near, far = (1 / depth_range.float())[..., None, None, None].unbind(1)
    return (1 / (depth.float() + 1e-6) - far) / (near - far)


def sequence_loss(
    coarse: Sequence[Tensor],
    fine: Sequence[Tensor],
    depth: Tensor,
    valid: Tensor,
    depth_range: Tensor,
    gamma: float = 0.9,
) -> Tensor:
    """Error of normalised inverse depth after every iteration, as DispMVS's published program.

    The iteration i of a stage weighs gamma^i, so that early ones weigh more, and each stage starts
    from 1 again. The mean runs over the known pixels of the whole batch.

    Args:
        coarse: predictions first to last, (B, 1, H / 4, W / 4), compared with the top left pixel
            of each 4x4 block.
        fine: predictions, (B, 1, H, W).
        depth: ground truth, (B, 1, H, W).
        valid: where it is known, (B, 1, H, W) bool.
        depth_range: (B, 2), nearest and furthest depth.
        gamma: factor from one iteration to the next.

    Returns:
        Scalar, float32; 0 where no pixel is known.
    """
    # Unknown depth may be 0: its inverse would be huge, and its gradient too.
    truth = _normalized_inverse(
        torch.where(valid, depth, depth_range[:, 1].view(-1, 1, 1, 1)), depth_range
    )
    total = depth.new_zeros((), dtype=torch.float32)
    for predictions, step in ((fine, 1), (coarse, 4)):
        wanted, known = truth[:, :, ::step, ::step], valid[:, :, ::step, ::step]
        count = known.sum().clamp(min=1)
        for index, prediction in enumerate(predictions):
            error = (_normalized_inverse(prediction, depth_range) - wanted).abs()
            total = total + gamma**index * torch.where(known, error, 0).sum() / count
    return total


def fusion_loss(depth: Tensor, odds: Tensor, truth: Tensor, valid: Tensor) -> Tensor:
    """The mean of log(1 + e / 0.02), where e is the relative error, and a cross-entropy.

    That is of `odds` against whether e is below 5 %.

    Args:
        depth: predicted, (B, 1, H, W).
        odds: (B, 1, H, W), log-odds that the depth is within 5 % of the truth.
        truth: (B, 1, H, W).
        valid: where it is known, (B, 1, H, W) bool.

    Returns:
        Scalar, float32, the mean over the known pixels; 0 where there is none.
    """
    error = (depth.float() / torch.where(valid, truth, 1) - 1).abs()
    right = (error < 0.05).float()
    unsure = F.binary_cross_entropy_with_logits(odds.float(), right, reduction="none")
    wrong = (1 + error / 0.02).log()
    return torch.where(valid, wrong + unsure, 0).sum() / valid.sum().clamp(min=1)
