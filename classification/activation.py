"""Maps of where a classifier looked, however they were made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["ActivationMap", "checked_classes", "resized", "scaled"]


@dataclass(frozen=True)
class ActivationMap:
    """Where a classifier looked.

    Attributes:
        values: (B, *size), in [0, 1], of the input's size.
        raw: (B, *cells), unscaled, of the features' size; where windows were averaged of the
            input's.
        classes: (B,), what the map is for.
        logits: (B, classes), of the whole input.
        method: how it was made, in words.
    """

    values: Tensor
    raw: Tensor
    classes: Tensor
    logits: Tensor
    method: str


def scaled(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (B, *cells) brought to [0, 1] each and resized linearly; all 0 where a map is flat.

    Args:
        maps: of two or three axes.
        size: as many numbers.
    """
    axes = tuple(range(1, maps.dim()))
    low, high = maps.amin(axes, keepdim=True), maps.amax(axes, keepdim=True)
    maps = (maps - low) / (high - low).clamp(min=torch.finfo(maps.dtype).tiny)
    return resized(maps, size).clamp(0, 1)


def checked_classes(classes: Tensor | None, logits: Tensor) -> Tensor:
    """The classes (B,) of logits (B, classes) to explain: those given, or the predicted ones.

    Raises:
        ValueError: their number is another one, or one is unknown.
    """
    if classes is None:
        return logits.argmax(1)
    classes = torch.as_tensor(classes, device=logits.device)
    if classes.shape != logits.shape[:1] or not (0 <= classes.min() <= classes.max()):
        raise ValueError(f"{len(logits)} classes from 0 are needed, not {classes.tolist()}")
    if classes.max() >= logits.shape[1]:
        raise ValueError(f"class {int(classes.max())} is unknown: there are {logits.shape[1]}")
    return classes


def resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (B, H, W) or (B, D, H, W) at the size of their input, by linear interpolation."""
    mode = "bilinear" if maps.dim() == 3 else "trilinear"
    return F.interpolate(maps[:, None], tuple(size), mode=mode)[:, 0]
