"""Losses for disparity networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fusion_loss", "matching_loss", "multiscale_loss", "upsampled_loss"]


def _pool_disparity(disparity: Tensor, valid: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The mean of the known disparities of each cell, not rescaled, and where any is known."""
    share = F.avg_pool2d(valid.to(disparity.dtype), factor)
    total = F.avg_pool2d(torch.where(valid, disparity, 0), factor)
    known = share > 0
    return torch.where(known, total / share.clamp(min=torch.finfo(share.dtype).tiny), 0), known


def multiscale_loss(
    stages: Sequence[Sequence[Tensor]],
    disparity: Tensor,
    valid: Tensor,
    weights: Sequence[float],
    max_disparity: float = 192.0,
) -> Tensor:
    """Smooth L1 at every scale, summed over scales and stages, as FADNet's published program.

    Args:
        stages: for each stage its predictions, finest first; each (B, 1, H / 2^k, W / 2^k) in
            full-resolution pixels.
        disparity: ground truth, (B, 1, H, W).
        valid: where it is known, (B, 1, H, W) bool.
        weights: one weight a scale, finest first; scales with weight 0 are not computed.
        max_disparity: pooled disparities from here on are left out.

    Returns:
        Scalar, float32. A scale without any kept pixel adds 0.

    Raises:
        ValueError: a stage has fewer predictions than there are weights.
    """
    scales = min(map(len, stages))
    if scales < len(weights):
        raise ValueError(
            f"{len(weights)} scale weights for a network with {scales} scales: give one for "
            "each, or train with loss 'upsampled'"
        )
    total = disparity.new_zeros((), dtype=torch.float32)
    for scale, weight in enumerate(weights):
        if not weight:
            continue
        target, known = _pool_disparity(disparity, valid, 2**scale)
        kept = known & (target > 0) & (target < max_disparity)
        count = kept.sum().clamp(min=1)
        for stage in stages:
            error = F.smooth_l1_loss(stage[scale].float(), target, reduction="none")
            total = total + weight * torch.where(kept, error, 0).sum() / count
    return total


def upsampled_loss(
    stages: Sequence[Sequence[Tensor]],
    disparity: Tensor,
    valid: Tensor,
    weights: Sequence[float],
    max_disparity: float = 192.0,
    volumes: Sequence[tuple[Tensor, float]] = (),
    log_weight: float = 0.0,
) -> Tensor:
    """Smooth L1 of predictions resized to the ground truth, as AANet's and EASNet's programs.

    Arguments are as of `multiscale_loss`, but predictions (B, 1, h, w) of any size, and weights
    coarsest first, of which further predictions take the last. With `volumes`, as of
    `matching_loss`, predictions may go beyond the image, as the cells do that they come from. With
    `log_weight`, so many times log(1 + error) of each stage's finest prediction is added, whatever
    its weight, which is ours: its slope, 1 / (1 + error), pulls at pixels that are nearly right,
    hardly at lost ones.

    Returns:
        Scalar, float32; 0 where no pixel is kept.
    """
    kept = valid & (disparity > 0) & (disparity < max_disparity)
    count = kept.sum().clamp(min=1)
    total = disparity.new_zeros((), dtype=torch.float32)
    for stage in stages:
        for index, prediction in enumerate(reversed(stage)):
            prediction = prediction.float()
            if prediction.shape != disparity.shape:
                prediction = _at_full_size(prediction, disparity.shape[-2:], volumes)
            error = F.smooth_l1_loss(prediction, disparity, reduction="none")
            error = weights[min(index, len(weights) - 1)] * error
            if log_weight and index == len(stage) - 1:
                error = error + log_weight * (prediction - disparity).abs().log1p()
            total = total + torch.where(kept, error, 0).sum() / count
    return total


def _at_full_size(
    prediction: Tensor, size: torch.Size, volumes: Sequence[tuple[Tensor, float]]
) -> Tensor:
    height, width = prediction.shape[-2:]
    cell = {scores.shape[-1]: float(step) for scores, step in reversed(volumes)}.get(width)
    if volumes and cell is None:  # refined: as far as the finest scores where that is whole pixels
        cell = volumes[0][1] * volumes[0][0].shape[-1] / width
        cell = cell if cell.is_integer() else None
    if cell is None or cell * height < size[0] or cell * width < size[1]:
        return F.interpolate(prediction, size, mode="bilinear")
    enlarged = F.interpolate(prediction, scale_factor=cell, mode="bilinear")
    return enlarged[..., : size[0], : size[1]]


def matching_loss(
    volumes: Sequence[tuple[Tensor, float]],
    disparity: Tensor,
    valid: Tensor,
    weights: Sequence[float] = (1.0, 0.5, 0.4),
) -> Tensor:
    """Cross-entropy of the candidates on both sides of the true disparity, by how near they are.

    A loss of the expected disparity lets two peaks share a pixel; this one wants a single peak,
    and teaches matching many times faster (Tulyakov et al., "Practical Deep Stereo", NeurIPS 2018,
    section 3.3, do so with a Laplacian target).

    Args:
        volumes: finest first, scores (B, D, h, w), high where the match is good, and the
            full-resolution pixels between two candidates, of which the first is 0; a cell is as
            many pixels wide, and the cells may go beyond the image.
        disparity: ground truth, (B, 1, H, W), of which each cell's central pixel is taken.
        valid: where it is known, (B, 1, H, W) bool.
        weights: of the volumes, finest first; further ones take the last.

    Returns:
        Scalar, float32. A volume without a known pixel in its range adds 0.
    """
    total = disparity.new_zeros((), dtype=torch.float32)
    for index, (scores, step) in enumerate(volumes):
        last = scores.shape[1] - 1
        places = [((torch.arange(n) + 0.5) * step).long() for n in scores.shape[-2:]]
        inside = [p[p < size] for p, size in zip(places, disparity.shape[-2:], strict=True)]
        rows, columns = inside[0][:, None].to(scores.device), inside[1].to(scores.device)
        scores = scores[..., : len(rows), : len(columns)]
        target = disparity[..., rows, columns] / step
        known = valid[..., rows, columns] & (target > 0) & (target < last)
        lower = torch.where(known, target, 0).floor().long().clamp(max=max(0, last - 1))
        share = torch.where(known, target, 0) - lower
        chances = F.log_softmax(scores.float(), dim=1)
        near, far = chances.gather(1, lower), chances.gather(1, (lower + 1).clamp(max=last))
        entropy = torch.where(known, -(1 - share) * near - share * far, 0)
        weight = weights[min(index, len(weights) - 1)]
        total = total + weight * entropy.sum() / known.sum().clamp(min=1)
    return total


def fusion_loss(
    disparity: Tensor, odds: Tensor, truth: Tensor, valid: Tensor, max_disparity: float = 192.0
) -> Tensor:
    """What counts pixels that are wrong, and a little by how much: e / (1 + e) + 0.3 min(e, 20).

    To that comes the cross-entropy of what is within a pixel.

    Args:
        disparity: predicted, (B, 1, H, W), pixels.
        odds: (B, 1, H, W), logarithms of those that it is within a pixel of the truth.
        truth: (B, 1, H, W).
        valid: where it is known, (B, 1, H, W) bool.
        max_disparity: truth from here on is left out.

    Returns:
        Scalar, float32, the mean over the pixels that are kept; 0 where there is none.
    """
    kept = valid & (truth > 0) & (truth < max_disparity)
    error = torch.where(kept, (disparity.float() - truth).abs(), 0)
    wrong = error / (1 + error) + 0.3 * error.clamp(max=20)
    right = (error < 1).float()
    unsure = F.binary_cross_entropy_with_logits(odds.float(), right, reduction="none")
    return torch.where(kept, wrong + unsure, 0).sum() / kept.sum().clamp(min=1)
