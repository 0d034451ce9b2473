"""A network guided by semi-global matching: what each finds is weighed pixel by pixel.

From coarse to fine: the network and the matching are fused at half of the pair's size, and what
comes out takes the network's place at its own. So the network works on few pixels and sees twice
as far, and the matching places details. Each time the disparity that is there already tells how
the cameras' exposures differ, and what rectification left of their heights, and both get views
that are equally bright and level; the network by what it finds in a quarter of the size.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, grid_sample, interpolate, pad

from ..nas.supernet import architecture_of
from ..vision.hub.create import load_network
from ..vision.hub.registry import model_info
from ..vision.inference import optimize
from ..vision.layers import check_pair
from ..vision.ops import warp_by_disparity
from ..vision.windows import box_mean
from .classical import fill_holes, semi_global_matching

__all__ = [
    "FUSION",
    "MATCHING_BYTES",
    "Guided",
    "guidance",
    "hidden",
    "max_disparity",
]

FUSION = "disparity_fusion"
"""The network that fuses by default."""
_NEARLY_ALL, _RESERVE, _MARGIN = 0.998, 1.1, 4  # of the range that is searched
_MOST = 512  # pixels
_CELLS = 8  # along the longer side, in which views are compared in brightness
_PRIOR = 0.3  # what the whole view counts beside a cell
_STEP = 0.01  # of a ratio, and of a pixel
_ALIKE = 0.2  # of the range of colours, from which on nothing is
_LEVEL = 0.1  # pixels up or down that are left
_ROWS = 64  # at least, which say enough of the whole view
_STIFF = 2e-6  # squared contrast of each pixel, beside which a view moves
# Of the pair's own size: small squares see detail, and what they cannot place was placed before.
_BLOCK, _PENALTY = 3, 6
_LEAST = 32  # pixels a side; networks in other runtimes take 8 at a quarter of the size
MATCHING_BYTES = 80 * _MOST
"""For each column of an image, which semi-global matching holds at most."""


class Guided(nn.Module):
    """Fuses a network's disparity with that of semi-global matching, from coarse to fine.

    Args:
        net: called with two views, as any stereo network is.
        fusion: a `DisparityFusion`; the trained one that comes with the package by default.
        scored: whether `net` has a method `predict` that also gives its certainty; what it says
            itself by default.

    Attributes:
        max_disparity: pixels; twice the network's. None where it does not say.
        reach: pixels; twice the network's. None where that was not measured.
    """

    output_names = ("disparity",)

    def __init__(
        self, net: nn.Module, fusion: nn.Module | None = None, scored: bool | None = None
    ) -> None:
        super().__init__()
        self.net = net
        self.fusion = load_network(FUSION, "stereo-fusion") if fusion is None else fusion
        self.scored = getattr(net, "scored", False) if scored is None else scored
        known = {"name": type(net).__name__, **architecture_of(net)}
        self.architecture = {"name": "Guided", "net": known}
        bound, reach = max_disparity(net), getattr(net, "reach", None)
        self.max_disparity = None if bound is None else 2 * bound
        self.reach: float | None = None if reach is None else 2 * reach

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        fast = copy.copy(self)
        fast._modules = {name: optimize(part, dtype) for name, part in self.named_children()}
        return fast

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Disparity (B, 1, H, W) of the left view.

        Args:
            left: (B, 3, H, W), RGB in [0, 1].
            right: the same shape, rectified to the left one.

        Raises:
            ValueError: the views differ in shape or are not RGB in [0, 1].
        """
        return self.fusion(*self.fine_guidance(left, right))

    def predict(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Disparity, and the chance that it is within a pixel of the truth, both (B, 1, H, W)."""
        fusion: Any = self.fusion
        return fusion.predict(*self.fine_guidance(left, right))

    def fine_guidance(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is fused at the size of the views, see `guidance`."""
        check_pair(left, right)
        disparity, certainty = self.coarse(left, right)
        unsure = torch.zeros_like(certainty)
        return guidance(disparity, unsure, left, right, block=_BLOCK, penalty=_PENALTY)

    def claimed(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The network's disparity, and its own certainty, 0 of one without, both (B, 1, H, W)."""
        with torch.autocast(left.device.type, enabled=False):  # it is to be as exact as it will be
            if self.scored:
                net: Any = self.net
                disparity, certainty = net.predict(left, right)
                return disparity.float(), certainty.float()
            disparity = self.net(left, right)[:, :1].float()
            return disparity, torch.zeros_like(disparity)

    def coarse_guidance(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is fused at half of the size, of views of that size; see `guidance`."""
        look, _ = self.claimed(_halved(left), _halved(right))
        left, right = _alike(left, right, _doubled(2 * look, left.shape[-2:]))
        return guidance(*self.claimed(left, right), left, right)

    def coarse(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """What is found at half of the size, (B, 1, H, W): the disparity, the network's certainty.

        Args:
            left: (B, 3, H, W), RGB in [0, 1].
            right: the same shape.
        """
        height, width = left.shape[-2:]
        beyond = 0, max(0, _LEAST - width), 0, max(0, _LEAST - height)
        if any(beyond):
            left, right = (pad(view, beyond, mode="replicate") for view in (left, right))
        guides = self.coarse_guidance(_halved(left), _halved(right))
        disparity, certainty = 2 * self.fusion(*guides), guides[-1][:, :1]
        return _doubled(disparity, (height, width)), _doubled(certainty, (height, width))


def max_disparity(net: nn.Module) -> float | None:
    """Pixels below which disparities lie that a network is made for; None where it says nothing."""
    if hasattr(net, "max_disparity"):
        return cast("float | None", net.max_disparity)
    architecture = architecture_of(net)
    if "name" not in architecture:
        return None
    return {**model_info(architecture["name"]).defaults, **architecture}.get("max_disparity")


def guidance(
    disparity: Tensor,
    certainty: Tensor,
    left: Tensor,
    right: Tensor,
    block: int = 5,
    penalty: int = 8,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `DisparityFusion` takes.

    Args:
        disparity: (B, 1, H, W), pixels, to be weighed against what semi-global matching finds.
        certainty: the same shape, 0 to 1.
        left: (B, 3, H, W), RGB in [0, 1].
        right: the same shape.
        block: see `semi_global_matching`.
        penalty: likewise.

    Returns:
        The left view, as bright as the right one, and that one, level with the left; claims
        (B, 3, H, W) and hints (B, 6, H, W).
    """
    left, right = _alike(left, right, disparity)
    match = partial(semi_global_matching, fill=False, block=block, penalty=penalty)
    matches = [
        match(first, second, disparities=_range(seen))
        for first, second, seen in zip(left, right, disparity, strict=True)
    ]
    matched, filled = (
        torch.from_numpy(np.stack(maps))[:, None].to(left.device)
        for maps in (matches, [fill_holes(each) for each in matches])
    )
    holes = matched <= 0
    matched = torch.where(holes, disparity, matched)
    filled = torch.where(filled > 0, filled, disparity)  # of rows in which nothing was found
    hints = certainty, holes.float(), *hidden(disparity), *hidden(filled)
    return left, right, torch.cat((disparity, matched, filled), 1), torch.cat(hints, 1)


def _halved(view: Tensor) -> Tensor:
    return avg_pool2d(view, 2, ceil_mode=True)


def _doubled(part: Tensor, size: tuple[int, ...]) -> Tensor:
    """Twice as large, cut to `size`."""
    height, width = size
    return interpolate(part, scale_factor=2, mode="bilinear")[..., :height, :width]


def _alike(left: Tensor, right: Tensor, disparity: Tensor) -> tuple[Tensor, Tensor]:
    left = _as_bright(left, right, disparity)
    return left, _level(left, right, disparity)


def _as_bright(left: Tensor, right: Tensor, disparity: Tensor) -> Tensor:
    """The left view times how much brighter the right one is, smoothly, where both see the same.

    Cameras differ in exposure, and more towards the corners; matching compares colours.
    """
    sides = left.shape[-2:]
    rows, columns = (max(1, round(_CELLS * side / max(sides))) for side in sides)
    # Every fourth row says enough.
    own, other, disparity = (part[..., ::4, :] for part in (left, right, disparity))
    behind, outside = hidden(disparity)
    both = torch.cat((own, warp_by_disparity(other, disparity)), 1)
    both = torch.where(behind + outside == 0, both, 0)
    # What still differs much is no match.
    differing = (both[:, 3:] - both[:, :3] * _ratio(both.mean((2, 3), keepdim=True))).abs()
    alike = (1 - differing.amax(1, keepdim=True) / _ALIKE).clamp(min=0)
    means = adaptive_avg_pool2d(both * alike, (rows, columns))
    # Where little is seen the whole view says it. Rounded, so that noise changes no byte.
    ratio = _ratio(means + _PRIOR * means.mean((2, 3), keepdim=True)).div(_STEP).round() * _STEP
    return (left * interpolate(ratio, size=sides, mode="bilinear")).clamp(0, 1)


def _ratio(means: Tensor) -> Tensor:
    """Of the second three channels to the first; 1 where all is dark."""
    own, other = (means + 1e-3).chunk(2, 1)
    return other / own


def _level(left: Tensor, right: Tensor, disparity: Tensor) -> Tensor:
    """The right view, moved up or down, turned and stretched to where the left one has the same.

    No rectification is exact, and matching compares rows. What both see is aligned by its
    vertical gradient (Lucas and Kanade, IJCAI 1981).
    """
    height, width = left.shape[-2:]
    grey, other = (box_mean(view.float().mean(1, keepdim=True), 3) for view in (left, right))
    around = pad(other, (0, 0, 1, 1), mode="replicate")
    other = torch.cat((other, (around[..., 2:, :] - around[..., :-2, :]) / 2), 1)
    every = max(1, height // _ROWS)
    grey, disparity = grey[..., ::every, :], disparity[..., ::every, :]
    behind, outside = hidden(disparity)
    seen = behind + outside == 0
    row = torch.arange(0, height, every, device=left.device)[:, None]
    match = torch.arange(width, device=left.device) - disparity[:, 0].float().nan_to_num()
    match = match.clamp(0, width - 1)
    terms = _terms(match, row, height)
    lift = terms.new_zeros(len(left), 3, 1)
    stiff = _STIFF * seen[0].numel() * torch.eye(3, device=left.device)
    with torch.autocast(left.device.type, enabled=False):
        for _ in range(3):
            place = row + (terms * lift[..., None]).sum(1)
            here, down = _sampled(other, match, place).split(1, 1)
            differing = grey - here
            weight = seen * (1 - 2 * differing.abs() / _ALIKE).clamp(min=0)
            # An edge that stands upright tells of an error of the disparity.
            weight = weight * (down.abs() > here.diff(dim=-1, append=here[..., -1:]).abs())
            slopes = (terms * down).flatten(2)
            weighed = slopes * weight.flatten(2)
            known = weighed @ slopes.mT
            wanted = known @ lift + weighed @ differing.flatten(2).mT
            lift = torch.linalg.solve(known + stiff, wanted)
    lift = lift.div(_STEP).round() * _STEP
    moves = lift[:, :1].abs() + lift[:, 1:].abs().sum(1, keepdim=True) / 2 >= _LEVEL
    if not moves.any():
        return right
    row = torch.arange(height, device=left.device)[:, None]
    column = torch.arange(width, device=left.device).expand(len(left), height, width)
    place = row + (_terms(column, row, height) * lift[..., None]).sum(1)
    moved = _sampled(right.float(), column, place, "bicubic").clamp(0, 1)
    return torch.where(moves[..., None], moved.to(right), right)


def _terms(column: Tensor, row: Tensor, height: int) -> Tensor:
    """What a shift, a turn and a stretch by a pixel move places by, (B, 3, H, W)."""
    width = column.shape[-1]
    across, down = column / width - 0.5, (row / height - 0.5).expand_as(column)
    return torch.stack((torch.ones_like(across), across, down), 1)


def _sampled(view: Tensor, column: Tensor, row: Tensor, mode: str = "bilinear") -> Tensor:
    height, width = view.shape[-2:]
    grid = torch.stack(((2 * column + 1) / width - 1, (2 * row + 1) / height - 1), -1)
    return grid_sample(view, grid, mode, "border", align_corners=False)


def hidden(disparity: Tensor) -> tuple[Tensor, Tensor]:
    """By how much something nearer has each pixel's match, and the match lies outside the view.

    Args:
        disparity: (B, 1, H, W) of the left view, pixels.

    Returns:
        Both of its shape, 0 to 1: a quarter for each pixel. What matches outside is taken for a
        match at the border.
    """
    width = disparity.shape[-1]
    match = torch.arange(width, device=disparity.device) - disparity
    column = match.nan_to_num().round().long().clamp(0, width - 1)
    nearest = torch.full_like(disparity, -torch.inf).scatter_reduce_(-1, column, disparity, "amax")
    # Neighbours on a slope share a match and differ by less than a pixel.
    behind = nearest.gather(-1, column) - disparity - 1
    return (behind / 4).clamp(0, 1), (-match / 4).clamp(0, 1)


def _range(disparity: Tensor) -> int:
    """Candidates that reach a little beyond a disparity; a multiple of 16."""
    values = disparity.detach().flatten()
    place = max(1, round(_NEARLY_ALL * len(values)))
    largest = float(values.kthvalue(place).values.nan_to_num(0.0).clamp(0, _MOST))
    return -(-min(int(_RESERVE * largest) + _MARGIN, _MOST) // 16) * 16
