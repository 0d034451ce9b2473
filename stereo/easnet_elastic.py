"""EASNet for ordinary processors, and from small to large: elastic networks that run fast on a CPU.

`easnet_light` keeps EASNet's elastic features and its aggregation across levels (Wang et al.,
"EASNet: Searching Elastic and Accurate Network Architecture for Stereo Matching", ECCV 2022, arXiv
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

`easnet_elastic` is that with what small networks save most by and large ones gain most by made
elastic too, so that its subnets differ many times in latency:

- matching ends at 1/12, 1/6 or 1/3 of the image's size: levels are ordered from coarse to fine,
  and a subnet has the first ones;
- a plain convolution brings the image to 1/3, so that nothing wide runs at full size, and features,
  aggregation, upsampling and refinement have widths to choose from;
- up to six blocks of EASNet's refinement at 1/2 (Chabra et al., "StereoDRNet", CVPR 2019) correct
  the result, or none.

The finest scores' highest peak becomes a full-size disparity by convex combinations in every
subnet; the refinement starts from it and ends in the same way.
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
    WIDTHS,
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
from ._weights import EASNET_LIGHT
from .easnet import Refinement

__all__ = ["EASNetElastic", "EASNetLight", "easnet_elastic", "easnet_light"]

_LIGHT_LEVELS = 3
_LIGHT_CHANNELS = (32, 48, 64)
_LIGHT_DILATIONS = (1, 1, 1, 2, 2, 2)
_LIGHT_UPSAMPLING_CHANNELS = 48

_STEPS = (24, 12, 6, 3)
"""Image pixels per pixel of a level and between its candidates, coarse to fine."""

_MATCHING = {"twelfth": 2, "sixth": 3, "third": 4}
"""Where matching ends, and how many levels that is."""

_FEATURES = ((16, 24), (24, 32), (32, 48), (32, 48))
_CHANNELS = {24: (16, 32), 12: (16, 32, 48), 6: (16, 32), 3: (16, 32)}
"""Multiples of 16: on CPUs PyTorch 2.15 gives wrong gradients of a dilated convolution's weights,
without a word, where it reads another number of channels in bfloat16."""
_UPSAMPLING_CHANNELS = (16, 32, 48)
_DILATIONS = (1, 2) * 3  # every other module sees far, so that short aggregations do, too
_BLOCKS = (0, 1, 2, 4, 6)
_HALF_WIDTHS = (8, 16)


def _matching_parts(
    candidates: Sequence[int],
    features: Sequence[Number],
    widths: Sequence[Number],
    dilations: Sequence[int],
    levels: Number,
    *,
    finest_first: bool = True,
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The stems, the aggregation and the heads that `_match` runs.

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


def _match(net: Any, features: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
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


class EASNetLight(MatchingNetwork):
    """EASNet light of all depths and kernels; elastic where `nas` layers stand.

    Args:
        max_disparity: in pixels, a multiple of 12.

    Raises:
        ValueError: `max_disparity` is no positive multiple of 12.
    """

    def __init__(self, *, max_disparity: int = 96) -> None:
        super().__init__()
        check_max_disparity(max_disparity, 12)
        scale = Choice("scale", tuple(range(2, _LIGHT_LEVELS + 1)))
        self.candidates = tuple(max_disparity // FINEST >> level for level in range(_LIGHT_LEVELS))
        self.features = FeaturePyramid(
            scale, depths=[(1, 2)] * _LIGHT_LEVELS, kernels=(3, 5), ratios=(2, 4)
        )
        self.stems, self.aggregation, self.heads = _matching_parts(
            self.candidates, WIDTHS[:_LIGHT_LEVELS], _LIGHT_CHANNELS, _LIGHT_DILATIONS, scale
        )
        self.upsampling = nn.Sequential(
            LeakyConvolution(_LIGHT_CHANNELS[0] + WIDTHS[0], _LIGHT_UPSAMPLING_CHANNELS),
            nn.Conv2d(_LIGHT_UPSAMPLING_CHANNELS, 9 * FINEST**2, 1),
        )
        self.apply(initialize)
        # Starts near the mean of neighbours.
        nn.init.normal_(cast(Tensor, self.upsampling[-1].weight), 0, 0.01)

    def _predict(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], Volumes]:
        """Full size, and at 1/3."""
        height, width = left.shape[-2:]
        lefts, costs, scores = _match(self, self.features(torch.cat(normalize_pair(left, right))))
        disparity, _ = peak_argmin(scores[0].float(), step=FINEST)
        full = convex_upsample(disparity, self.upsampling(torch.cat((costs[0], lefts[0]), 1)))
        steps = (FINEST << level for level in range(len(scores)))
        return [full[..., :height, :width], disparity], tuple(zip(scores, steps, strict=True))


class EASNetElastic(MatchingNetwork):
    """EASNet from small to large, of all sizes; elastic where `nas` layers stand.

    Args:
        max_disparity: in pixels, a multiple of 24.

    Raises:
        ValueError: `max_disparity` is no positive multiple of 24.
    """

    def __init__(self, *, max_disparity: int = 192) -> None:
        super().__init__()
        check_max_disparity(max_disparity, 24)
        matching = Choice("matching", tuple(_MATCHING))
        levels = matching.map(_MATCHING.__getitem__)
        self.candidates = tuple(max_disparity // step for step in _STEPS)
        features = [Choice(f"stages.{i}.width", widths) for i, widths in enumerate(_FEATURES)]
        self.features = FeaturePyramid(
            len(_STEPS),
            depths=[(1, 2)] * len(_STEPS),
            kernels=(3, 5),
            ratios=(2, 4),
            widths=features,
            stem=(3, 5),
        )
        features.reverse()  # coarse to fine from here on
        widths = [Choice(f"aggregation.width.{step}", _CHANNELS[step]) for step in _STEPS]
        self.stems, self.aggregation, self.heads = _matching_parts(
            self.candidates, features, widths, _DILATIONS, levels, finest_first=False
        )
        middle = Choice("upsampling.width", _UPSAMPLING_CHANNELS)
        self.upsampling = elastic.Operation(
            {
                name: nn.Sequential(
                    LeakyConvolution(concat(widths[count - 1], features[count - 1]), middle),
                    elastic.Conv2d(middle, 9 * step**2, 1),
                )
                for (name, count), step in zip(_MATCHING.items(), _STEPS[1:], strict=True)
            },
            matching,
        )
        blocks = Choice("refinement.blocks", _BLOCKS)
        half = Choice("refinement.half_width", _HALF_WIDTHS)
        refinement = Refinement(blocks, published_warp=False, certainty=True, half_width=half)
        enlargement = elastic.Conv2d(concat(half, half), 9 * 2**2, 3, 1, 1)
        self.refinement = elastic.ModuleList(
            [refinement, enlargement], length=blocks.map(lambda count: 2 if count else 0)
        )
        self.apply(initialize)
        # Corrections of many pixels would leave the refinement's last ReLU without a gradient;
        # upsampling starts near the mean of neighbours, or the pixel itself.
        ends = [cast(nn.Sequential, candidate)[-1] for candidate in self.upsampling.children()]
        for last in (*ends, refinement.final_conv, enlargement):
            nn.init.normal_(cast(Tensor, last.weight), 0, 0.01)
        with torch.no_grad():
            cast(Tensor, enlargement.bias)[16:20] = 3

    def _predict(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], Volumes]:
        """Full size, where it is refined full size before that, and the finest level's."""
        size = left.shape[-2:]
        views = torch.cat(normalize_pair(left, right))
        # 1/3 and 1/2 shall be whole pixels.
        bottom, right_edge = ((length + 5) // 6 * 6 - length for length in size)
        views = F.pad(views, (0, right_edge, 0, bottom), mode="replicate")
        lefts, costs, scores = _match(self, reversed(self.features(views)))
        steps = _STEPS[: len(scores)]
        disparity, share = peak_argmin(scores[-1].float(), step=steps[-1])
        reading = torch.cat((costs[-1], lefts[len(costs) - 1]), 1)
        whole = convex_upsample(disparity, self.upsampling(reading))
        whole = whole[..., : views.shape[-2], : views.shape[-1]]
        disparities = [whole[..., : size[0], : size[1]], disparity]
        if len(self.refinement):
            refine, enlarge = self.refinement
            half, features = refine(whole, *F.avg_pool2d(views, 2).chunk(2), share)
            whole = convex_upsample(2 * half, enlarge(features))
            disparities.insert(0, whole[..., : size[0], : size[1]])
        return disparities, tuple(zip(reversed(scores), reversed(steps), strict=True))


@register_model(task="stereo", weights=EASNET_LIGHT)
def easnet_light(
    *, max_disparity: int = 96, subnet: Mapping[str, Any] | None = None
) -> EASNetLight:
    """EASNet for ordinary processors: the supernet, or one of its subnets."""
    return subnet_of(EASNetLight(max_disparity=max_disparity), subnet)


@register_model(task="stereo")
def easnet_elastic(
    *, max_disparity: int = 192, subnet: Mapping[str, Any] | None = None
) -> EASNetElastic:
    """EASNet from small to large: the supernet, or one of its subnets."""
    return subnet_of(EASNetElastic(max_disparity=max_disparity), subnet)
