"""EASNet: stereo disparity by an elastic network, from which smaller ones are cut untrained.

Paper: Wang et al., "EASNet: Searching Elastic and Accurate Network Architecture for Stereo
Matching", ECCV 2022, arXiv 2207.09796. Its aggregation is that of Xu and Zhang, "AANet", CVPR
2020; its refinement that of Chabra et al., "StereoDRNet", CVPR 2019.

Features at 1/3, 1/6, 1/12 and 1/24 are correlated, each level's costs pass bottlenecks that
exchange what they know across levels, and two dilated refinements follow at 1/2 and full size.
In `easnet` the features are elastic (kernels, expansion, depth) and so is the number of levels.
In `easnet_extended`, which was not published, also the number and kind of the aggregation modules
and the refinements, since those take most of the time.

What differs from the published program: images enter in [0, 1] and are normalised inside;
predictions are in full-resolution pixels; the warp reads where its formula says
(`published_warp` reads up to half a pixel beside it, as published weights need); offsets of
deformable convolutions start at zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.space import Architecture, Choice
from ..nas.supernet import extract, search_space, subnet_of
from ..nas.values import concat
from ..vision.hub.registry import register_model
from ..vision.layers import DeformableConv2d, convex_upsample, normalize_pair
from ..vision.ops import correlation, soft_argmin, warp_by_disparity
from ._easnet_layers import (
    BLOCKS,
    FINEST,
    WIDTHS,
    AggregationModule,
    DilatedBlock,
    FeaturePyramid,
    LeakyConvolution,
    MatchingNetwork,
    Number,
    Volumes,
    check_max_disparity,
    convolution,
    expanded,
    initialize,
    peak_argmin,
    resize,
)
from ._weights import EASNET_SMALL

__all__ = [
    "EASNet",
    "convert_published",
    "easnet",
    "easnet_extended",
    "easnet_small",
    "published_architecture",
]

_MODULES = 6
_DEFORMABLE_FROM = 3
_DILATIONS = (1, 2, 4, 8, 1, 1)


def _deformable_convolution(channels: int) -> nn.Module:
    return DeformableConv2d(channels, channels, 3, dilation=2, offset_groups=2)


class Refinement(nn.Module):
    """Corrects a disparity by the error of the warped right image, at the size of the images.

    Args:
        blocks: how many of the six dilated blocks run.
        published_warp: read the right image beside the grid, as published.
        certainty: be told how certain the disparity is, too.
        half_width: channels of what it makes of the views, and as many of the disparity.
    """

    def __init__(
        self, blocks: Number, published_warp: bool, certainty: bool = False, half_width: Number = 16
    ) -> None:
        super().__init__()
        self.published_warp = published_warp
        channels = concat(half_width, half_width)
        self.conv1 = LeakyConvolution(6, half_width)
        self.conv2 = LeakyConvolution(1 + certainty, half_width)
        self.dilated_blocks = elastic.Sequential(
            *(DilatedBlock(channels, dilation) for dilation in _DILATIONS), length=blocks
        )
        self.final_conv = elastic.Conv2d(channels, 1, 3, 1, 1)

    def forward(
        self, disparity: Tensor, left: Tensor, right: Tensor, certainty: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Disparity in pixels of the images' size, (B, 1, H, W), and its features, (B, C, H, W).

        Args:
            disparity: (B, 1, h, w), in pixels of its own size.
            left: (B, 3, H, W), standardised.
            right: the same shape.
            certainty: (B, 1, h, w), 0 to 1.
        """
        ratio = left.shape[-1] / disparity.shape[-1]
        disparity = resize(disparity, left.shape[-2:]) * ratio
        warped = warp_by_disparity(right, disparity, align_corners=not self.published_warp)
        views = self.conv1(torch.cat((warped - left, left), 1))
        known = [disparity]
        if certainty is not None:
            known.append(resize(certainty, left.shape[-2:]))
        x = torch.cat((views, self.conv2(torch.cat(known, 1).to(views.dtype))), 1)
        x = self.dilated_blocks(x)
        return F.relu(disparity + self.final_conv(x).to(disparity.dtype)), x


class EASNet(MatchingNetwork):
    """The network of all widths, depths and kernels; elastic where `nas` layers stand.

    Args:
        max_disparity: in pixels, a multiple of 24.
        levels: how many levels of features there are at most, 2 to 4.
        extended: make aggregation and refinement elastic too.
        published_warp: read the right image beside the grid, as published weights need.
        sharp: keep edges sharp: the finest disparity is that of its scores' highest peak (see
            `peak_argmin`), the first refinement is told how certain that is, and its result is
            enlarged by learned convex combinations (Teed and Deng, "RAFT", ECCV 2020, section
            3.3) where no refinement at full size follows.

    Raises:
        ValueError: `max_disparity` is no positive multiple of 24, or `levels` out of range.
    """

    def __init__(
        self,
        *,
        max_disparity: int = 192,
        levels: int = len(WIDTHS),
        extended: bool = False,
        published_warp: bool = False,
        sharp: bool = False,
    ) -> None:
        super().__init__()
        self.sharp = sharp
        if not 2 <= levels <= len(WIDTHS):
            raise ValueError(f"levels must be 2 to {len(WIDTHS)}, not {levels}")
        check_max_disparity(max_disparity, 24)
        scale = Choice("scale", tuple(range(2, levels + 1)))
        self.candidates = tuple(max_disparity // 3 >> level for level in range(levels))
        self.features = FeaturePyramid(scale)
        modules = []
        for index in range(_MODULES):
            kind = Choice(f"aggregation.{index}.convolution", ("ordinary", "deformable"))
            convolutions = [_second_convolution(index, kind, extended, d) for d in self.candidates]
            modules.append(AggregationModule(convolutions, self.candidates, scale))
        self.aggregation = elastic.Sequential(
            *modules,
            length=Choice("aggregation.depth", (1, 2, 3, 4, 5, 6)) if extended else _MODULES,
        )
        self.heads = elastic.ModuleList([nn.Conv2d(d, d, 1) for d in self.candidates], length=scale)
        blocks = [
            Choice(f"refinement.{level}.blocks", (1, 2, 4, 6)) if extended else len(_DILATIONS)
            for level in range(2)
        ]
        refinements = [
            Refinement(count, published_warp, certainty=sharp and level == 0)
            for level, count in enumerate(blocks)
        ]
        self.refinement = elastic.ModuleList(
            refinements, length=Choice("refinement.levels", (1, 2)) if extended else 2
        )
        self.apply(initialize)
        for refinement in refinements:
            # Corrections of many pixels would leave the last ReLU without a gradient.
            nn.init.normal_(refinement.final_conv.weight, 0, 0.01)
        if sharp:
            self.upsampling = nn.Conv2d(32, 9 * 2**2, 3, 1, 1)
            nn.init.normal_(self.upsampling.weight, 0, 0.01)
            with torch.no_grad():
                cast(Tensor, self.upsampling.bias)[16:20] = 3  # starts near the middle of the nine

    def forward_volumes(
        self, left: Tensor, right: Tensor
    ) -> tuple[tuple[tuple[Tensor, ...], ...], Volumes]:
        """As of `MatchingNetwork`: full size, 1/2, 1/3, and halves of that."""
        disparities, volumes = self._predict(left, right)
        return (tuple(disparities),), volumes

    def cost_volumes(self, left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        """Mean products of features, (B, D_i, h_i, w_i) for each level i, finest first."""
        levels = zip(left, right, self.candidates[: len(left)], strict=True)
        return [correlation(*level) for level in levels]

    def _predict(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], Volumes]:
        height, width = left.shape[-2:]
        left, right = normalize_pair(left, right)
        if self.sharp:  # 1/3 and 1/2 shall be whole pixels
            right_edge, bottom = ((size + 5) // 6 * 6 - size for size in (width, height))
            beyond = (0, right_edge, 0, bottom)
            left, right = (F.pad(view, beyond, mode="replicate") for view in (left, right))
        costs = self.aggregation(self.cost_volumes(self.features(left), self.features(right)))
        scores = [head(cost) for head, cost in zip(self.heads, costs, strict=True)]
        disparities = [soft_argmin(-level.float()) for level in reversed(scores)]
        share = None
        if self.sharp:
            disparities[-1], share = peak_argmin(scores[0].float())
        half = [_half(view) for view in (left, right)]
        sizes = (half, share), ((left, right), None)
        for refine, (images, certainty) in zip(
            self.refinement, sizes[: len(self.refinement)], strict=True
        ):
            disparity, features = refine(disparities[-1], *images, certainty)
            disparities.append(disparity)
        if len(self.refinement) == 1:
            ratio = left.shape[-1] / disparity.shape[-1]
            if self.sharp:
                disparity = convex_upsample(disparity, self.upsampling(features))
            disparities.append(resize(disparity, left.shape[-2:]) * ratio)
        steps = [FINEST << level for level in range(len(scores))]
        ratios: list[float] = [left.shape[-1] / d.shape[-1] for d in reversed(disparities)]
        if self.sharp:  # of images that the coarser cells do not divide
            ratios[-len(steps) :] = steps
        disparities = [d * r for d, r in zip(reversed(disparities), ratios, strict=True)]
        disparities[0] = disparities[0][..., :height, :width]
        return disparities, tuple(zip(scores, steps, strict=True))


def _second_convolution(index: int, kind: Choice, extended: bool, channels: int) -> nn.Module:
    if index < _DEFORMABLE_FROM:
        return convolution(channels, 1)
    if not extended:
        return _deformable_convolution(channels)
    candidates = {
        "ordinary": convolution(channels, 2),
        "deformable": _deformable_convolution(channels),
    }
    return elastic.Operation(candidates, kind)


def _half(image: Tensor) -> Tensor:
    if min(image.shape[-2:]) == 1:
        return F.interpolate(image, [max(1, size // 2) for size in image.shape[-2:]])
    return F.interpolate(image, scale_factor=0.5, mode="bilinear")


def published_architecture(setting: Mapping[str, Any]) -> Architecture:
    """The architecture of `easnet` that a published setting names.

    Args:
        setting: `ks` and `e`, 16 values each, `d`, 4 values, and `s`; one number stands for the
            same everywhere.

    Raises:
        ValueError: an entry is missing or has a wrong length.
    """
    lengths = {"ks": 16, "e": 16, "d": 4, "s": 1}
    if set(setting) != set(lengths):
        raise ValueError(f"a published setting has ks, e, d and s, not {', '.join(setting)}")
    lists = {}
    for key, length in lengths.items():
        value = setting[key]
        lists[key] = [value] * length if isinstance(value, int) else list(value)
        if len(lists[key]) != length:
            raise ValueError(f"{key} must have {length} values, not {len(lists[key])}")
    values = {"scale": lists["s"][0]}
    for stage in range(len(WIDTHS)):
        values[f"stages.{stage}.depth"] = lists["d"][stage]
        for block in range(BLOCKS):
            name, index = f"stages.{stage}.blocks.{block}", BLOCKS * stage + block
            values[f"{name}.kernel"] = lists["ks"][index]
            values[f"{name}.expand"] = lists["e"][index]
    return Architecture(values)


_RENAMES = (
    (r"\.mobile_inverted_conv\.", ".conv."),
    (r"\.(conv|bn)\.\1\.", r".\1."),
    (r"\.conv\.inverted_bottleneck\.conv\.", ".expand."),
    (r"\.conv\.inverted_bottleneck\.bn\.", ".expand_norm."),
    (r"\.conv\.depth_conv\.conv\.(\d)to(\d)_matrix$", r".depthwise.matrix_\1to\2"),
    (r"\.conv\.depth_conv\.conv\.", ".depthwise."),
    (r"\.conv\.depth_conv\.bn\.", ".depthwise_norm."),
    (r"\.conv\.depth_conv\.se\.fc\.reduce\.", ".squeeze.fc1."),
    (r"\.conv\.depth_conv\.se\.fc\.expand\.", ".squeeze.fc2."),
    (r"\.conv\.point_linear\.conv\.", ".project."),
    (r"\.conv\.point_linear\.bn\.", ".project_norm."),
    (r"^aggregation\.final_conv\.", "heads."),
    (r"^aggregation\.fusions\.(\d+)\.branches\.(\d+)\.0\.", r"aggregation.\1.branches.\2."),
    (r"^aggregation\.fusions\.(\d+)\.fuse_layers\.", r"aggregation.\1.exchanges."),
    (r"\.conv2\.deform_conv\.weight$", ".conv2.weight"),
    (r"\.conv2\.offset_conv\.", ".conv2.offsets."),
)


def convert_published(state: dict[str, Tensor]) -> tuple[str, dict[str, object], dict[str, Tensor]]:
    """Recognise a published checkpoint of the supernet or of a subnet and rename its tensors.

    The supernet is known by the doubled parts in its keys. Kernel matrices that a file trained
    without elastic kernels lacks are the identity. Output heads that a published subnet keeps
    beyond its levels are dropped.

    Args:
        state: tensors by published name, without a `module.` prefix.

    Returns:
        `easnet`, its architecture arguments (with the subnet, if it is one), and its state dict.

    Raises:
        ValueError: the tensors are not EASNet's.
    """
    if "refinement.0.conv1.0.weight" not in state or not any(
        key.startswith("feature_extractor.0.") for key in state
    ):
        raise ValueError(
            "these are not the weights of EASNet: no feature_extractor.0 or no refinement.0"
        )
    is_supernet = any(key.endswith(".conv.conv.weight") for key in state)
    renamed = {}
    for key, tensor in state.items():
        for pattern, replacement in _RENAMES:
            key = re.sub(pattern, replacement, key)
        renamed[key] = tensor
    state = _number_blocks(renamed)
    arguments: dict[str, object] = {"published_warp": True}
    if not is_supernet:
        architecture = _architecture_of(state)
        scale = cast(int, architecture["scale"])
        idle = tuple(f"heads.{level}." for level in range(scale, len(WIDTHS)))
        state = {key: tensor for key, tensor in state.items() if not key.startswith(idle)}
        return "easnet", {**arguments, "subnet": architecture.to_json()}, state
    for key in [key for key in state if key.endswith(".depthwise.weight")]:
        for size, name in ((5, "matrix_7to5"), (3, "matrix_5to3")):
            state.setdefault(key.replace("weight", name), torch.eye(size * size))
    return "easnet", arguments, state


def _number_blocks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Blocks numbered throughout become blocks of stages, which differ in their width."""
    places, width, stage, block = {}, None, 0, 0
    prefix = "feature_extractor."
    for number in sorted({int(key.split(".")[1]) for key in state if key.startswith(prefix)}):
        weight = state.get(f"{prefix}{number}.project.weight")
        if weight is None:
            raise ValueError(f"EASNet's {prefix}{number} has no projection")
        if width not in (None, len(weight)):
            stage, block = stage + 1, 0
        width = len(weight)
        places[str(number)] = f"features.stages.{stage}.{block}"
        block += 1
    return {
        re.sub(r"^feature_extractor\.(\d+)", lambda match: places[match[1]], key): tensor
        for key, tensor in state.items()
    }


def _architecture_of(state: Mapping[str, Tensor]) -> Architecture:
    values: dict[str, int] = {}
    stages: dict[int, int] = {}
    for key, weight in state.items():
        if key.startswith("features.") and key.endswith(".depthwise.weight"):
            stage, block = (int(word) for word in key.split(".")[2:4])
            stages[stage] = max(stages.get(stage, 0), block + 1)
            in_channels = state[key.replace("depthwise", "expand")].shape[1]
            name = f"stages.{stage}.blocks.{block}"
            values[f"{name}.kernel"] = weight.shape[-1]
            ratios = (r for r in (8, 6, 4, 2) if expanded(in_channels, r) == len(weight))
            values[f"{name}.expand"] = next(ratios, 0)
    values |= {f"stages.{stage}.depth": depth for stage, depth in stages.items()}
    values["scale"] = len(stages)
    return Architecture({**dict.fromkeys(_LARGEST), **values})


_LARGEST = published_architecture({"ks": 7, "e": 8, "d": 4, "s": 4})


@register_model(task="stereo")
def easnet(
    *,
    max_disparity: int = 192,
    published_warp: bool = False,
    subnet: Mapping[str, Any] | None = None,
) -> EASNet:
    """EASNet's supernet as published, 5.1 M parameters, or one of its subnets."""
    return subnet_of(EASNet(max_disparity=max_disparity, published_warp=published_warp), subnet)


@register_model(task="stereo")
def easnet_extended(
    *,
    max_disparity: int = 192,
    levels: int = len(WIDTHS),
    published_warp: bool = False,
    sharp: bool = False,
    subnet: Mapping[str, Any] | None = None,
) -> EASNet:
    """EASNet's supernet with elastic aggregation and refinement too, or one of its subnets."""
    net = EASNet(
        max_disparity=max_disparity,
        levels=levels,
        extended=True,
        published_warp=published_warp,
        sharp=sharp,
    )
    return subnet_of(net, subnet)


@register_model(task="stereo", weights=EASNET_SMALL)
def easnet_small(*, max_disparity: int = 96) -> EASNet:
    """A subnet of `easnet_extended`, sharp, 0.32 M parameters, with half as many disparities."""
    choices = {
        "scale": [3],
        "stages.*.depth": [2],
        "stages.*.kernel": [5],
        "stages.*.expand": [4],
        "aggregation.depth": [3],
        "refinement.levels": [1],
        "refinement.0.blocks": [6],
    }
    supernet = EASNet(max_disparity=max_disparity, levels=3, extended=True, sharp=True)
    return extract(supernet, search_space(supernet).restrict(choices).largest())
