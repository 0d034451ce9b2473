"""Where a classifier looked, by covering parts of its input.

Paper: Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014,
section 4.2. It asks the network itself, so that it holds for any architecture, and takes one
forward pass for each place of the cover.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from ..vision.inference import evaluating
from .activation import ActivationMap, checked_classes, scaled

__all__ = ["occlusion"]

_PARTS = 6  # of an axis, that a cover hides one of
_LEAST = 4  # pixels of a cover's side
_AT_ONCE = 1 << 22  # values in a batch


def occlusion(
    net: nn.Module,
    inputs: Tensor,
    classes: Tensor | None = None,
    *,
    cover: tuple[int, ...] | None = None,
    value: float = 0.0,
) -> ActivationMap:
    """By how much the class's log-probability falls where a part of the input is covered.

    Args:
        net: runs in evaluation mode.
        inputs: (B, C, *size), of two or three axes.
        classes: (B,), what to explain; None for the predicted ones.
        cover: sides of what is covered, moved by half of them; a sixth of each axis by default, at
            least four pixels.
        value: of the cover.

    Raises:
        ValueError: the cover does not fit; a class is unknown.
    """
    size = tuple(inputs.shape[2:])
    cover = cover or tuple(min(side, max(_LEAST, side // _PARTS)) for side in size)
    if len(cover) != len(size) or not all(0 < c <= s for c, s in zip(cover, size, strict=True)):
        raise ValueError(f"a cover of {cover} does not fit inputs of {size}")
    places = list(itertools.product(*map(_starts, size, cover)))
    at_once = max(1, _AT_ONCE // inputs[0].numel())
    with evaluating(net), torch.no_grad():
        logits = net(inputs)
        classes = checked_classes(classes, logits)
        before = logits.float().log_softmax(1).gather(1, classes[:, None])[:, 0]
        raw, total = inputs.new_zeros(len(inputs), *size), inputs.new_zeros(size)
        weights = _tent(cover).to(inputs)  # without them the map would have the covers' edges
        for number, one in enumerate(inputs):
            for start in range(0, len(places), at_once):
                parts = [_part(place, cover) for place in places[start : start + at_once]]
                covered = one.repeat(len(parts), *(1 for _ in one.shape))
                for each, part in zip(covered, parts, strict=True):
                    each[(slice(None), *part)] = value
                after = net(covered).float().log_softmax(1)[:, classes[number]]
                for part, fall in zip(parts, before[number] - after, strict=True):
                    raw[number][part] += fall * weights
        for place in places:
            total[_part(place, cover)] += weights
    raw = (raw / total).relu()
    method = f"occlusion, covers of {'x'.join(map(str, cover))}"
    return ActivationMap(scaled(raw, size), raw, classes, logits, method)


def _starts(side: int, cover: int) -> list[int]:
    """Where covers begin along an axis, so that all of it is covered."""
    return sorted({*range(0, side - cover + 1, max(1, cover // 2)), side - cover})


def _tent(cover: tuple[int, ...]) -> Tensor:
    """Weights of a cover's pixels, which fall linearly from its middle to its edges."""
    weights = torch.ones(())
    for side in cover:
        line = torch.arange(1.0, side + 1)
        weights = weights[..., None] * torch.minimum(line, line.flip(0))
    return weights


def _part(place: tuple[int, ...], cover: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(at, at + side) for at, side in zip(place, cover, strict=True))
