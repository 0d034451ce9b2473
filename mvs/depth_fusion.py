"""Fusion of two depth maps, a plane sweep's and a network's, into a better one.

The sweep places what has texture, the network what has none. Where they differ, how alike the
views are at either depth, and how rough either map is, tell which is right; that is learned, as
`vizoo.stereo.disparity_fusion` does for two views. Every pixel is a convex combination of what is
claimed for it, and then of itself and its eight neighbours, in inverse depth. The same layers tell
how likely it is to be right.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.arguments import checked
from ..vision.hub.registry import register_model
from ..vision.inference import convert
from ..vision.layers import convex_upsample
from ._weights import DEPTH_FUSION

__all__ = ["DepthFusion", "depth_fusion"]

_CLAIMS = 2
_CLUES = _CLAIMS * 6 + 6
_DILATIONS = 1, 2, 4, 8, 1


class DepthFusion(nn.Module):
    """Looks around at half of the image's size, combines at its own.

    Args:
        channels: of the layers.
    """

    output_names = ("fused",)

    @checked(channels=1)
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(_CLUES, channels, 4, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, 1, dilation, dilation) for dilation in _DILATIONS
        )
        self.claims = nn.Conv2d(channels, 4 * _CLAIMS, 3, 1, 1)
        self.neighbours = nn.Conv2d(channels, 4 * 9, 3, 1, 1)
        self.odds = nn.Conv2d(channels, 4, 3, 1, 1)
        for head in (self.claims, self.neighbours, self.odds):
            nn.init.normal_(head.weight, 0, 0.01)
            nn.init.zeros_(cast(Tensor, head.bias))
        with torch.no_grad():  # starts near the pixel itself
            cast(Tensor, self.neighbours.bias)[4 * 4 : 4 * 5] = 3

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`; depths stay float32."""
        return convert(copy.deepcopy(self).eval(), dtype)

    def forward(self, claims: Tensor, clues: Tensor) -> Tensor:
        """Depth (B, 1, H, W), see `forward_scored`."""
        return self.forward_scored(claims, clues)[0]

    def predict(self, claims: Tensor, clues: Tensor) -> tuple[Tensor, Tensor]:
        """Depth, and the chance that it is within 5 % of the truth, both (B, 1, H, W)."""
        depth, odds = self.forward_scored(claims, clues)
        return depth, odds.sigmoid()

    def forward_scored(self, claims: Tensor, clues: Tensor) -> tuple[Tensor, Tensor]:
        """Depth, and the logarithm of the odds that it is within 5 % of the truth.

        Both are (B, 1, H, W).

        Args:
            claims: (B, 2, H, W), depths, more than 0.
            clues: (B, 18, H, W), see `vizoo.mvs.guided.clues`.
        """
        height, width = claims.shape[-2:]
        clues = clues.to(self.stem.weight.dtype)
        whole = F.pad(clues, (0, -width % 2, 0, -height % 2), mode="replicate")
        x = F.leaky_relu(self.stem(whole), 0.2)
        for block in self.blocks:
            x = F.leaky_relu(x + block(x), 0.2)
        shares, neighbours, odds = (
            F.pixel_shuffle(head(x), 2)[..., :height, :width].float()
            for head in (self.claims, self.neighbours, self.odds)
        )
        inverse = (shares.softmax(1) / claims).sum(1, keepdim=True)
        return 1 / convex_upsample(inverse, neighbours, "replicate"), odds

    def example_inputs(
        self, height: int, width: int, *, batch: int = 1, **like: Any
    ) -> tuple[Tensor, ...]:
        """Random maps; see `vision.inputs`."""
        claims = 1 + torch.rand(batch, _CLAIMS, height, width, **like)
        return claims, torch.rand(batch, _CLUES, height, width, **like)


@register_model(task="mvs-fusion", weights=DEPTH_FUSION)
def depth_fusion(*, channels: int = 32) -> DepthFusion:
    """Fusion of a network's depth and that of a plane sweep."""
    return DepthFusion(channels)
