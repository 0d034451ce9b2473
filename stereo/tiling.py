"""Pairs that are nearer, or larger, than a network takes at once.

They are matched at a smaller size first. Then they are matched at their own, tile by tile, the
right tile moved by about the disparity that was found: what is left is within the network's reach,
whatever the disparity, and a tile is as small as memory asks for. Where both agree, the second
result is finer; elsewhere the first one stands, which saw more of the scene.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["least_pixels", "offsets", "refine", "tiles"]

_OVERLAP = 64  # pixels that neighbouring tiles share on each side of their border
_AGREE = 2.5  # pixels of the first matching, beyond one of the second
_MOST = 0.995  # share of the disparities that moved tiles cover
_HALO = 32  # pixels round what a move is for that are matched with it


def tiles(
    height: int, width: int, pixels: int | None, margin: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Cover a picture by overlapping tiles: rows, columns and weight (h, w) of each.

    Weights fade towards neighbours and add up to 1 everywhere.

    Args:
        height: of the picture, pixels.
        width: of the picture, pixels.
        pixels: of the largest tile, its margin included, where that can be; None for any.
        margin: columns that a tile needs beside it on the left.
    """
    down = across = 1
    while pixels is not None and (
        _extent(height, down) * min(width, _extent(width, across) + margin) > pixels
    ):
        wider = width / across >= height / down
        if (width / (across + 1) if wider else height / (down + 1)) < 2 * _OVERLAP:
            break  # smaller ones would be overlap alone
        down, across = down + (not wider), across + wider
    columns = [_fade(width, across, place) for place in range(across)]
    for place in range(down):
        rows, vertical = _fade(height, down, place)
        for part, horizontal in columns:
            yield rows, part, vertical[:, None] * horizontal


def least_pixels(height: int, width: int, margin: int) -> int:
    """How many pixels the smallest tile of a picture has, its margin included."""
    return min(height, 4 * _OVERLAP + 2) * min(width, 4 * _OVERLAP + 2 + margin)


def offsets(coarse: Tensor, reach: float) -> Iterator[tuple[int, Tensor]]:
    """By how much to move the right tile, and the weight (h, w) of each result.

    The moves are half of the reach apart. A disparity in the middle of what a move brings within
    reach has weight 1; disparities in between have both results in their mean.

    Args:
        coarse: disparities found at a smaller size, (h, w), in pixels of the tile.
        reach: disparities below which the network works, pixels.
    """
    step = reach / 2
    for place in range(max(1, math.ceil(float(_quantile(coarse)) / step))):
        offset = round(place * step)
        weight = 1 - (coarse - offset - step).abs() / step
        if place == 0:
            weight = torch.where(coarse <= step, 1, weight)
        if (weight > 0).any():
            yield offset, weight.clamp(min=0)


def refine(
    match: Callable[[Tensor, Tensor], Tensor],
    left: Tensor,
    right: Tensor,
    coarse: Tensor,
    scale: float,
    reach: float | None,
    pixels: int | None = None,
) -> Tensor:
    """Match a pair at its own size where its disparity is about known.

    Args:
        match: gives maps (C, h, w) of two pictures (3, h, w), the first of them the disparity.
        left: (3, H, W).
        right: (3, H, W).
        coarse: such maps (C, H, W), in pixels of these images.
        scale: of the images in which it was found.
        reach: disparities below which `match` works, pixels; None where there is no bound.
        pixels: that `match` gets at once at most; None for any number.

    Returns:
        Maps (C, H, W).
    """
    height, width = coarse.shape[1:]
    total, weights = torch.zeros_like(coarse), torch.zeros_like(coarse[0])
    tolerance = _AGREE / scale + 1
    most = float(_quantile(coarse[0]))
    margin = math.ceil(most if reach is None else min(reach, most + _HALO))
    for rows, columns, fade in tiles(height, width, pixels, margin):
        part = coarse[0, rows, columns]
        moves = [(0, torch.ones_like(part))] if reach is None else offsets(part, reach)
        for offset, weight in moves:
            high, wide = (_around(weight.amax(axis) > 0) for axis in (1, 0))
            above = slice(rows.start + high.start, rows.start + high.stop)
            across = slice(columns.start + wide.start, columns.start + wide.stop)
            start = max(0, across.start - margin)
            maps = match(
                left[:, above, start : across.stop],
                _moved(right[:, above], start, across.stop, offset),
            )[..., across.start - start :]
            maps[0] += offset
            weight = (weight * fade)[high, wide]
            weight = weight * ((maps[0] - coarse[0, above, across]).abs() < tolerance)
            total[:, above, across] += weight * maps
            weights[above, across] += weight
    unknown = weights <= 1e-3
    total /= weights.clamp_(min=1e-3)
    total[:, unknown] = coarse[:, unknown]
    return total


def _around(used: Tensor) -> slice:
    """From the first to the last place that is used, and a little more."""
    places = used.nonzero()[:, 0].tolist()
    return slice(max(0, places[0] - _HALO), min(len(used), places[-1] + 1 + _HALO))


def _moved(image: Tensor, start: int, stop: int, offset: int) -> Tensor:
    """Columns start - offset to stop - offset; beyond the border its last column is repeated."""
    before = max(0, offset - start)
    inside = image[..., max(0, start - offset) : max(1, stop - offset)]
    return pad(inside[None], (before, 0, 0, 0), mode="replicate")[0][..., : stop - start]


def _extent(size: int, count: int) -> int:
    """The largest of so many parts, its overlap included."""
    return min(size, math.ceil(size / count) + (2 * _OVERLAP if count > 1 else 0))


def _fade(size: int, count: int, place: int) -> tuple[slice, Tensor]:
    """One of so many parts of a length, and its weights: ramps where it meets its neighbours."""
    borders = [round(size * part / count) for part in (place, place + 1)]
    start = max(0, borders[0] - _OVERLAP) if place else 0
    stop = min(size, borders[1] + _OVERLAP) if place < count - 1 else size
    at = torch.arange(start, stop) + 0.5
    weight = torch.ones(stop - start)
    if place:
        weight = weight * ((at - borders[0]) / (2 * _OVERLAP) + 0.5).clamp(0, 1)
    if place < count - 1:
        weight = weight * ((borders[1] - at) / (2 * _OVERLAP) + 0.5).clamp(0, 1)
    return slice(start, stop), weight


def _quantile(disparity: Tensor) -> Tensor:
    """What nearly all disparities are below."""
    flat = disparity.flatten()
    return flat[:: max(1, len(flat) // 1_000_000)].quantile(_MOST)
