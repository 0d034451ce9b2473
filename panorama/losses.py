"""Losses of depth on the sphere; which pixels or faces count is always given beside the depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..datasets.files import check_choice
from ..vision.layers import check_truth
from .mesh import kept, level_of, spherical_mesh

__all__ = ["berhu_loss", "coarsen_depth", "multiscale_loss", "shifted", "solid_angles"]


def berhu_loss(
    prediction: Tensor,
    depth: Tensor,
    valid: Tensor,
    *,
    threshold: float = 0.2,
    adaptive: bool = False,
    weights: Tensor | None = None,
) -> Tensor:
    """Reverse Huber loss: |d| up to T, (d² + T²) / (2 T) beyond.

    Args:
        prediction: of any shape.
        depth: the truth, the same shape; anything where it is not valid.
        valid: where it is known, the same shape, bool.
        threshold: T in the depth's unit (SphereFusion: 0.2 m); with `adaptive` its share of the
            largest error in the batch, which is not derived (UniFuse: 0.2).
        adaptive: see there.
        weights: how much each value counts, broadcast to the shape; None counts all alike.

    Returns:
        Scalar, at least float32: mean of the valid ones; 0, with a graph, where there is none.

    Raises:
        ValueError: the shapes differ, or the threshold is not above 0.
    """
    check_truth(prediction, depth, valid)
    if threshold <= 0:
        raise ValueError(f"threshold {threshold}: must be above 0")
    prediction = prediction.to(torch.promote_types(prediction.dtype, torch.float32))
    # Both before and after the difference: neither NaN nor infinity may meet a gradient.
    error = torch.where(valid, prediction - torch.where(valid, depth, 0), 0).abs()
    border = error.new_tensor(threshold)
    if adaptive:
        largest = error.detach().max() if error.numel() else border
        border = (threshold * largest).clamp(min=torch.finfo(error.dtype).tiny ** 0.5)
    loss = torch.where(error <= border, error, (error**2 + border**2) / (2 * border))
    counted = valid.to(loss.dtype)
    if weights is not None:
        counted = counted * weights.to(loss.dtype)
    total = counted.sum()
    return (loss * counted).sum() / torch.where(total > 0, total, 1)


def coarsen_depth(depth: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Labels of the next coarser level: mean of the valid children.

    Args:
        depth: (N, F), anything where it is not valid.
        valid: where it is known, (N, F) bool.

    Returns:
        The same of (N, F / 4); depth is 0 where no child is valid.
    """
    total = torch.where(valid, depth, 0).unflatten(1, (-1, 4)).sum(2)
    count = valid.unflatten(1, (-1, 4)).sum(2)
    return total / count.clamp(min=1), count > 0


def multiscale_loss(
    outputs: Sequence[Tensor],
    depth: Tensor,
    valid: Tensor,
    scale_weights: Sequence[float] = (1, 1 / 2, 1 / 4, 1 / 8),
    *,
    threshold: float = 0.2,
    adaptive: bool = False,
    weight: Literal["face", "solid_angle"] = "face",
) -> Tensor:
    """BerHu of depth on faces at several levels.

    Args:
        outputs: (N, F_i), finest first, each of a coarser level than the one before.
        depth: the truth, (N, F), at the first output's level or a finer one.
        valid: where it is known, (N, F) bool.
        scale_weights: one for each output; further ones are not used.
        threshold: see `berhu_loss`.
        adaptive: see there.
        weight: `face` counts all faces alike, `solid_angle` by their size on the sphere.

    Returns:
        Scalar, float32 or the outputs' type.

    Raises:
        ValueError: fewer weights than outputs, or an output finer than the truth.
    """
    if len(scale_weights) < len(outputs):
        raise ValueError(f"{len(scale_weights)} scale weights for {len(outputs)} outputs")
    check_choice("weight", weight, ("face", "solid_angle"))
    total = outputs[0].new_zeros((), dtype=torch.promote_types(outputs[0].dtype, torch.float32))
    for output, scale in zip(outputs, scale_weights, strict=False):
        level = level_of(output.shape[1])
        while depth.shape[1] > output.shape[1]:
            depth, valid = coarsen_depth(depth, valid)
        if depth.shape[1] != output.shape[1]:
            raise ValueError(
                f"an output has {output.shape[1]} faces and the truth {depth.shape[1]}: it must "
                "be of the outputs' finest level or finer, and they must go from fine to coarse"
            )
        if scale:
            sizes = solid_angles(level, output.device) if weight == "solid_angle" else None
            total = total + scale * berhu_loss(
                output, depth, valid, threshold=threshold, adaptive=adaptive, weights=sizes
            )
    return total


def shifted(outputs: Sequence[Tensor], depth: Tensor, valid: Tensor) -> list[Tensor]:
    """Outputs with the truth's mean: of logarithms, depths that have the truth's scale.

    Args:
        outputs: (N, F_i), finest first.
        depth: the truth, (N, F), at the first output's level or a finer one.
        valid: where it is known, (N, F) bool.

    Returns:
        The same shapes; each picture's are shifted by what its finest differ by in the mean over
        faces, or not at all where nothing is known.
    """
    while depth.shape[1] > outputs[0].shape[1]:
        depth, valid = coarsen_depth(depth, valid)
    difference = torch.where(valid, depth - outputs[0], 0).sum(1, keepdim=True)
    shift = difference / valid.sum(1, keepdim=True).clamp(min=1)
    return [output + shift for output in outputs]


def solid_angles(level: int, device: torch.device | str = "cpu") -> Tensor:
    """Of the faces of a level, (F,) float64, as weights of what stands on them."""
    return kept(spherical_mesh(level).solid_angles, device)
