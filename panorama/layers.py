"""Layers on the faces of the spherical mesh; features are (N, F, C), a face's channels together.

The mesh convolution, its patterns, pooling and unpooling are SubdivNet's (Hu et al., TOG 2022). A
layer does not know its level: it is told at each call, together with the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..vision.ops import gather_faces, inverse_table, mesh_convolution
from .mesh import check_ring, kept, spherical_mesh
from .sampling import centroids, spherical_coordinates

__all__ = ["FaceNorm", "MeshConv", "MeshTables", "Ring", "pool_faces", "ring_of", "unpool_faces"]


class Ring(NamedTuple):
    """Which faces a mesh convolution looks at; see `SphericalMesh.ring`."""

    level: int  #: of the faces that are looked at
    kernel: int = 3  #: 3 or 5
    dilation: int = 1  #: from 1 on
    symmetric: bool = False  #: dilated walks of either hand
    stride: int = 1  #: 2 looks from the centre children only


def ring_of(
    level: int, kernel: int, dilation: int = 1, symmetric: bool = False, stride: int = 1
) -> Ring | None:
    """The ring of a convolution; None where it looks at no neighbours, or at its siblings."""
    family = stride == 2 and (kernel, dilation) == (3, 1)
    return None if kernel == 1 or family else Ring(level, kernel, dilation, symmetric, stride)


@cache
def ring_tables(ring: Ring, device: torch.device) -> tuple[Tensor, Tensor]:
    """Neighbours (G, n) and their inverse (F, m), int32; one pair for each device."""
    if device.type != "cpu":
        neighbours, inverse = ring_tables(ring, torch.device("cpu"))
        return neighbours.to(device), inverse.to(device)
    mesh = spherical_mesh(ring.level)
    rows = mesh.ring(ring.kernel, ring.dilation, ring.symmetric)
    neighbours = kept(rows[3::4] if ring.stride == 2 else rows, device)
    with torch.inference_mode(False), torch.no_grad():
        return neighbours, inverse_table(neighbours, len(mesh.faces))


@cache
def _sample_coordinates(level: int, device: torch.device) -> Tensor:
    """Where the centroids lie in an equirectangular image, (F, 2) float32."""
    with torch.inference_mode(False), torch.no_grad():
        return spherical_coordinates(centroids(level, torch.device("cpu"))).float().to(device)


class MeshTables(nn.Module):
    """The tables of a network, on its device; all networks of a process share them.

    They are buffers outside of the state dict. Casting a network leaves them as they are.

    Args:
        rings: what `neighbours` will be asked for.
        sample_level: of the faces that `coordinates` locates in the image.
        mesh_level: of the network's features; None for the same.
    """

    coordinates: Tensor

    def __init__(
        self, rings: Iterable[Ring], sample_level: int, mesh_level: int | None = None
    ) -> None:
        super().__init__()
        self.rings = dict.fromkeys(rings)
        self.sample_level = sample_level
        self.mesh_level = sample_level if mesh_level is None else mesh_level
        self._fill(torch.get_default_device())

    def neighbours(self, ring: Ring) -> tuple[Tensor, Tensor]:
        """Table and inverse of a ring.

        Raises:
            ValueError: the tables were made without it.
        """
        if ring not in self.rings:
            raise ValueError(f"these tables lack {ring}: name it when you make them")
        return getattr(self, _name("neighbours", ring)), getattr(self, _name("inverse", ring))

    def fused(self, dtype: torch.dtype) -> MeshTables:
        """Itself, whatever type the network gets."""
        return self

    def _fill(self, device: torch.device) -> None:
        for ring in self.rings:
            neighbours, inverse = ring_tables(ring, device)
            self.register_buffer(_name("neighbours", ring), neighbours, persistent=False)
            self.register_buffer(_name("inverse", ring), inverse, persistent=False)
        coordinates = _sample_coordinates(self.sample_level, device)
        self.register_buffer("coordinates", coordinates, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MeshTables:
        self._fill(fn(self.coordinates[:0]).device)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> MeshTables:
        with torch.device(self._device_of_copy(memo)):
            return MeshTables(self.rings, self.sample_level, self.mesh_level)

    def _device_of_copy(self, memo: dict[int, Any]) -> torch.device:
        """That of the tensors with which a memo replaces the buffers, if it does."""
        return memo.get(id(self.coordinates), self.coordinates).device


def _name(kind: str, ring: Ring) -> str:
    return "_".join([kind, *(str(int(x)) for x in ring)])


class MeshConv(nn.Module):
    """Mesh convolution: four matrices for a face, its neighbours and two kinds of differences.

    The weights depend neither on kernel nor on dilation; kernel 1 uses the first matrix only.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the result.
        kernel: 1, 3 or 5.
        dilation: from 1 on, with kernel 3.
        stride: 1, or 2 for the next coarser level, evaluated at the centre children.
        symmetric: dilated walks of either hand, see `SphericalMesh.ring`.
        normalize: scale the sums to those of three neighbours, so that weights are worth the same
            whatever the kernel.
        bias: add one.

    Attributes:
        weight: (out_channels, in_channels, 4).

    Raises:
        ValueError: a kernel, dilation or stride that is not defined.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel: int = 3,
        dilation: int = 1,
        stride: int = 1,
        symmetric: bool = False,
        normalize: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if kernel != 1:
            check_ring(kernel, dilation)
        if stride not in (1, 2):
            raise ValueError(f"stride {stride} is not defined on the mesh: choose 1 or 2")
        self.kernel, self.dilation, self.stride = kernel, dilation, stride
        self.symmetric, self.normalize = symmetric, normalize
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, 4))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        # A sum of n neighbours that are alike has n² times a face's square, the differences little.
        count = {1: 0, 3: 6 if symmetric and dilation > 1 else 3, 5: 9}[kernel]
        squares = 1 if kernel == 1 else 3 + (3 if normalize else count) ** 2
        # On "meta" there is nothing to draw, and PyTorch would import its compiler for it.
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, 0, math.sqrt(2 / (squares * in_channels)))

    def ring(self, level: int) -> Ring | None:
        """What it looks at on faces of a level; None where it needs no table."""
        return ring_of(level, self.kernel, self.dilation, self.symmetric, self.stride)

    def _in_use(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias

    def forward(self, x: Tensor, tables: MeshTables, level: int) -> Tensor:
        """Convolve on the faces of a level, or onto those of the coarser one.

        Args:
            x: (N, F, C) on the faces of `level`.
            tables: with those of `ring(level)`.
            level: of the mesh.

        Returns:
            (N, F, out_channels), or (N, F / 4, out_channels) with stride 2.
        """
        weight, bias = self._in_use()
        if self.kernel == 1:
            return F.linear(x[:, 3::4] if self.stride == 2 else x, weight[..., 0], bias)
        ring = self.ring(level)
        if ring is None:
            return mesh_convolution(x, weight, bias)
        neighbours, inverse = tables.neighbours(ring)
        if self.normalize and neighbours.shape[1] != 3:
            scale = 3 / neighbours.shape[1]
            weight = torch.cat((weight[..., :1], weight[..., 1:] * scale), 2)
        return mesh_convolution(x, weight, bias, neighbours, inverse)

    def extra_repr(self) -> str:
        """Channels, kernel, dilation and stride."""
        out_channels, in_channels, _ = self.weight.shape
        return (
            f"{in_channels}, {out_channels}, kernel={self.kernel}, dilation={self.dilation}, "
            f"stride={self.stride}"
        )


class FaceNorm(nn.BatchNorm2d):
    """Batch normalisation over images and faces of (N, F, C)."""

    channel_dim = -1  #: of what comes in, for `nas.recalibration`

    def forward(self, x: Tensor) -> Tensor:
        """(N, F, C) normalised for each channel over images and faces."""
        # As an image of height 1 with its channels last, which has the fastest kernels. Of width 1,
        # with strides that do not tell the layouts apart, PyTorch 2.15's gradients are wrong.
        return super().forward(x[:, None].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)[:, 0]


def pool_faces(x: Tensor) -> Tensor:
    """Children (N, F, C) to the means of their parents, (N, F / 4, C)."""
    return x.unflatten(1, (-1, 4)).mean(2)


def unpool_faces(x: Tensor, neighbours: Tensor, inverse: Tensor) -> Tensor:
    """Parents (N, F, C) to their children, (N, 4 F, C), by the (F, 3) table and its inverse.

    A corner child gets half of its parent and a quarter of each of the two neighbours that touch
    its corner: constants and sums are kept.
    """
    near = gather_faces(x, neighbours, inverse)  # (N, F, 3, C)
    corner = (2 * x + near.sum(2))[:, :, None] - near
    return torch.cat((corner / 4, x[:, :, None]), 2).flatten(1, 2)
