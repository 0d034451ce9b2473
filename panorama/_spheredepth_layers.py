"""SphereDepth's building blocks: residual block, stem, decoder step, head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.values import Value, concat, maximum, outcomes
from ..vision.fused import fold_batch_norm
from ._spheredepth_elastic import Use, Width, conv_use, face_norm, mesh_conv
from .layers import FaceNorm, MeshConv, MeshTables, Ring, pool_faces, unpool_faces

_HIDDEN = 32  # channels of the head


class Pattern(TypedDict, total=False):
    """What a convolution looks at; see `layers.MeshConv`."""

    kernel: Width
    dilation: Width
    symmetric: bool
    normalize: bool


class ConvNorm(nn.Module):
    """Mesh convolution, batch normalisation and, unless `relu` is False, ReLU."""

    def __init__(
        self,
        in_channels: Width,
        out_channels: Width,
        pattern: Pattern,
        *,
        stride: int = 1,
        bias: bool = False,
        relu: bool = True,
    ) -> None:
        super().__init__()
        self.conv = mesh_conv(in_channels, out_channels, stride=stride, bias=bias, **pattern)
        self.norm: nn.Module = face_norm(out_channels)
        self.relu = relu

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        x = self.norm(self.conv(x, tables, level))
        return F.relu(x) if self.relu else x

    def fused(self, dtype: torch.dtype) -> ConvNorm:
        """With the normalisation folded into the convolution, see `inference.optimize`."""
        _fold(self.conv, self.norm, dtype)
        self.norm = nn.Identity()
        return self


class LinearNorm(nn.Module):
    """The same face by face: linear map, batch normalisation and perhaps ReLU."""

    def __init__(self, in_channels: Width, out_channels: Width, *, relu: bool = True) -> None:
        super().__init__()
        self.linear = elastic.Linear(in_channels, out_channels, bias=False)
        self.norm: nn.Module = face_norm(out_channels)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.linear(x))
        return F.relu(x) if self.relu else x

    def fused(self, dtype: torch.dtype) -> LinearNorm:
        """With the normalisation folded into the linear map, see `inference.optimize`."""
        _fold(self.linear, self.norm, dtype)
        self.norm = nn.Identity()
        return self


def _fold(layer: MeshConv | nn.Linear, norm: nn.Module, dtype: torch.dtype) -> None:
    """Take the norm behind a layer into its weight, whose first axis is the result's, and bias."""
    weight, bias = fold_batch_norm(layer.weight, layer.bias, cast(FaceNorm, norm))
    layer.weight, layer.bias = nn.Parameter(weight.to(dtype)), nn.Parameter(bias.to(dtype))


class ResidualBlock(nn.Module):
    """Two convolutions around a shortcut, as in ResNet-18; the first of a scale has stride 2."""

    def __init__(
        self, in_channels: Width, out_channels: Width, stride: int, pattern: Pattern
    ) -> None:
        super().__init__()
        self.stride = stride
        self.first = ConvNorm(in_channels, out_channels, pattern, stride=stride)
        self.second = ConvNorm(out_channels, out_channels, pattern, relu=False)
        self.shortcut = (
            LinearNorm(in_channels, out_channels, relu=False) if stride == 2 else nn.Identity()
        )

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        """From `level` to the same one, or with stride 2 to the next coarser."""
        y = self.first(x, tables, level)
        y = self.second(y, tables, level - 1 if self.stride == 2 else level)
        return F.relu(y + self.shortcut(pool_faces(x) if self.stride == 2 else x))

    def uses(self, level: Width) -> list[Use]:
        """What it looks at from the faces of `level`."""
        after = level - 1 if self.stride == 2 else level
        return [conv_use(self.first.conv, level), conv_use(self.second.conv, after)]


class Stem(nn.Module):
    """Texture samples of the mesh's faces to features, (N, F 4^k, 3) to (N, F, C)."""

    def __init__(self, kind: str, width: Width, texture_level: Width, pattern: Pattern) -> None:
        super().__init__()
        steps, self.samples = maximum(texture_level), 4 ** maximum(texture_level)
        self.linear = LinearNorm(3 * self.samples, width) if kind == "concat" or not steps else None
        # Stride 2 with the plain kernel 3 needs no table.
        self.steps = elastic.ModuleList(
            [ConvNorm(width if step else 3, width, {}, stride=2) for step in range(steps)]
            if kind == "mesh"
            else [],
            length=texture_level if kind == "mesh" else None,
        )
        self.last = ConvNorm(width, width, pattern)

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        """To the faces of `level`."""
        if self.linear is not None:
            x = self.linear(x.unflatten(1, (-1, self.samples)).flatten(2))
        for index, step in enumerate(self.steps):
            x = step(x, tables, level + len(self.steps) - index)
        return self.last(x, tables, level)

    def uses(self, level: Width) -> list[Use]:
        """What it looks at on the way to the faces of `level`."""
        return [conv_use(self.last.conv, level)]


class DecoderStep(nn.Module):
    """From one level to the next finer, whose features of the encoder join in."""

    def __init__(
        self, in_channels: Width, skip: Width, out_channels: Width, count: Width, pattern: Pattern
    ) -> None:
        super().__init__()
        widths: Sequence[Width] = [concat(in_channels, skip), *[out_channels] * maximum(count)]
        pairs = zip(widths, widths[1:], strict=False)
        self.convs = elastic.ModuleList([ConvNorm(a, b, pattern) for a, b in pairs], length=count)

    def forward(self, x: Tensor, skip: Tensor, tables: MeshTables, level: int) -> Tensor:
        """From the faces of `level` to those of `level` + 1."""
        x = unpool_faces(x, *tables.neighbours(Ring(level)))
        x = torch.cat((x, skip), 2)
        for conv in self.convs:
            x = conv(x, tables, level + 1)
        return x

    def uses(self, level: Width) -> list[Use]:
        """What it looks at from the faces of `level`."""
        convs = (step.conv for step in cast("Iterable[ConvNorm]", self.convs))
        return [Use(level), *(conv_use(conv, level + 1) for conv in convs)]


class Head(nn.Module):
    """Features of faces to one number for each sample, (N, F, C) to (N, F 4^k)."""

    def __init__(self, kind: str, width: Width, texture_level: Width) -> None:
        super().__init__()
        finer = texture_level if kind == "mesh" else 0
        self.first = elastic.Linear(width, _HIDDEN)
        self.steps = elastic.ModuleList(
            [nn.Linear(_HIDDEN, _HIDDEN) for _ in range(maximum(finer))], length=finer
        )
        self.last = nn.Linear(_HIDDEN, 4 ** maximum(texture_level) if kind == "concat" else 1)

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        """From the faces of `level`."""
        x = F.relu(self.first(x))
        for index, step in enumerate(self.steps):
            x = F.relu(step(unpool_faces(x, *tables.neighbours(Ring(level + index)))))
        return self.last(x).flatten(1)

    def uses(self, level: Width, sample_level: int) -> list[Use]:
        """What it looks at from the faces of `level`; where that is a choice, of all of them."""
        least = outcomes(level)[0] if isinstance(level, Value) else level
        return [Use(finer) for finer in range(least, sample_level)] if len(self.steps) else []
