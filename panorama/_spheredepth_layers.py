"""SphereDepth's building blocks: residual block, stem, decoder step, head.

What may depend on choices beside `nas.elastic`'s layers comes first: each function returns a plain
module where its numbers are ints, and where one is a choice's an elastic one, whose export is that
plain module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nas import elastic
from ..nas.elastic.base import (
    Copies,
    ElasticModule,
    Part,
    Setting,
    check_channels,
    fill,
    is_elastic,
    number_of,
    parts,
)
from ..nas.elastic.conv import ElasticMatrix
from ..nas.elastic.norm import ElasticBatchNorm2d
from ..nas.values import Computed, Value, cases, choices_of, concat, maximum, outcomes
from ..vision.fused import fold_batch_norm
from .layers import FaceNorm, MeshConv, MeshTables, Ring, pool_faces, ring_of, unpool_faces
from .mesh import check_ring

Width = int | Value


class Use(NamedTuple):
    """A convolution or unpooling that a network does: `layers.Ring` of numbers that may be open."""

    level: Width
    kernel: Width = 3
    dilation: Width = 1
    symmetric: bool = False
    stride: int = 1

    def ring(self, architecture: Setting) -> Ring | None:
        """Under an architecture, None for the largest; see `layers.ring_of`."""
        level, kernel, dilation = _together(self[:3], architecture)
        return ring_of(level, kernel, dilation, self.symmetric, self.stride)

    def rings(self) -> list[Ring | None]:
        """Under all of them."""
        ring = partial(ring_of, symmetric=self.symmetric, stride=self.stride)
        return list(cases(Computed(ring, self[:3])))


def _together(values: Sequence[Width], architecture: Setting) -> list[int]:
    """Numbers under one architecture: for None the largest, in which one may be at its least."""
    if architecture is None:
        choices = (choice for value in values for choice in choices_of(value))
        architecture = {choice.name: choice.largest for choice in choices}
    return [number_of(value, architecture) for value in values]


class _ElasticFaceNorm(FaceNorm, ElasticBatchNorm2d):
    plain = FaceNorm


def _face_norm(channels: Width) -> nn.BatchNorm2d:
    return _ElasticFaceNorm(channels) if isinstance(channels, Value) else FaceNorm(channels)


class _ConvSettings(NamedTuple):
    in_channels: int
    kernel: int
    dilation: int
    rows: tuple[Part, ...]
    columns: tuple[Part, ...]


class _ElasticMeshConv(ElasticMatrix, MeshConv):
    def __init__(
        self,
        in_channels: Width,
        out_channels: Width,
        *,
        kernel: Width = 3,
        dilation: Width = 1,
        **settings: Any,
    ) -> None:
        super().__init__(maximum(in_channels), maximum(out_channels), **settings)
        self.set_numbers(
            in_channels=in_channels, out_channels=out_channels, kernel=kernel, dilation=dilation
        )
        _, self.kernel, self.dilation, _, _ = self.active

    def settings(self, architecture: Setting) -> _ConvSettings:
        n_in, n_out, *ring = self.numbers.values()
        kernel, dilation = _together(ring, architecture)
        if kernel != 1:
            check_ring(kernel, dilation)
        rows, columns = (parts(number, architecture) for number in (n_out, n_in))
        return _ConvSettings(number_of(n_in, architecture), kernel, dilation, rows, columns)

    def activate(self, architecture: Mapping[str, Any]) -> None:
        super().activate(architecture)
        _, self.kernel, self.dilation, _, _ = self.active

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        check_channels(self, x.shape[-1], self.active.in_channels)
        return super().forward(x, tables, level)

    def export(self, architecture: Setting, copies: Copies = None) -> MeshConv:
        active = self.settings(architecture)
        with torch.no_grad():
            weight, bias = self._in_use(active)
        with torch.device("meta"):
            layer = MeshConv(
                active.in_channels,
                len(weight),
                kernel=active.kernel,
                dilation=active.dilation,
                stride=self.stride,
                symmetric=self.symmetric,
                normalize=self.normalize,
                bias=self.bias is not None,
            )
        return fill(layer, self, weight=weight, bias=bias)


def _conv_use(conv: MeshConv, level: Width) -> Use:
    """What a convolution looks at where it is given the faces of a level."""
    numbers = getattr(conv, "numbers", {})
    kernel, dilation = (numbers.get(name, getattr(conv, name)) for name in ("kernel", "dilation"))
    return Use(level, kernel, dilation, conv.symmetric, conv.stride)


class _ElasticTables(ElasticModule, MeshTables):
    """Has what any architecture looks at; its export what one does."""

    def __init__(self, uses: Sequence[Use], sample_level: int, mesh_level: Width) -> None:
        rings = dict.fromkeys(ring for use in uses for ring in use.rings() if ring is not None)
        super().__init__(rings, sample_level)
        self.uses = tuple(uses)
        values = itertools.chain.from_iterable(use[:3] for use in uses)
        self.set_numbers(
            mesh_level=mesh_level, **{f"use_{i}": value for i, value in enumerate(values)}
        )
        self.mesh_level, _ = self.active

    def settings(self, architecture: Setting) -> tuple[int, list[Ring]]:
        """The level of the mesh, and what the layers look at."""
        rings = filter(None, (use.ring(architecture) for use in self.uses))
        return number_of(self.numbers["mesh_level"], architecture), list(dict.fromkeys(rings))

    def activate(self, architecture: Mapping[str, Any]) -> None:
        super().activate(architecture)
        self.mesh_level, _ = self.active

    def export(self, architecture: Setting, copies: Copies = None) -> MeshTables:
        level, rings = self.settings(architecture)
        with torch.device(self.coordinates.device):
            layer = MeshTables(rings, self.sample_level, level)
        layer.training = self.training
        return layer

    def __deepcopy__(self, memo: dict[int, Any]) -> MeshTables:
        with torch.device(self._device_of_copy(memo)):
            layer = _ElasticTables(self.uses, self.sample_level, self.numbers["mesh_level"])
        layer.active, layer._values = self.active, self._values
        layer.mesh_level, layer.training = self.mesh_level, self.training
        return layer


def mesh_tables(uses: Sequence[Use], sample_level: int, mesh_level: Width) -> MeshTables:
    """The `MeshTables` of what a network looks at."""
    elastic_uses = is_elastic(itertools.chain.from_iterable(use[:3] for use in uses))
    if isinstance(mesh_level, Value) or elastic_uses:
        return _ElasticTables(uses, sample_level, mesh_level)
    rings = (use.ring(None) for use in uses)
    return MeshTables(filter(None, rings), sample_level, mesh_level)


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
        relu: bool = True,
    ) -> None:
        super().__init__()
        numbers = in_channels, out_channels, *pattern.values()
        layer: Callable[..., MeshConv] = _ElasticMeshConv if is_elastic(numbers) else MeshConv
        self.conv = layer(in_channels, out_channels, stride=stride, bias=False, **pattern)
        self.norm: nn.Module = _face_norm(out_channels)
        self.relu = relu

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        x = self.norm(self.conv(x, tables, level))
        return F.relu(x) if self.relu else x

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """With the normalisation folded into the convolution, see `inference.optimize`."""
        return _folded(self, self.conv, dtype)


class LinearNorm(nn.Module):
    """The same face by face: linear map, batch normalisation and perhaps ReLU."""

    def __init__(self, in_channels: Width, out_channels: Width, *, relu: bool = True) -> None:
        super().__init__()
        self.linear = elastic.Linear(in_channels, out_channels, bias=False)
        self.norm: nn.Module = _face_norm(out_channels)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.linear(x))
        return F.relu(x) if self.relu else x

    def fused(self, dtype: torch.dtype) -> nn.Module:
        """With the normalisation folded into the linear map, see `inference.optimize`."""
        return _folded(self, self.linear, dtype)


def _folded(block: nn.Module, layer: MeshConv | nn.Linear, dtype: torch.dtype) -> nn.Module:
    """A block with its norm in the layer's weight, whose first axis is the result's, and bias."""
    weight, bias = fold_batch_norm(layer.weight, layer.bias, cast(FaceNorm, block.norm))
    layer.weight, layer.bias = nn.Parameter(weight.to(dtype)), nn.Parameter(bias.to(dtype))
    block.norm = nn.Identity()
    return block


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
        return [_conv_use(self.first.conv, level), _conv_use(self.second.conv, after)]


class Stem(nn.Module):
    """Texture samples of the mesh's faces to features, (N, F 4^k, 3) to (N, F, C)."""

    def __init__(self, kind: str, width: Width, texture_level: Width, pattern: Pattern) -> None:
        super().__init__()
        steps, self.samples = maximum(texture_level), 4 ** maximum(texture_level)
        self.linear = LinearNorm(3 * self.samples, width) if kind == "concat" or not steps else None
        finer = texture_level if kind == "mesh" else 0
        # Stride 2 with the plain kernel 3 needs no table.
        self.steps = elastic.ModuleList(
            [ConvNorm(width if step else 3, width, {}, stride=2) for step in range(maximum(finer))],
            length=finer,
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
        return [_conv_use(self.last.conv, level)]


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
        return [Use(level), *(_conv_use(conv, level + 1) for conv in convs)]


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
