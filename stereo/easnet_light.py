"""EASNet for ordinary processors: an elastic stereo network that learns and runs fast on a CPU.

It keeps EASNet's elastic features and its aggregation across levels (Wang et al., "EASNet:
Searching Elastic and Accurate Network Architecture for Stereo Matching", ECCV 2022, arXiv
2207.09796) and replaces what takes most of the time or learns slowly:

- costs are cosines between features, so that contrast does not change them, and the left features
  stand beside them in the aggregation, which thereby sees the image's edges;
- the aggregation has widths of its own instead of one channel a disparity, so that coarse levels
  can reason about what is hidden;
- the finest disparity is that of the scores' highest peak, which keeps edges sharp;
- instead of refinements at 1/2 and full size, full-size disparities are convex combinations of
  their neighbours at 1/3 (Teed and Deng, "RAFT: Recurrent All-Pairs Field Transforms for Optical
  Flow", ECCV 2020, section 3.3).

Elastic are the features' kernels, expansions and depths, the number of levels, and the number of
aggregation modules.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.space import Architecture, Choice
from ..nas.supernet import extract
from ..vision.hub.registry import register_model
from ..vision.inference import convert
from ..vision.layers import convex_upsample, normalize_pair
from ..vision.ops import correlation, soft_argmin
from ._easnet_layers import (
    FINEST,
    AggregationModule,
    FeaturePyramid,
    LeakyConvolution,
    dilated_convolution,
    initialize,
    peak_argmin,
)
from ._easnet_published import WIDTHS
from ._weights import EASNET_LIGHT

__all__ = ["EASNetLight", "easnet_light"]

_LEVELS = 3
_CHANNELS = (32, 48, 64)
_MODULES = 6
_DILATED_FROM = 3
_UPSAMPLING_CHANNELS = 48


class EASNetLight(nn.Module):
    """The network of all widths, depths and kernels; elastic where `nas` layers stand.

    Args:
        max_disparity: in pixels, a multiple of 12.

    Raises:
        ValueError: `max_disparity` is no positive multiple of 12.
    """

    output_names = ("disparity",)

    def __init__(self, *, max_disparity: int = 96) -> None:
        super().__init__()
        if max_disparity < 12 or max_disparity % 12:
            raise ValueError(f"max_disparity must be a multiple of 12, not {max_disparity}")
        scale = Choice("scale", tuple(range(2, _LEVELS + 1)))
        self.candidates = tuple(max_disparity // FINEST >> level for level in range(_LEVELS))
        self.features = FeaturePyramid(scale, depths=(1, 2), kernels=(3, 5), ratios=(2, 4))
        self.stems = elastic.ModuleList(
            [
                LeakyConvolution(candidates + features, channels)
                for candidates, features, channels in zip(
                    self.candidates, WIDTHS, _CHANNELS, strict=False
                )
            ],
            length=scale,
        )
        self.aggregation = elastic.Sequential(
            *(
                AggregationModule(
                    [_second_convolution(index, width) for width in _CHANNELS], _CHANNELS, scale
                )
                for index in range(_MODULES)
            ),
            length=Choice("aggregation.depth", tuple(range(1, _MODULES + 1))),
        )
        self.heads = elastic.ModuleList(
            [
                nn.Conv2d(channels, candidates, 1)
                for channels, candidates in zip(_CHANNELS, self.candidates, strict=True)
            ],
            length=scale,
        )
        self.upsampling = nn.Sequential(
            LeakyConvolution(_CHANNELS[0] + WIDTHS[0], _UPSAMPLING_CHANNELS),
            nn.Conv2d(_UPSAMPLING_CHANNELS, 9 * FINEST**2, 1),
        )
        self.apply(initialize)
        # Starts near the mean of neighbours.
        nn.init.normal_(cast(Tensor, self.upsampling[-1].weight), 0, 0.01)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Disparity of the left view.

        Args:
            left: (B, 3, H, W), RGB in [0, 1], any size.
            right: the same shape, rectified to `left`.

        Returns:
            (B, 1, H, W), non-negative, in pixels.

        Raises:
            ValueError: the views differ in shape or are not RGB.
        """
        features, scores = self._match(left, right)
        return self._full_size(features, scores[0], left.shape[-2:])[0]

    def forward_stages(self, left: Tensor, right: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        """All predictions, for training: one stage, finest first.

        Args:
            left: (B, 3, H, W), RGB in [0, 1].
            right: the same shape, rectified to `left`.

        Returns:
            One tuple of disparities (B, 1, h, w), in full-resolution pixels: full size, 1/3, and
            a half of the one before for each further level.
        """
        return self.forward_volumes(left, right)[0]

    def forward_volumes(
        self, left: Tensor, right: Tensor
    ) -> tuple[tuple[tuple[Tensor, ...], ...], tuple[tuple[Tensor, int], ...]]:
        """Predictions as `forward_stages`, and what they come from, for `matching_loss`.

        Returns:
            The stages; and for each level, finest first, the scores (B, D, h, w), high where the
            match is good, with the pixels of full resolution between two candidates.
        """
        features, scores = self._match(left, right)
        full, finest = self._full_size(features, scores[0], left.shape[-2:])
        steps = [FINEST << level for level in range(len(scores))]
        coarser = [
            soft_argmin(-level.float(), step=step)
            for level, step in zip(scores[1:], steps[1:], strict=True)
        ]
        return ((full, finest, *coarser),), tuple(zip(scores, steps, strict=True))

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        return convert(copy.deepcopy(self).eval(), dtype)

    def _match(self, left: Tensor, right: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What the upsampling reads, (B, C, h, w), and each level's scores, finest first."""
        both = torch.cat(normalize_pair(left, right))
        views = [level.chunk(2) for level in self.features(both)]
        volumes = [
            stem(torch.cat((cosines(view[0], view[1], candidates), view[0]), 1))
            for stem, view, candidates in zip(self.stems, views, self.candidates, strict=False)
        ]
        volumes = self.aggregation(volumes)
        scores = [head(volume) for head, volume in zip(self.heads, volumes, strict=True)]
        return torch.cat((volumes[0], views[0][0]), 1), scores

    def _full_size(
        self, features: Tensor, scores: Tensor, size: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Disparity of full size and at 1/3, both in full-resolution pixels."""
        disparity, _ = peak_argmin(scores.float(), step=FINEST)
        full = convex_upsample(disparity, self.upsampling(features))
        return full[..., : size[0], : size[1]], disparity


def cosines(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """Cosine of the angle between left features at x and right ones at x - d, (B, D, h, w)."""
    left, right = (F.normalize(view.float(), dim=1).to(view.dtype) for view in (left, right))
    return correlation(left, right, displacements) * left.shape[1]


def _second_convolution(index: int, channels: int) -> nn.Module:
    if index < _DILATED_FROM:
        return nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
    return dilated_convolution(channels)


@register_model(task="stereo", weights=EASNET_LIGHT)
def easnet_light(
    *, max_disparity: int = 96, subnet: Mapping[str, Any] | None = None
) -> EASNetLight:
    """EASNet for ordinary processors: the supernet, or one of its subnets."""
    net = EASNetLight(max_disparity=max_disparity)
    return net if subnet is None else extract(net, Architecture.from_json(subnet))
