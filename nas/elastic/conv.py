"""Convolutions, linear layers and squeeze-excites whose channels and kernels depend on choices.

Where every number is an int the functions return torch's own layer. Sliced as by once-for-all
networks (Cai et al., ICLR 2020, arXiv 1908.09791): the leading channels, the centre of the
kernel, and optionally a learned matrix from each kernel size to the next smaller.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ...common.layers import SqueezeExcitation
from ..values import Value, maximum, outcomes, segments
from .base import (
    Axis,
    Copies,
    ElasticModule,
    Part,
    Setting,
    check_channels,
    fill,
    is_elastic,
    memory_format,
    number_of,
    parts,
    take,
)

__all__ = ["Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d"]
__all__ += ["ElasticConv2d", "ElasticConv3d", "ElasticConvTranspose2d", "ElasticConvTranspose3d"]
__all__ += ["ElasticLinear", "Linear", "SqueezeExcite", "weight_in_use"]

Number = Value | int
Size = int | tuple[int, ...]


class _ConvSettings(NamedTuple):
    """What is active of a convolution. Parts count within each group."""

    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    padding: str | tuple[int, ...]
    groups: int
    rows: tuple[Part, ...]  # of the weight's first dimension
    columns: tuple[Part, ...]  # of its second dimension
    outputs: tuple[Part, ...]  # of the bias
    edges: tuple[int, ...]  # for `F.pad`, where the padding is not with zeros


class _Convolution(ElasticModule, _ConvNd):
    dims: int
    plain: type[nn.Module]
    run: Any
    transposed = False

    def __init__(
        self,
        in_channels: Number,
        out_channels: Number,
        kernel_size: Number | tuple[int, ...],
        *,
        transform: bool = False,
        groups: Number = 1,
        padding: Size | str = 0,
        **geometry: Any,
    ) -> None:
        if isinstance(kernel_size, tuple) and is_elastic(kernel_size):
            raise ValueError("an elastic kernel is square: give one value, not a tuple")
        largest = maximum(kernel_size) if isinstance(kernel_size, Value) else kernel_size
        geometry |= {"kernel_size": largest, "padding": 0 if padding == "half" else padding}
        super().__init__(
            maximum(in_channels), maximum(out_channels), groups=maximum(groups), **geometry
        )
        self._half = padding == "half"
        self._depthwise = isinstance(groups, Value)
        self._steps: tuple[tuple[int, str | None], ...] = ()
        numbers = {"in_channels": in_channels, "out_channels": out_channels, "groups": groups}
        if isinstance(kernel_size, Value):
            self._steps = self._kernel_steps(outcomes(kernel_size), transform)
            numbers["kernel_size"] = kernel_size
        self.set_numbers(**numbers)
        if self._half:
            self.padding = self.active.padding

    def _kernel_steps(
        self, sizes: tuple[int, ...], transform: bool
    ) -> tuple[tuple[int, str | None], ...]:
        """From the largest kernel down: each next size and the name of the matrix to it."""
        if len({size % 2 for size in sizes}) > 1 or sizes[0] < 1:
            raise ValueError(f"elastic kernels must be all odd or all even, not {list(sizes)}")
        steps = []
        for larger, smaller in itertools.pairwise(reversed(sizes)):
            name = f"matrix_{larger}to{smaller}" if transform else None
            steps.append((smaller, name))
            if name is not None:
                size, weight = smaller**self.dims, self.weight
                identity = torch.eye(size, device=weight.device, dtype=weight.dtype)
                self.register_parameter(name, nn.Parameter(identity))
        return tuple(steps)

    def settings(self, architecture: Setting) -> _ConvSettings:
        channels = self.numbers["in_channels"], self.numbers["out_channels"]
        inputs, outputs = (parts(value, architecture) for value in channels)
        n_in, n_out = (number_of(value, architecture) for value in channels)
        groups = number_of(self.numbers["groups"], architecture)
        if n_in % groups or n_out % groups or self._depthwise and n_in != groups:
            raise ValueError(
                f"{n_in} input and {n_out} output channels do not fit {groups} groups"
                + (" (groups that depend on a choice must be in_channels)" * self._depthwise)
            )
        if self._depthwise:
            each = self.out_channels // self.groups
            if outputs != tuple((each * start, each * length) for start, length in inputs):
                raise ValueError(
                    f"a depthwise convolution with {each} output channels for each input channel "
                    f"cannot have {n_out} for {n_in}"
                )
        elif groups > 1:
            if any(len(segments(value)) > 1 for value in channels):
                raise ValueError("a convolution in groups cannot read or write a concatenation")
            inputs, outputs = ((0, n_in // groups),), ((0, n_out // groups),)
        rows, columns = (inputs, outputs) if self.transposed else (outputs, inputs)
        if self._depthwise:
            columns = ((0, self.weight.shape[1]),)
        kernel = self.kernel_size
        if "kernel_size" in self.numbers:
            kernel = (number_of(self.numbers["kernel_size"], architecture),) * self.dims
        padding = self.padding
        if self._half:
            padding = _half_padding(kernel, self.stride, self.dilation, self.transposed)
        edges = () if self.padding_mode == "zeros" else self._edges(kernel, padding)
        return _ConvSettings(n_in, n_out, kernel, padding, groups, rows, columns, outputs, edges)

    def _edges(self, kernel: tuple[int, ...], padding: str | tuple[int, ...]) -> tuple[int, ...]:
        edges: list[int] = []
        for i in reversed(range(self.dims)):
            if isinstance(padding, str):
                total = self.dilation[i] * (kernel[i] - 1) if padding == "same" else 0
                edges += [total // 2, total - total // 2]
            else:
                edges += [padding[i], padding[i]]
        return tuple(edges)

    def weight_in_use(self, active: _ConvSettings) -> Tensor:
        """The weight that a plain layer of the active size would hold; gradients reach back."""
        weight = self.weight
        if active.groups == 1 or self._depthwise:
            weight = take(take(weight, 0, active.rows), 1, active.columns)
        elif (active.in_channels, active.out_channels) != (self.in_channels, self.out_channels):
            weight = weight.unflatten(0, (active.groups, -1))
            weight = take(take(weight, 1, active.rows), 2, active.columns).flatten(0, 1)
        for size, matrix in self._steps:
            if size < active.kernel[0]:
                break
            for dim in range(2, 2 + self.dims):
                weight = weight.narrow(dim, (weight.shape[dim] - size) // 2, size)
            if matrix is not None:
                # Two-dimensional, so that torch multiplies alike with and without gradients.
                flat = F.linear(weight.reshape(-1, size**self.dims), getattr(self, matrix))
                form = memory_format(self.weight)
                weight = flat.view(weight.shape).contiguous(memory_format=form)
        return weight

    def bias_in_use(self, active: _ConvSettings) -> Tensor | None:
        """The active entries of the bias, None where there is none."""
        if self.bias is None or active.groups == 1 or self._depthwise:
            return None if self.bias is None else take(self.bias, 0, active.outputs)
        return take(self.bias.unflatten(0, (active.groups, -1)), 1, active.outputs).flatten()

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Module:
        active = self.settings(architecture)
        more = {"output_padding": self.output_padding} if self.transposed else {}
        layer = self.plain(
            active.in_channels,
            active.out_channels,
            active.kernel,
            stride=self.stride,
            padding=active.padding,
            dilation=self.dilation,
            groups=active.groups,
            bias=self.bias is not None,
            padding_mode=self.padding_mode,
            device="meta",
            **more,
        )
        with torch.no_grad():
            weight, bias = self.weight_in_use(active), self.bias_in_use(active)
        return fill(layer, self, weight=weight, bias=bias)

    def axes(self) -> tuple[Axis, ...]:
        reads, writes = self.numbers["in_channels"], self.numbers["out_channels"]
        if self._depthwise and self.out_channels == self.in_channels:
            bias = () if self.bias is None else (Axis("bias", 0, reads, "keeps"),)
            return Axis("weight", 0, reads, "keeps"), *bias
        if self.groups > 1:
            return ()
        dims = (1, 0) if self.transposed else (0, 1)
        bias = () if self.bias is None else (Axis("bias", 0, writes, "writes"),)
        weight = Axis("weight", dims[0], writes, "writes"), Axis("weight", dims[1], reads, "reads")
        return *weight, *bias

    def extra_repr(self) -> str:
        kernel = "x".join(map(str, self.active.kernel))
        active = f"{self.active.in_channels}->{self.active.out_channels}, {kernel}"
        return f"{super().extra_repr()}, active: {active}"


class _ElasticConv(_Convolution):
    def forward(self, x: Tensor) -> Tensor:
        active = self.active
        check_channels(self, x.shape[-1 - self.dims], active.in_channels)
        padding = active.padding
        if active.edges:
            x, padding = F.pad(x, active.edges, self.padding_mode), 0
        weight, bias = self.weight_in_use(active), self.bias_in_use(active)
        return self.run(x, weight, bias, self.stride, padding, self.dilation, active.groups)


class _ElasticConvTranspose(_Convolution, _ConvTransposeNd):
    transposed = True

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        active = self.active
        check_channels(self, x.shape[-1 - self.dims], active.in_channels)
        extra: Sequence[int] = self.output_padding
        if output_size is not None:
            geometry: Any = (self.stride, active.padding, active.kernel, self.dims, self.dilation)
            extra = self._output_padding(x, output_size, *geometry)
        weight, bias = self.weight_in_use(active), self.bias_in_use(active)
        return self.run(
            x, weight, bias, self.stride, active.padding, extra, active.groups, self.dilation
        )


class ElasticConv2d(_ElasticConv, nn.Conv2d):
    """What `Conv2d` returns where a number depends on a choice."""

    dims, plain, run = 2, nn.Conv2d, staticmethod(F.conv2d)


class ElasticConv3d(_ElasticConv, nn.Conv3d):
    """What `Conv3d` returns where a number depends on a choice."""

    dims, plain, run = 3, nn.Conv3d, staticmethod(F.conv3d)


class ElasticConvTranspose2d(_ElasticConvTranspose, nn.ConvTranspose2d):
    """What `ConvTranspose2d` returns where a number depends on a choice."""

    dims, plain, run = 2, nn.ConvTranspose2d, staticmethod(F.conv_transpose2d)


class ElasticConvTranspose3d(_ElasticConvTranspose, nn.ConvTranspose3d):
    """What `ConvTranspose3d` returns where a number depends on a choice."""

    dims, plain, run = 3, nn.ConvTranspose3d, staticmethod(F.conv_transpose3d)


class _LinearSettings(NamedTuple):
    in_features: int
    out_features: int
    rows: tuple[Part, ...]
    columns: tuple[Part, ...]


class ElasticMatrix(ElasticModule):
    """A layer whose weight is a matrix; its first numbers are those of inputs and outputs."""

    weight: Any  # a parameter
    bias: Any  # a parameter or None

    def _in_use(self, active: Any = None) -> tuple[Tensor, Tensor | None]:
        active = self.active if active is None else active
        # Contiguous, so that the product is computed alike here and in the extracted layer.
        weight = take(take(self.weight, 0, active.rows), 1, active.columns).contiguous()
        return weight, None if self.bias is None else take(self.bias, 0, active.rows)

    def axes(self) -> tuple[Axis, ...]:
        """Rows are written, columns are read."""
        reads, writes, *_ = self.numbers.values()
        bias = () if self.bias is None else (Axis("bias", 0, writes, "writes"),)
        return Axis("weight", 0, writes, "writes"), Axis("weight", 1, reads, "reads"), *bias


class ElasticLinear(ElasticMatrix, nn.Linear):
    """What `Linear` returns where a number depends on a choice."""

    def __init__(self, in_features: Value | int, out_features: Value | int, *rest: Any) -> None:
        super().__init__(maximum(in_features), maximum(out_features), *rest)
        self.set_numbers(in_features=in_features, out_features=out_features)

    def settings(self, architecture: Setting) -> _LinearSettings:
        """The active features and where they lie."""
        n_in, n_out = (number_of(value, architecture) for value in self.numbers.values())
        columns, rows = (parts(value, architecture) for value in self.numbers.values())
        return _LinearSettings(n_in, n_out, rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        """(…, active inputs) to (…, active outputs)."""
        check_channels(self, x.shape[-1], self.active.in_features)
        return F.linear(x, *self._in_use())

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Linear:
        """A plain linear layer with copies of the active weights."""
        active = self.settings(architecture)
        sizes = (active.in_features, active.out_features)
        layer = nn.Linear(*sizes, self.bias is not None, device="meta")
        with torch.no_grad():
            weight, bias = self._in_use(active)
        return fill(layer, self, weight=weight, bias=bias)

    def extra_repr(self) -> str:
        """Torch's own line and the active numbers."""
        return f"{super().extra_repr()}, active: {self.active[0]}->{self.active[1]}"


def Conv2d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: Number = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.Conv2d:
    """`nn.Conv2d`, elastic where a number depends on a choice.

    Channels and kernel are ints or values: of a concatenation the leading channels of each part
    run, of a kernel its centre. `groups` is an int (channels are sliced inside each group), or for
    a depthwise convolution the value that `in_channels` is. The padding `half` is kernel // 2 *
    dilation of the active kernel, which keeps the size at stride 1 with odd kernels. `transform`
    is a learned matrix from each kernel size to the next smaller, for all channels, the identity
    at first: parameters such as `matrix_7to5`, 25 x 25. All else is as in torch.

    Raises:
        ValueError: a stride, padding or dilation is a value, a padding an unknown word, kernels
            are odd and even, or channels do not fit the groups.
    """
    return _build(ElasticConv2d, **locals())


def Conv3d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: Number = 1,
    bias: bool = True,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.Conv3d:
    """`nn.Conv3d`, elastic where a number depends on a choice; arguments as of `Conv2d`.

    The matrix of a transform from 7 to 5 is 125 x 125.
    """
    return _build(ElasticConv3d, **locals())


def ConvTranspose2d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    output_padding: Size = 0,
    groups: Number = 1,
    bias: bool = True,
    dilation: Size = 1,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.ConvTranspose2d:
    """`nn.ConvTranspose2d`, elastic where a number depends on a choice; arguments as of `Conv2d`.

    The padding `half` multiplies the size by the stride, with `output_padding=1` where kernel
    minus stride is odd.
    """
    return _build(ElasticConvTranspose2d, **locals())


def ConvTranspose3d(
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    stride: Size = 1,
    padding: Size | str = 0,
    output_padding: Size = 0,
    groups: Number = 1,
    bias: bool = True,
    dilation: Size = 1,
    padding_mode: str = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    *,
    transform: bool = False,
) -> nn.ConvTranspose3d:
    """`nn.ConvTranspose3d`, elastic where a number depends on a choice; see `ConvTranspose2d`."""
    return _build(ElasticConvTranspose3d, **locals())


def Linear(
    in_features: Value | int,
    out_features: Value | int,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Linear:
    """`nn.Linear`, elastic where a number depends on a choice.

    Of a concatenation the leading features of each part are active.
    """
    kind: Any = ElasticLinear if is_elastic((in_features, out_features)) else nn.Linear
    return kind(in_features, out_features, bias, device, dtype)


def _build(
    elastic: type[_Convolution],
    in_channels: Number,
    out_channels: Number,
    kernel_size: Number | tuple[int, ...],
    *,
    transform: bool,
    padding: Size | str,
    **geometry: Any,
) -> Any:
    """The elastic layer, or torch's own where every number is an int; arguments by their names."""
    fixed = (padding, geometry["stride"], geometry["dilation"])
    if is_elastic(itertools.chain.from_iterable(_tuple(number, 1) for number in fixed)):
        raise ValueError("stride, padding and dilation of a convolution cannot be choices")
    if isinstance(padding, str) and padding not in ("half", "same", "valid"):
        raise ValueError(f"padding {padding!r}: choose half, same or valid, or give a number")
    sizes = in_channels, out_channels, kernel_size
    kernels = kernel_size if isinstance(kernel_size, tuple) else ()
    if is_elastic((*sizes, *kernels, geometry["groups"])):
        return elastic(*sizes, transform=transform, padding=padding, **geometry)
    if padding == "half":
        spans = kernel_size, geometry["stride"], geometry["dilation"]
        kernel, stride, dilation = (_tuple(span, elastic.dims) for span in spans)
        padding = _half_padding(kernel, stride, dilation, elastic.transposed)
    return elastic.plain(*sizes, padding=padding, **geometry)


def _half_padding(
    kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], transposed: bool
) -> tuple[int, ...]:
    """Keeps the size at stride 1; a transposed convolution multiplies it by the stride."""
    if transposed:
        spans = (d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
        return tuple(max(0, (k - s + 1) // 2) for k, s in zip(spans, stride, strict=True))
    return tuple(k // 2 * d for k, d in zip(kernel, dilation, strict=True))


def _tuple(size: Any, dims: int) -> tuple[Any, ...]:
    return tuple(size) if isinstance(size, tuple | list) else (size,) * dims


def weight_in_use(layer: nn.Module) -> Tensor:
    """The weight that a convolution, elastic or not, runs with now; gradients reach back."""
    if isinstance(layer, _Convolution):
        return layer.weight_in_use(layer.active)
    weight: Any = layer.weight
    return weight


def SqueezeExcite(channels: Value | int, reduced: Value | int) -> SqueezeExcitation:
    """`SqueezeExcitation` by way of `reduced` channels; only its convolutions are elastic."""
    return SqueezeExcitation(Conv2d(channels, reduced, 1), Conv2d(reduced, channels, 1))
