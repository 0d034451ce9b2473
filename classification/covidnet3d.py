"""CovidNet3D: classification of chest CT by a 3D network that differentiable search finds.

Paper: He et al., "Automated Model Design and Benchmarking of Deep Learning Models for COVID-19
Detection with Chest CT Scans", AAAI 2021, arXiv 2101.05442; its setup is restated in arXiv
2101.10667.

A stem halves all axes, then stages of cells follow. A cell is a calibration (a 1x1x1 convolution
that carries stride and width) and one searched operation: an inverted residual with kernel 3, 5
or 7 and expansion 3, 4 or 6, or a skip. The supernets hold all of them;
`vizoo.nas.differentiable` searches them and `vizoo.nas.extract` cuts a network out.

What differs from the published program: the residual belongs to the operation, so that a skip
that was drawn has a gradient for its logit; there is one skip instead of two zeros and an
identity (`identity=True` brings that back, for published encodings); calibrations are drawn so
that they keep the variance, since no normalisation follows them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..nas.space import Choice
from ..vision.fused import FusedConv3d, fold_batch_norm
from ..vision.hub.registry import register_model
from ..vision.inference import convert
from ..vision.layers import InvertedResidual, check_range
from ._covidnet3d_published import (
    CONVOLUTIONS,
    PLANS,
    Plan,
    choice_name,
    convert_published,
    published_architecture,
)
from .spaces._searched import operations, searched_operation

__all__ = [
    "CovidNet3D",
    "convert_published",
    "covidnet3d_l",
    "covidnet3d_s",
    "covidnet3d_tiny",
    "published_architecture",
]

_EPS = 1e-3
_STEM = 32
_FIRST = 16
_HEAD = 1280


class _ConvNorm(nn.Module):
    """Convolution without bias, batch norm, and ReLU6 where it is activated."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        activated: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv3d(
            in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm3d(out_channels, eps=_EPS)
        self.activation = nn.ReLU6() if activated else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.conv(x)))

    def fused(self, dtype: torch.dtype) -> nn.Module:
        weight, bias = fold_batch_norm(self.conv.weight, None, self.norm)
        return FusedConv3d(
            weight,
            bias,
            stride=self.conv.stride[0],
            padding=cast("tuple[int, ...]", self.conv.padding)[0],
            groups=self.conv.groups,
            limit=6.0 if isinstance(self.activation, nn.ReLU6) else None,
            dtype=dtype,
        )


class _Doubled(nn.Module):
    """The published identity of a cell with a residual."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x


class Calibration(nn.Conv3d):
    """A 1x1x1 convolution with bias that keeps the variance of its input."""

    bias: nn.Parameter

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(in_channels, out_channels, 1, stride)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        nn.init.zeros_(self.bias)


class _Cell(nn.Module):
    """A calibration, then an operation that keeps the shape."""

    def __init__(self, calibrate: Calibration, operation: nn.Module) -> None:
        super().__init__()
        self.calibrate = calibrate
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(self.calibrate(x))

    def fused(self, dtype: torch.dtype) -> nn.Module:
        conv, operation = self.calibrate, self.operation
        if isinstance(operation, InvertedResidual):
            operation = _FusedInvertedResidual(operation, dtype)
        fused = FusedConv3d(conv.weight, conv.bias, stride=conv.stride[0], dtype=dtype)
        return nn.Sequential(fused, operation)


class VolumeNetwork(nn.Module):
    """What networks of CT volumes with a `classifier` share."""

    output_names = ("logits",)
    smallest = 1  #: axis of a volume that it takes
    classifier: nn.Linear

    def get_classifier(self) -> nn.Linear:
        """The last layer; the name is timm's."""
        return self.classifier

    def example_inputs(
        self, height: int, width: int, *, batch: int = 1, **like: Any
    ) -> tuple[Tensor, ...]:
        """A volume with an eighth of `height` as its depth; see `vision.inputs.example_inputs`."""
        return (torch.rand(batch, 1, max(self.smallest, height // 8), height, width, **like),)


class CovidNet3D(VolumeNetwork):
    """The network of all operations, or one of its subnets.

    Args:
        plan: cells, strides and widths of the stages.
        choices: of each cell's operation; names of operations for one subnet.
        classes: outputs.

    Raises:
        ValueError: fewer than two classes.
    """

    def __init__(self, plan: Plan, choices: Sequence[Choice | str], classes: int = 2) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"a classifier needs two classes or more, not {classes}")
        self.stem = _ConvNorm(1, _STEM, 3, 2)
        self.first = _inverted_residual(_STEM, _FIRST, 3, 1, residual=False)
        stages, channels, number = [], _FIRST, 0
        for width, count, stride in zip(plan.widths, plan.cells, plan.strides, strict=True):
            cells = []
            for index in range(count):
                step = stride if index == 0 else 1
                residual = step == 1 and channels == width
                operation = searched_operation(choices[number], _operation, width, residual)
                cells.append(_Cell(Calibration(channels, width, step), operation))
                channels, number = width, number + 1
            stages.append(nn.Sequential(*cells))
        self.stages = nn.Sequential(*stages)
        self.head = _ConvNorm(channels, _HEAD, 1)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(_HEAD, classes)

    def forward(self, volumes: Tensor) -> Tensor:
        """Logits (B, classes) of volumes (B, 1, D, H, W), grey, in [0, 1], any size.

        Raises:
            ValueError: they are something of another shape.
        """
        pooled = self.forward_features(volumes).mean((2, 3, 4)).to(self.classifier.weight.dtype)
        return self.classifier(self.dropout(pooled))

    def forward_features(self, volumes: Tensor) -> Tensor:
        """What is averaged for the classifier, (B, 1280, D/32, H/32, W/32), rounded up."""
        check_volumes(volumes)
        return self.head(self.stages(self.first(self.stem(volumes))))

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """A faster form for inference, see `inference.optimize`."""
        net = copy.deepcopy(self)
        classifier = net.classifier.eval()
        net.add_module("classifier", nn.Identity())
        convert(net.eval(), dtype).classifier = classifier  # it takes no time, and stays exact
        return net


class _FusedInvertedResidual(nn.Module):
    """For inference, with the input's addition in the last convolution."""

    def __init__(self, block: InvertedResidual, dtype: torch.dtype) -> None:
        super().__init__()
        self.expand, self.depthwise, self.project = (
            cast("_ConvNorm", layer).fused(dtype)
            for layer in (block.expand, block.depthwise, block.project)
        )
        self.residual = block.residual

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.depthwise(self.expand(x)), x if self.residual else None)


def check_volumes(volumes: Tensor) -> None:
    """Raise a ValueError unless it is (B, 1, D, H, W) in [0, 1]."""
    if volumes.dim() != 5 or volumes.shape[1] != 1:
        raise ValueError(
            "volumes must be grey, (batch, 1, depth, height, width), but have shape "
            f"{tuple(volumes.shape)}"
        )
    check_range(volumes, "volumes")


def _operation(name: str, width: int, residual: bool) -> nn.Module:
    if name == "skip":
        return nn.Identity()
    if name == "identity":
        return _Doubled() if residual else nn.Identity()
    kernel, ratio = CONVOLUTIONS[name]
    return _inverted_residual(width, width, kernel, ratio, residual)


def _inverted_residual(
    in_channels: int, out_channels: int, kernel: int, ratio: int, residual: bool
) -> InvertedResidual:
    """Of stride 1; a ratio of 1 leaves the expansion out."""
    middle = in_channels * ratio
    expand = _ConvNorm(in_channels, middle, 1) if ratio > 1 else nn.Identity()
    depthwise = _ConvNorm(middle, middle, kernel, groups=middle)
    project = _ConvNorm(middle, out_channels, 1, activated=False)
    return InvertedResidual(expand, depthwise, project, residual)


def _build(
    name: str,
    classes: int,
    identity: bool,
    encoding: Sequence[int] | None,
    subnet: Mapping[str, Any] | None,
) -> CovidNet3D:
    plan = PLANS[name]
    if encoding is not None and subnet is not None:
        raise ValueError("give either an encoding or a subnet, not both")
    if encoding is not None:
        subnet = published_architecture(encoding, plan).to_json()
    # A subnet says itself whether it has the published identity.
    values = ("skip", *(("identity",) if identity or subnet else ()), *CONVOLUTIONS)
    known = (Choice(choice_name(plan, number), values) for number in range(plan.total))
    return CovidNet3D(plan, list(operations(known, subnet).values()), classes)


@register_model(task="classification")
def covidnet3d_s(
    *,
    classes: int = 2,
    identity: bool = False,
    encoding: Sequence[int] | None = None,
    subnet: Mapping[str, Any] | None = None,
) -> CovidNet3D:
    """CovidNet3D-S: the supernet, the network of 21 published numbers, or a subnet."""
    return _build("covidnet3d_s", classes, identity, encoding, subnet)


@register_model(task="classification")
def covidnet3d_l(
    *,
    classes: int = 2,
    identity: bool = False,
    encoding: Sequence[int] | None = None,
    subnet: Mapping[str, Any] | None = None,
) -> CovidNet3D:
    """CovidNet3D-L: the supernet, the network of 21 published numbers, or a subnet."""
    return _build("covidnet3d_l", classes, identity, encoding, subnet)


@register_model(task="classification")
def covidnet3d_tiny(
    *,
    classes: int = 2,
    identity: bool = False,
    encoding: Sequence[int] | None = None,
    subnet: Mapping[str, Any] | None = None,
) -> CovidNet3D:
    """A supernet of five cells that is searched on a CPU in minutes, not published; or a subnet."""
    return _build("covidnet3d_tiny", classes, identity, encoding, subnet)
