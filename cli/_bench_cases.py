"""What `vizoo bench ops` measures: each operator at the sizes of published networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..vision.ops import (
    concat_volume,
    correlation,
    correlation_2d,
    epipolar_correlation,
    group_wise_correlation,
    inverse_table,
    mesh_convolution,
    soft_argmin,
    warp_by_disparity,
)
from ..vision.ops.correlation import _correlation_2d_plain, _correlation_plain, _grouped_plain
from ..vision.ops.epipolar import _plain as _epipolar_plain
from ..vision.ops.mesh import _plain as _mesh_plain
from ..vision.ops.regression import _soft_argmin
from ..vision.ops.volume import _plain as _concat_plain
from ..vision.ops.warp import _warp

__all__ = ["Case", "cases"]


@dataclass
class Case:
    """One operator at one size.

    Attributes:
        name: of the operator.
        size: what a line says of it.
        call: takes the tensors that are differentiated.
        plain: the same in standard operators, to be compiled.
        inputs: those tensors.
        operations: multiplications and additions forward; backward they are twice as many.
        others: bytes that are read beside the inputs.
    """

    name: str
    size: str
    call: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: list[Tensor]
    operations: float
    others: int = 0


@dataclass(frozen=True)
class _Maps:
    """Makes random maps of a device and type, each side divided by `shrink`."""

    device: torch.device
    dtype: torch.dtype
    shrink: int

    def __call__(self, *shape: int) -> Tensor:
        shape = *shape[:-2], shape[-2] // self.shrink, shape[-1] // self.shrink
        return torch.randn(shape, device=self.device, dtype=self.dtype)


def cases(device: torch.device, dtype: torch.dtype, shrink: int) -> Iterator[Callable[[], Case]]:
    """For each case what makes it, so that only one is held at a time.

    Args:
        device: of the tensors.
        dtype: of the features.
        shrink: divides the sides of maps.
    """
    maps = _Maps(device, dtype, shrink)
    return (partial(build, maps) for build in _CASES)


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))


def _pair(
    function: Callable[..., Tensor],
    plain: Callable[..., Tensor],
    shape: tuple[int, ...],
    arguments: tuple[int, ...],
    places: int,
    maps: _Maps,
) -> Case:
    left, right = maps(*shape), maps(*shape)
    size = f"{_size(left)}, {','.join(map(str, arguments))}"
    return Case(
        function.__name__,
        size,
        lambda a, b: function(a, b, *arguments),
        lambda a, b: plain(a, b, *arguments),
        [left, right],
        2 * places * left.numel(),
    )


def _lines(
    channels: int, height: int, width: int, levels: int, radius: int, texels: float, maps: _Maps
) -> Case:
    """Four pairs; a pixel reads `texels` distinct texels of a view on average."""
    last = torch.channels_last
    reference = maps(1, channels, height, width).contiguous(memory_format=last)
    height, width = reference.shape[2:]
    sizes = [(height >> p, width >> p) for p in range(levels)]
    pyramid = [reference.new_empty(4, *size, channels).normal_() for size in sizes]
    pyramid = [x.permute(0, 3, 1, 2)[None] for x in pyramid]
    rows, columns = (torch.arange(n, device=maps.device) for n in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    base = torch.stack((x, y)).float().expand(1, 4, 2, -1, -1).contiguous()
    along = F.normalize(torch.randn(1, 4, 2, 1, 1, device=maps.device), dim=2)
    lines = base, along.expand_as(base).contiguous(), torch.randn_like(base[:, :, 0])
    return Case(
        "epipolar_correlation",
        f"4 pairs, {channels}x{height}x{width}, {levels} levels, {radius}",
        lambda r, *p: epipolar_correlation(r, p, *lines, radius),
        lambda r, *p: _epipolar_plain(r, p, *lines, radius),
        [reference, *pyramid],
        2 * 4 * texels * reference.numel(),
        sum(x.nbytes for x in lines),
    )


def _regression(maps: _Maps) -> Case:
    cost = maps(1, 64, 192, 320)
    plain = partial(_soft_argmin, start=0.0, step=1.0)
    return Case("soft_argmin", _size(cost), soft_argmin, plain, [cost], 0.0)


def _warping(maps: _Maps) -> Case:
    image = maps(1, 32, 192, 320)
    ramp = torch.linspace(0, 40, image.shape[3], device=maps.device)
    disparity = ramp.expand(1, 1, *image.shape[2:]).contiguous()
    plain = partial(_warp, padding="border", align_corners=True)
    given = [image, disparity]
    return Case("warp_by_disparity", _size(image), warp_by_disparity, plain, given, 0.0)


def _mesh(maps: _Maps) -> Case:
    faces, channels = 20 * 4**6 // maps.shrink**2, 64
    near = ((torch.arange(faces)[:, None] + torch.tensor([1, 5, 9])) % faces).int()
    near, inverse = near.to(maps.device), inverse_table(near, faces).to(maps.device)
    shapes = (1, faces, channels), (channels, channels, 4), (channels,)
    return Case(
        "mesh_convolution",
        f"{faces} faces, {channels} channels",
        lambda x, weight, bias: mesh_convolution(x, weight, bias, near, inverse),
        lambda x, weight, bias: _mesh_plain(x, weight, bias, near),
        [torch.randn(shape, device=maps.device, dtype=maps.dtype) for shape in shapes],
        8 * faces * channels**2,
        near.nbytes,
    )


_ONE = partial(_pair, correlation, _correlation_plain)
_CASES = (
    partial(_ONE, (1, 256, 72, 120), (41,), 41),  # FADNet
    partial(_ONE, (4, 256, 72, 120), (41,), 41),
    partial(_ONE, (1, 64, 192, 320), (64,), 64),  # EASNet
    partial(_pair, group_wise_correlation, _grouped_plain, (1, 320, 144, 240), (48, 40), 48),
    partial(_lines, 128, 72, 96, 4, 4, 50.7),  # DispMVS, coarse and fine
    partial(_lines, 96, 288, 384, 2, 2, 21.7),
    partial(_pair, concat_volume, _concat_plain, (1, 32, 144, 240), (48,), 0),
    _regression,
    _warping,
    _mesh,
    partial(_pair, correlation_2d, _correlation_2d_plain, (1, 128, 96, 112), (4,), 81),
)
