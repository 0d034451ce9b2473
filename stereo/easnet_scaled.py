"""EASNet at several sizes of the image: a stereo supernet whose small subnets see a small copy.

A quarter of the pixels take a quarter of the time, and cost less accuracy than as much narrower
layers do. The network is `easnet_small` (Wang et al., "EASNet: Searching Elastic and Accurate
Network Architecture for Stereo Matching", ECCV 2022, arXiv 2207.09796) with these choices:

- the size at which a pair is matched: that of the image, 2/3, 1/2, 1/3 or 1/4 of it (Cai et al.,
  "Once-for-All", ICLR 2020, make the resolution elastic for classifiers);
- the number of candidates at that size: disparities to the half of `max_disparity` or all of it, in
  pixels of the copy, so that small copies reach far;
- depths of features, aggregation and refinement.

Every subnet ends at the image's own size. From small copies each pixel reads the disparity at a
place that is learned from the image at its own size (Liu et al., "Learning to Upsample by Learning
to Sample", ICCV 2023), which keeps edges; at full size pixels are convex combinations of their
neighbours at 1/2 as in `easnet_small`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.elastic.base import ElasticModule
from ..nas.elastic.containers import ElasticNumber
from ..nas.space import Choice
from ..nas.supernet import subnet_of
from ..vision.hub.registry import register_model
from ..vision.layers import check_pair, convex_upsample, normalize_images
from ..vision.ops import correlation
from ._easnet_layers import (
    FINEST,
    AggregationModule,
    FeaturePyramid,
    MatchingNetwork,
    Volumes,
    check_max_disparity,
    convolution,
    initialize,
    peak_argmin,
)
from ._weights import EASNET_SCALED
from .easnet import Refinement

__all__ = ["EASNetScaled", "easnet_scaled"]

_LEVELS = 3
_DEPTHS = ((2,), (1, 2), (1, 2))  # of features; the finest lose too much by less
_MODULES = 3
_FACTORS = {"1/4": 8, "1/3": 6, "1/2": 4, "2/3": 3, "1": 2}
"""Size of the matched copy to the image's pixels per pixel of the copy's half."""
_FEATURES = 32  # channels of the refinement
_GUIDE = 32  # channels of what the enlargement sees of the image


class _Copy(nn.Module):
    """The image (B, 3, H, W) at the size at which it is matched, padded to whole cells.

    Args:
        factor: image pixels per pixel of the copy's half.
    """

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, image: Tensor) -> Tensor:
        # The copy's 1/3 and 1/2 shall be whole pixels.
        cell = FINEST * self.factor
        sizes = [(size + cell - 1) // cell * 2 * FINEST for size in image.shape[-2:]]
        if self.factor == 3:
            image = F.interpolate(image, scale_factor=2 / 3, mode="bilinear")
        elif self.factor > 2:
            image = F.avg_pool2d(image, self.factor // 2, ceil_mode=True, count_include_pad=False)
        bottom, right = (want - have for want, have in zip(sizes, image.shape[-2:], strict=True))
        return F.pad(image, (0, right, 0, bottom), mode="replicate")


class _Combinations(nn.Module):
    """To the image's size from its half: each pixel a convex combination of its neighbours.

    Teed and Deng, "RAFT: Recurrent All-Pairs Field Transforms for Optical Flow", ECCV 2020, section
    3.3.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Conv2d(_FEATURES, 9 * 2**2, 3, 1, 1)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.logits.weight, 0, 0.01)
        with torch.no_grad():
            cast(Tensor, self.logits.bias)[16:20] = 3  # starts near the middle of the nine

    def forward(self, disparity: Tensor, features: Tensor, image: Tensor) -> tuple[Tensor, int]:
        """As `_Samples`."""
        return convex_upsample(2 * disparity, self.logits(features), "replicate"), 2


class _Samples(nn.Module):
    """To the image's size: each pixel reads the map where it is told to; at first at its own place.

    Liu et al., "Learning to Upsample by Learning to Sample", ICCV 2023; here the image at its own
    size says where, too. Two numbers a pixel, where convex combinations take nine.

    Args:
        factor: image pixels per pixel of the map.
    """

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.image = nn.Conv2d(3, _GUIDE, factor, factor)
        self.mixed = nn.Conv2d(_FEATURES + _GUIDE, _GUIDE, 1)
        self.offsets = nn.Conv2d(_GUIDE, 2 * factor**2, 1)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.offsets.weight, 0, 0.01)

    def forward(self, disparity: Tensor, features: Tensor, image: Tensor) -> tuple[Tensor, int]:
        """Disparity (B, 1, f h, f w) in the image's pixels, and f.

        Args:
            disparity: (B, 1, h, w), in pixels of its own size.
            features: (B, C, h, w).
            image: (B, 3, H, W), the left one, at least (f, f) and not larger than what comes out.
        """
        sizes = disparity.shape[-2:]
        height, width = (self.factor * size for size in sizes)
        # Not the image is padded, which takes longer than all the rest.
        seen = F.leaky_relu(self.image(image.to(self.image.weight.dtype)), 0.2)
        bottom, right = (want - have for want, have in zip(sizes, seen.shape[-2:], strict=True))
        seen = F.pad(seen, (0, right, 0, bottom), mode="replicate")
        mixed = F.leaky_relu(self.mixed(torch.cat((features, seen), 1)), 0.2)
        offsets = F.pixel_shuffle(self.offsets(mixed), self.factor).float()
        rows, columns = (
            (torch.arange(length, device=offsets.device) + 0.5) * (2 / length) - 1
            for length in (height, width)
        )
        across, down = (offsets[:, axis] * (2 / size) for axis, size in enumerate(reversed(sizes)))
        places = torch.stack((columns + across, rows[:, None] + down), -1)
        # On the CPU, NaN places end the process in grid_sample's backward pass.
        grid = places.nan_to_num() if self.training else places
        enlarged = F.grid_sample(
            self.factor * disparity, grid, padding_mode="border", align_corners=False
        )
        if self.training:
            enlarged = enlarged.masked_fill(places.isnan().any(-1)[:, None], math.nan)
        return enlarged, self.factor


class EASNetScaled(MatchingNetwork):
    """The network of all sizes and depths; elastic where `nas` layers stand.

    Args:
        max_disparity: in pixels of the matched copy, a multiple of 24 (the property: the image's).

    Raises:
        ValueError: `max_disparity` is no positive multiple of 24.
    """

    def __init__(self, *, max_disparity: int = 192) -> None:
        super().__init__()
        check_max_disparity(max_disparity, 24)
        share = Choice("candidates", ("half", "all"))
        most = max_disparity // FINEST
        candidates = [
            share.map({"half": most >> 1 + level, "all": most >> level}.__getitem__)
            for level in range(_LEVELS)
        ]
        size = Choice("size", tuple(_FACTORS))
        self.features = FeaturePyramid(_LEVELS, depths=_DEPTHS, kernels=(5,), ratios=(4,))
        self.candidates = nn.ModuleList(map(ElasticNumber, candidates))
        self.aggregation = elastic.Sequential(
            *(
                AggregationModule([convolution(n, 1) for n in candidates], candidates, _LEVELS)
                for _ in range(_MODULES)
            ),
            length=Choice("aggregation.depth", (_MODULES - 1, _MODULES)),
        )
        self.heads = nn.ModuleList(elastic.Conv2d(n, n, 1) for n in candidates)
        blocks = Choice("refinement.blocks", (2, 4, 6))
        self.refinement = Refinement(blocks, published_warp=False, certainty=True)
        self.copy = elastic.Operation({name: _Copy(f) for name, f in _FACTORS.items()}, size)
        self.enlargement = elastic.Operation(
            {n: _Combinations() if f == 2 else _Samples(f) for n, f in _FACTORS.items()}, size
        )
        self.apply(initialize)
        # Corrections of many pixels would leave the refinement's last ReLU without a gradient.
        nn.init.normal_(self.refinement.final_conv.weight, 0, 0.01)
        for enlargement in self.enlargement.children():
            cast(Any, enlargement).reset_parameters()

    @property
    def max_disparity(self) -> float:
        """Pixels of the image; the active subnet is made for disparities below that."""
        copy, finest = cast(Any, self.copy), cast(Any, self.candidates[0])
        active: Any = copy._modules[copy.active] if isinstance(copy, ElasticModule) else copy
        return FINEST * active.factor / 2 * finest.value

    def _predict(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], Volumes]:
        """Full size, what it was enlarged from, and that before it is refined."""
        height, width = left.shape[-2:]
        check_pair(left, right)
        image, second = map(_whole_cell, (left, right))
        left, right = (normalize_images(self.copy(view)) for view in (image, second))
        levels: Any = zip(self.features(left), self.features(right), self.candidates, strict=True)
        costs = self.aggregation([correlation(a, b, count.value) for a, b, count in levels])
        scores = [head(cost) for head, cost in zip(self.heads, costs, strict=True)]
        matched, share = peak_argmin(scores[0].float())
        halves = (F.avg_pool2d(view, 2) for view in (left, right))
        refined, features = self.refinement(matched, *halves, share)
        whole, factor = self.enlargement(refined, features, image)
        step = FINEST * factor / 2  # image pixels between candidates, and per pixel of their scores
        disparities = [whole[..., :height, :width], refined * factor, matched * step]
        return disparities, tuple((level, step * 2**i) for i, level in enumerate(scores))


def _whole_cell(image: Tensor) -> Tensor:
    """An image of less than the largest factor's pixels, made larger."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return image  # exporters want one path, and their images are larger
    least = max(_FACTORS.values())
    bottom, right = (max(0, least - size) for size in image.shape[-2:])
    return F.pad(image, (0, right, 0, bottom), mode="replicate") if bottom or right else image


@register_model(task="stereo", weights=EASNET_SCALED)
def easnet_scaled(
    *, max_disparity: int = 192, subnet: Mapping[str, Any] | None = None
) -> EASNetScaled:
    """EASNet small at several sizes of the image: the supernet, or one of its subnets."""
    return subnet_of(EASNetScaled(max_disparity=max_disparity), subnet)
