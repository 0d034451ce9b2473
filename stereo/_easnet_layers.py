"""Building blocks of EASNet and its light form: elastic features, aggregation across levels.

Each has a form that runs fastest in inference, which `vision.inference.optimize` uses: batch norms
are folded, activations and shortcuts part of the convolutions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.elastic.base import is_elastic
from ..nas.space import Choice
from ..nas.values import Computed, Value, maximum
from ..vision.fused import FusedConv2d, fold_batch_norm
from ..vision.inference import convert
from ..vision.layers import ConvNorm, DeformableConv2d, deformable_convolution
from ..vision.ops import soft_argmin


class _FusedChain(nn.Module):
    """Layers one after the other, the last of which adds the input where there is a shortcut."""

    def __init__(self, *layers: nn.Module, shortcut: bool = True) -> None:
        super().__init__()
        self.first, self.last, self.shortcut = nn.Sequential(*layers[:-1]), layers[-1], shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x), x if self.shortcut else None)


class _FusedDeformable(nn.Module):
    """A `DeformableConv2d` with the batch norm and the ReLU after it."""

    def __init__(self, conv: DeformableConv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        self.groups, self.taps, self.dilation = conv.groups, conv.kernel_size**2, conv.dilation
        # Offsets in a half type would move the samples.
        self.offsets = FusedConv2d.of(conv.offsets)
        weight, bias = fold_batch_norm(conv.weight, None, norm)
        self.weight = weight.to(dtype)
        self.bias = bias.to(dtype).view(-1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        taps = self.groups * self.taps
        offsets, mask = self.offsets(x).split((2 * taps, taps), 1)
        y = deformable_convolution(
            x, offsets, 2 * mask.sigmoid(), self.weight, dilation=self.dilation
        )
        return y.add_(self.bias).relu_()


class DilatedBlock(nn.Module):
    """Two dilated 3x3 convolutions with a shortcut."""

    def __init__(self, channels: Number, dilation: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels, dilation)
        self.bn1 = elastic.BatchNorm2d(channels)
        self.conv2 = convolution(channels, dilation)
        self.bn2 = elastic.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.bn1(self.conv1(x)), 0.2)
        return F.leaky_relu(x + self.bn2(self.conv2(y)), 0.2)

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        return _FusedChain(
            FusedConv2d.of(self.conv1, self.bn1, slope=0.2, dtype=dtype),
            FusedConv2d.of(self.conv2, self.bn2, slope=0.2, dtype=dtype),
        )


FINEST = 3
"""Image pixels per pixel of the finest features."""

WIDTHS = (24, 32, 64, 128)
"""Channels of the published stages."""

BLOCKS = 4
"""Of each of them."""

Number = Value | int
"""Fixed, or dependent on choices."""

_STRIDES = (FINEST, 2, 2, 2)

_leaky_relu = partial(nn.LeakyReLU, 0.2)


def expanded(in_channels: int, ratio: float) -> int:
    """The multiple of 8 nearest to that many times the channels, at most a tenth below it."""
    channels = in_channels * ratio
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _quarter(in_channels: int, ratio: int) -> int:
    return expanded(expanded(in_channels, ratio) // 4, 1)


def _one_of(name: str, values: tuple[int, ...]) -> Number:
    """A choice, or the number where there is one alone."""
    return values[0] if len(values) == 1 else Choice(name, values)


def _computed(function: Callable[..., int], *operands: Number) -> Number:
    return Computed(function, operands) if is_elastic(operands) else function(*operands)


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, squeeze-excite, project; elastic in kernel and expansion."""

    def __init__(
        self,
        in_channels: Number,
        out_channels: Number,
        stride: int,
        squeeze: bool,
        kernel: Number,
        ratio: Number,
    ) -> None:
        super().__init__()
        middle = _computed(expanded, in_channels, ratio)
        self.expand = elastic.Conv2d(in_channels, middle, 1, bias=False)
        self.expand_norm = elastic.BatchNorm2d(middle)
        self.depthwise = elastic.Conv2d(
            middle, middle, kernel, stride, "half", groups=middle, bias=False, transform=True
        )
        self.depthwise_norm = elastic.BatchNorm2d(middle)
        reduced = _computed(_quarter, in_channels, ratio)
        self.squeeze = elastic.SqueezeExcite(middle, reduced) if squeeze else nn.Identity()
        self.project = elastic.Conv2d(middle, out_channels, 1, bias=False)
        self.project_norm = elastic.BatchNorm2d(out_channels)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.expand_norm(self.expand(x)))
        y = self.squeeze(F.relu(self.depthwise_norm(_depthwise(self.depthwise, y))))
        y = self.project_norm(self.project(y))
        return x + y if self.residual else y

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        return _FusedChain(
            FusedConv2d.of(self.expand, self.expand_norm, slope=0.0, dtype=dtype),
            FusedConv2d.of(self.depthwise, self.depthwise_norm, slope=0.0, dtype=dtype),
            copy.deepcopy(self.squeeze).to(dtype),
            FusedConv2d.of(self.project, self.project_norm, dtype=dtype),
            shortcut=self.residual,
        )


def _depthwise(convolution: nn.Module, x: Tensor) -> Tensor:
    """On a CPU in float32 whatever autocast says.

    In bfloat16 the gradient of the weights takes three to nine times as long there.
    """
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return convolution(x)
    with torch.autocast("cpu", enabled=False):
        return convolution(x.float())


class FeaturePyramid(nn.Module):
    """Features at 1/3, 1/6, 1/12, 1/24: stages of blocks, of which the first `scale` run.

    Args:
        scale: how many stages there are.
        depths: of each stage, in blocks.
        kernels: of a block's depthwise convolution.
        ratios: of a block's inner channels to its input's.
        widths: of the stages, in channels.
        stem: kernels of a plain convolution that brings the image to 1/3, so that no block runs at
            full size and the first stage may have none; none for no such convolution.
    """

    def __init__(
        self,
        scale: Number,
        depths: Sequence[tuple[int, ...]] = ((2, 3, BLOCKS),) * len(_STRIDES),
        kernels: tuple[int, ...] = (3, 5, 7),
        ratios: tuple[int, ...] = (2, 4, 6, 8),
        widths: Sequence[Number] = WIDTHS,
        stem: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        in_channels: Number = 3
        self.stem: nn.Module = nn.Identity()
        if stem:
            self.stem = LeakyConvolution(3, widths[0], Choice("stem.kernel", stem), FINEST)
            in_channels = widths[0]
        stages = []
        for stage in range(maximum(scale)):
            width, stride = widths[stage], _STRIDES[stage]
            from_stem = bool(stem) and stage == 0
            blocks = [
                InvertedResidual(
                    width if block else in_channels,
                    width,
                    1 if block or from_stem else stride,
                    squeeze=stage % 2 == 1,
                    kernel=_one_of(f"stages.{stage}.blocks.{block}.kernel", kernels),
                    ratio=_one_of(f"stages.{stage}.blocks.{block}.expand", ratios),
                )
                for block in range(max(depths[stage]))
            ]
            none = (0,) if from_stem else ()
            depth = _one_of(f"stages.{stage}.depth", (*none, *depths[stage]))
            stages.append(elastic.Sequential(*blocks, length=depth))
            in_channels = width
        self.stages = elastic.ModuleList(stages, length=scale)

    def forward(self, image: Tensor) -> list[Tensor]:
        """Features, finest first.

        Args:
            image: (B, 3, H, W), standardised.
        """
        levels = []
        image = self.stem(image)
        for stage in self.stages:
            image = stage(image)
            levels.append(image)
        return levels


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; the 3x3 is handed in."""

    def __init__(self, channels: Number, conv2: nn.Module) -> None:
        super().__init__()
        self.conv1 = elastic.Conv2d(channels, channels, 1, bias=False)
        self.bn1 = elastic.BatchNorm2d(channels)
        self.conv2 = conv2
        self.bn2 = elastic.BatchNorm2d(channels)
        self.conv3 = elastic.Conv2d(channels, channels, 1, bias=False)
        self.bn3 = elastic.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(x + self.bn3(self.conv3(y)))

    def fused(self, dtype: torch.dtype) -> nn.Module:
        if isinstance(self.conv2, DeformableConv2d):
            middle: nn.Module = _FusedDeformable(self.conv2, self.bn2, dtype)
        else:
            middle = FusedConv2d.of(cast(nn.Conv2d, self.conv2), self.bn2, slope=0.0, dtype=dtype)
        return _FusedChain(
            FusedConv2d.of(self.conv1, self.bn1, slope=0.0, dtype=dtype),
            middle,
            FusedConv2d.of(self.conv3, self.bn3, slope=0.0, dtype=dtype),
        )


def _exchange(steps: int, source: Number, target: Number) -> nn.Module:
    """What a level tells one `steps` halvings coarser; negative means finer."""
    if steps == 0:
        return nn.Identity()
    if steps < 0:
        return ConvNorm(source, target)
    halvings = [ConvNorm(source, source, 3, 2, activation=_leaky_relu) for _ in range(steps - 1)]
    return nn.Sequential(*halvings, ConvNorm(source, target, 3, 2))


class AggregationModule(nn.Module):
    """One bottleneck a level, then the sum over levels for each level.

    Args:
        convolutions: of the bottlenecks, one a level.
        channels: of the levels.
        scale: how many of the levels there are.
        finest_first: how levels are ordered; the last ones are left out where `scale` says so.
    """

    def __init__(
        self,
        convolutions: Sequence[nn.Module],
        channels: Sequence[Number],
        scale: Number,
        finest_first: bool = True,
    ) -> None:
        super().__init__()
        levels, sign = range(len(channels)), 1 if finest_first else -1
        self.branches = elastic.ModuleList(
            [_Bottleneck(width, conv) for width, conv in zip(channels, convolutions, strict=True)],
            length=scale,
        )
        self.exchanges = elastic.ModuleList(
            [
                elastic.ModuleList(
                    [
                        _exchange(sign * (target - source), channels[source], channels[target])
                        for source in levels
                    ],
                    length=scale,
                )
                for target in levels
            ],
            length=scale,
        )

    def forward(self, costs: list[Tensor]) -> list[Tensor]:
        """New costs (B, D_i, h_i, w_i) for each level i."""
        costs = [branch(cost) for branch, cost in zip(self.branches, costs, strict=True)]
        fused = []
        rows = cast("Iterable[nn.ModuleList]", self.exchanges)
        for target, exchanges in zip(costs, rows, strict=True):
            terms = (
                resize(exchange(cost), target.shape[-2:])
                for exchange, cost in zip(exchanges, costs, strict=True)
            )
            fused.append(F.leaky_relu(sum(terms, start=next(terms)), 0.2))
        return fused


class LeakyConvolution(ConvNorm):
    """Convolution, batch norm and LeakyReLU."""

    def __init__(
        self, in_channels: Number, out_channels: Number, kernel: Number = 3, stride: int = 1
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, activation=_leaky_relu)

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        conv, norm, _ = cast("tuple[nn.Conv2d, nn.BatchNorm2d, nn.Module]", self)
        return FusedConv2d.of(conv, norm, slope=0.2, dtype=dtype)


Volumes = tuple[tuple[Tensor, float], ...]
"""Of each level the matching scores, with the pixels between two candidates; finest first."""


class MatchingNetwork(nn.Module):
    """What EASNet and its relatives have in common; a subclass defines `_predict`."""

    output_names = ("disparity",)
    scored = True  # `predict` also gives how sure the matching scores are

    def example_inputs(
        self,
        height: int,
        width: int,
        *,
        batch: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        """A random image, and itself moved by a few pixels.

        Of two random ones no candidate would match better than the others, and another order of
        summation would choose another.
        """
        left = torch.rand((batch, 3, height, width), device=device, dtype=dtype)
        return left, left.roll(-6, dims=3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Disparity of the left view.

        Args:
            left: (B, 3, H, W), RGB in [0, 1], any size.
            right: the same shape, rectified to the left one.

        Returns:
            (B, 1, H, W), non-negative, in pixels.

        Raises:
            ValueError: the views differ in shape or are not RGB.
        """
        return self._predict(left, right)[0][0]

    def predict(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Disparity as `forward`, and the share of all chances in its peak, both (B, 1, H, W)."""
        (disparity, *_), volumes = self._predict(left, right)
        _, share = peak_argmin(volumes[0][0].float())
        size = disparity.shape[-2:]
        # Maps may go beyond the image, whose size need be no multiple of theirs.
        share = F.interpolate(share, scale_factor=float(volumes[0][1]), mode="bilinear")
        missing = [max(0, want - have) for want, have in zip(size, share.shape[-2:], strict=True)]
        share = F.pad(share, (0, missing[1], 0, missing[0]), mode="replicate")
        return disparity, share[..., : size[0], : size[1]]

    def forward_stages(self, left: Tensor, right: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        """All predictions, for training: one stage, finest first.

        Args:
            left: (B, 3, H, W), RGB in [0, 1].
            right: the same shape, rectified to the left one.

        Returns:
            One tuple of disparities (B, 1, h, w), in full-resolution pixels: full size, what
            led to it, and a half of the one before for each further level.
        """
        return self.forward_volumes(left, right)[0]

    def forward_volumes(
        self, left: Tensor, right: Tensor
    ) -> tuple[tuple[tuple[Tensor, ...], ...], Volumes]:
        """Predictions as `forward_stages`, and what they come from, for `matching_loss`.

        Returns:
            The stages; and for each level, finest first, the scores (B, D, h, w), high where the
            match is good, with the pixels of full resolution between two candidates.
        """
        disparities, volumes = self._predict(left, right)
        coarser = (soft_argmin(-scores.float(), step=step) for scores, step in volumes[1:])
        return ((*disparities, *coarser),), volumes

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        return convert(copy.deepcopy(self).eval(), dtype)

    def _predict(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], Volumes]:
        """Disparities, finest first, in full-resolution pixels, and what they come from."""
        raise NotImplementedError


def convolution(channels: Number, dilation: int) -> nn.Conv2d:
    """A 3x3 convolution of as many channels, without bias."""
    return elastic.Conv2d(channels, channels, 3, 1, dilation, dilation, bias=False)


def resize(x: Tensor, size: torch.Size) -> Tensor:
    if x.shape[-2:] == size:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def peak_argmin(scores: Tensor, step: int = 1) -> tuple[Tensor, Tensor]:
    """Disparity of the highest peak alone: a soft-argmin that does not mix near and far surfaces.

    Chen et al., "On the Over-smoothing Problem of CNN Based Disparity Estimation", ICCV 2019,
    section 3.2; here a peak is always the likeliest candidate and its two neighbours on each side.

    Args:
        scores: (B, D, h, w), high where the match is good.
        step: pixels between two candidates.

    Returns:
        The disparity, (B, 1, h, w), and the share of all chances that lies in its peak, 0 to 1.
    """
    width = min(5, scores.shape[1])
    best, index = scores.max(1, keepdim=True)  # twice to thrice as fast as `argmax` on a CPU
    chances = (scores - best.detach()).exp()
    first = (index - 2).clamp(0, scores.shape[1] - width)
    candidates = first + torch.arange(width, device=scores.device).view(1, -1, 1, 1)
    peak = chances.gather(1, candidates)
    total = peak.sum(1, keepdim=True)
    disparity = (peak * candidates).sum(1, keepdim=True) / total
    return disparity * step, total / chances.sum(1, keepdim=True)


def check_max_disparity(value: int, multiple: int) -> None:
    """Raise a ValueError unless it is a positive multiple."""
    if value < multiple or value % multiple:
        raise ValueError(f"max_disparity must be a multiple of {multiple}, not {value}")


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        fan_out = module.weight[0, 0].numel() * module.out_channels / module.groups
        nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, DeformableConv2d):
        module.reset_offsets()
