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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.space import Choice
from ..nas.supernet import subnet_of
from ..nas.values import concat
from ..vision.hub.registry import register_model
from ..vision.layers import convex_upsample, normalize_pair
from ..vision.ops import correlation
from ._easnet_layers import (
    FINEST,
    AggregationModule,
    FeaturePyramid,
    LeakyConvolution,
    MatchingNetwork,
    Number,
    Volumes,
    check_max_disparity,
    convolution,
    initialize,
    peak_argmin,
)
from ._easnet_published import WIDTHS
from ._weights import EASNET_LIGHT

__all__ = ["EASNetLight", "easnet_light"]

_LEVELS = 3
_CHANNELS = (32, 48, 64)
_DILATIONS = (1, 1, 1, 2, 2, 2)
_UPSAMPLING_CHANNELS = 48


class EASNetLight(MatchingNetwork):
    """The network of all widths, depths and kernels; elastic where `nas` layers stand.

    Args:
        max_disparity: in pixels, a multiple of 12.

    Raises:
        ValueError: `max_disparity` is no positive multiple of 12.
    """

    def __init__(self, *, max_disparity: int = 96) -> None:
        super().__init__()
        check_max_disparity(max_disparity, 12)
        scale = Choice("scale", tuple(range(2, _LEVELS + 1)))
        self.candidates = tuple(max_disparity // FINEST >> level for level in range(_LEVELS))
        self.features = FeaturePyramid(
            scale, depths=[(1, 2)] * _LEVELS, kernels=(3, 5), ratios=(2, 4)
        )
        self.stems, self.aggregation, self.heads = matching_parts(
            self.candidates, WIDTHS[:_LEVELS], _CHANNELS, _DILATIONS, scale
        )
        self.upsampling = nn.Sequential(
            LeakyConvolution(_CHANNELS[0] + WIDTHS[0], _UPSAMPLING_CHANNELS),
            nn.Conv2d(_UPSAMPLING_CHANNELS, 9 * FINEST**2, 1),
        )
        self.apply(initialize)
        # Starts near the mean of neighbours.
        nn.init.normal_(cast(Tensor, self.upsampling[-1].weight), 0, 0.01)

    def _predict(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], Volumes]:
        """Full size, and at 1/3."""
        height, width = left.shape[-2:]
        lefts, costs, scores = match(self, self.features(torch.cat(normalize_pair(left, right))))
        disparity, _ = peak_argmin(scores[0].float(), step=FINEST)
        full = convex_upsample(disparity, self.upsampling(torch.cat((costs[0], lefts[0]), 1)))
        steps = (FINEST << level for level in range(len(scores)))
        return [full[..., :height, :width], disparity], tuple(zip(scores, steps, strict=True))


def matching_parts(
    candidates: Sequence[int],
    features: Sequence[Number],
    widths: Sequence[Number],
    dilations: Sequence[int],
    levels: Number,
    *,
    finest_first: bool = True,
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The stems, the aggregation and the heads that `match` runs.

    Args:
        candidates: displacements of each level.
        features: channels of each level's left features.
        widths: of each level's aggregation.
        dilations: of the aggregation modules, one each.
        levels: how many there are.
        finest_first: how they are ordered.
    """
    stems = [
        LeakyConvolution(concat(*read), width)
        for *read, width in zip(candidates, features, widths, strict=True)
    ]
    modules = [
        AggregationModule(
            [convolution(width, dilation) for width in widths], widths, levels, finest_first
        )
        for dilation in dilations
    ]
    heads = [elastic.Conv2d(width, n, 1) for width, n in zip(widths, candidates, strict=True)]
    return (
        elastic.ModuleList(stems, length=levels),
        elastic.Sequential(
            *modules, length=Choice("aggregation.depth", tuple(range(1, len(modules) + 1)))
        ),
        elastic.ModuleList(heads, length=levels),
    )


def match(net: Any, features: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Left features, aggregated costs and matching scores of the levels.

    Args:
        net: with `stems`, `candidates`, `aggregation` and `heads`.
        features: of the left and then the right views, (2 B, C, h, w), in the order of the stems.
    """
    pairs = [level.chunk(2) for level in features]
    count = len(net.stems)
    levels = zip(net.stems, pairs[:count], net.candidates[:count], strict=True)
    costs = [
        stem(torch.cat((cosines(left, right, candidates), left), 1))
        for stem, (left, right), candidates in levels
    ]
    costs = net.aggregation(costs)
    scores = [head(cost) for head, cost in zip(net.heads, costs, strict=True)]
    return [left for left, _ in pairs], costs, scores


def cosines(left: Tensor, right: Tensor, displacements: int) -> Tensor:
    """Cosine of the angle between left features at x and right ones at x - d, (B, D, h, w)."""
    left, right = (F.normalize(view.float(), dim=1).to(view.dtype) for view in (left, right))
    return correlation(left, right, displacements) * left.shape[1]


@register_model(task="stereo", weights=EASNET_LIGHT)
def easnet_light(
    *, max_disparity: int = 96, subnet: Mapping[str, Any] | None = None
) -> EASNetLight:
    """EASNet for ordinary processors: the supernet, or one of its subnets."""
    return subnet_of(EASNetLight(max_disparity=max_disparity), subnet)
