"""Fusion of two disparities, a network's and that of semi-global matching, into a better one.

A network knows what rooms and streets look like; semi-global matching (Hirschmüller, "Stereo
Processing by Semiglobal Matching and Mutual Information", PAMI 2008) places textures to a fraction
of a pixel, at the image's own size. Where they differ, how well the images agree under each, the
holes of the second and the image's edges tell which is right; that is learned (after Poggi and
Mattoccia, "Deep Stereo Fusion: Combining Multiple Disparity Hypotheses with Deep-Learning", 3DV
2016). Every pixel is a convex combination of what is claimed for it, and then of itself and its
eight neighbours. The same layers tell how likely it is to be right.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.arguments import checked
from ..vision.hub.registry import register_model
from ..vision.inference import convert
from ..vision.layers import check_pair, compressed, convex_upsample
from ..vision.ops import warp_by_disparity
from ._easnet_layers import DilatedBlock, initialize
from ._weights import DISPARITY_FUSION

__all__ = ["DisparityFusion", "disparity_fusion"]

_CLAIMS = 3  # the network's, the matching's, and the matching's with filled holes
_HINTS = 6
_DILATIONS = 1, 2, 4, 8
_CELL = 8  # pixels; a disparity is seen against its means over such squares
_GREY, _CONTRAST, _DIFFERENCE = 0.45, 0.25, 0.1  # about what images and their differences span


class DisparityFusion(nn.Module):
    """Looks around at a quarter of the image's size, weighs at half of it, combines at its own.

    Args:
        channels: of the layers at half the size.
        width: of those at a quarter.
    """

    output_names = ("fused",)

    @checked(channels=1, width=1)
    def __init__(self, channels: int = 24, width: int = 32) -> None:
        super().__init__()
        seen = 3 + _CLAIMS + (_CLAIMS - 1) + _CLAIMS + _HINTS
        self.stem = nn.Conv2d(seen, channels, 4, 2, 1)
        self.down = nn.Conv2d(channels, width, 3, 2, 1)
        self.blocks = nn.Sequential(*(DilatedBlock(width, d) for d in _DILATIONS))
        self.up = nn.Conv2d(width, 4 * channels, 1)
        self.claims = nn.Conv2d(channels, 4 * _CLAIMS, 3, 1, 1)
        self.neighbours = nn.Conv2d(channels, 4 * 9, 3, 1, 1)
        self.odds = nn.Sequential(
            nn.Conv2d(channels, channels, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(channels, 4, 3, 1, 1),
        )
        self.apply(initialize)
        for layer, first, logit in ((self.claims, 0, 2), (self.neighbours, 4, 3)):
            nn.init.normal_(layer.weight, 0, 0.01)
            with torch.no_grad():  # starts near the network's disparity, and the pixel itself
                cast(Tensor, layer.bias)[4 * first : 4 * first + 4] = logit

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`; disparities stay float32."""
        return convert(copy.deepcopy(self).eval(), dtype)

    def forward(self, left: Tensor, right: Tensor, claims: Tensor, hints: Tensor) -> Tensor:
        """Disparity (B, 1, H, W), see `forward_scored`."""
        return self._fuse(left, right, claims, hints)[0]

    def predict(
        self, left: Tensor, right: Tensor, claims: Tensor, hints: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Disparity, and the chance that it is within a pixel of the truth, both (B, 1, H, W)."""
        disparity, odds = self.forward_scored(left, right, claims, hints)
        return disparity, odds.sigmoid()

    def forward_scored(
        self, left: Tensor, right: Tensor, claims: Tensor, hints: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Disparity of the left view, pixels, and the logarithm of the odds that it is right.

        Right is within a pixel of the truth. Both are (B, 1, H, W).

        Args:
            left: (B, 3, H, W), RGB in [0, 1].
            right: the same shape, rectified to the left one.
            claims: (B, 3, H, W), disparities, pixels: a network's, or what was fused at half of the
                size; that of semi-global matching, the first where it found none; and its own with
                holes filled.
            hints: (B, 6, H, W), 0 to 1: the share of all chances in the network's peak, 0 where
                nothing says; where the matching has holes; and of the first and the filled
                disparity where they are `hidden` and where they are outside.

        Raises:
            ValueError: the views differ in shape or are not RGB in [0, 1].
        """
        disparity, x = self._fuse(left, right, claims, hints)
        odds = self.odds(x.detach())  # what they learn changes no disparity
        return disparity, _enlarged(odds, left.shape[-2:])

    def _fuse(
        self, left: Tensor, right: Tensor, claims: Tensor, hints: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Disparity, and the features at half of the size that it comes of."""
        check_pair(left, right)
        left, right = left - _GREY, right - _GREY
        own, filled = (
            (warp_by_disparity(right, claims[:, i : i + 1]) - left).abs().mean(1, keepdim=True)
            for i in (0, 2)
        )
        matched = torch.where(hints[:, 1:2] > 0, own, filled)  # it is one or the other
        seen = [left / _CONTRAST]
        seen += [difference / _DIFFERENCE for difference in (own, matched, filled)]
        seen += [compressed(claims[:, 1:] - claims[:, :1]), compressed(claims - _smooth(claims))]
        seen.append(hints)
        x = _whole(torch.cat([part.to(self.stem.weight.dtype) for part in seen], 1), 4)
        x = F.leaky_relu(self.stem(x), 0.2)
        around = self.blocks(F.leaky_relu(self.down(x), 0.2))
        x = F.leaky_relu(x + F.pixel_shuffle(self.up(around), 2), 0.2)
        shares, neighbours = (
            _enlarged(layer(x), left.shape[-2:]) for layer in (self.claims, self.neighbours)
        )
        fused = (shares.softmax(1) * claims).sum(1, keepdim=True)
        return convex_upsample(fused, neighbours, "replicate"), x

    def example_inputs(
        self,
        height: int,
        width: int,
        *,
        batch: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, ...]:
        """Random views and maps; see `vision.inputs`."""
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        views = torch.rand(2, batch, 3, height, width, **like).unbind()
        claims = 8 * torch.rand(batch, _CLAIMS, height, width, **like)
        return *views, claims, torch.rand(batch, _HINTS, height, width, **like)


def _whole(x: Tensor, multiple: int) -> Tensor:
    """Padded below and on the right to multiples of a number.

    Even padding by nothing copies, and exporters want one path.
    """
    bottom, right = (-size % multiple for size in x.shape[-2:])
    one_path = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return F.pad(x, (0, right, 0, bottom), mode="replicate") if one_path or bottom or right else x


def _enlarged(x: Tensor, size: Sequence[int]) -> Tensor:
    """Each four channels at half of the size made one at all of it, cut to `size`, float32."""
    return F.pixel_shuffle(x, 2)[..., : size[0], : size[1]].float()


def _smooth(disparity: Tensor) -> Tensor:
    height, width = disparity.shape[-2:]
    means = F.avg_pool2d(_whole(disparity, _CELL), _CELL)
    return F.interpolate(means, scale_factor=_CELL, mode="bilinear")[..., :height, :width]


@register_model(task="stereo-fusion", weights=DISPARITY_FUSION)
def disparity_fusion(*, channels: int = 24, width: int = 32) -> DisparityFusion:
    """Fusion of a network's disparity and that of semi-global matching."""
    return DisparityFusion(channels, width)
