"""Whether an exported file predicts what the network does, and holds no more than it needs."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

__all__ = ["Check", "Trial", "check_bytes", "stored_bytes", "tensors", "weight_bytes"]

_TOLERANCE = 1e-4
"""Of the largest value: what another order of summation may change."""

_AMPLIFICATION = 30
"""Times what one rounding of the inputs changes: what all layers' roundings may."""

_SLACK = 2 << 20
"""Bytes that a file may have beside the weights, however few those are."""


@dataclass(frozen=True)
class Check:
    """One comparison of a file with the network that it was made of.

    Attributes:
        shapes: of the inputs.
        maximum: largest difference of an output value.
        mean: of all differences, without their signs.
        scale: largest output value, without its sign.
        allowed: what `maximum` had to keep to.
    """

    shapes: tuple[tuple[int, ...], ...]
    maximum: float
    mean: float
    scale: float
    allowed: float


@dataclass(frozen=True)
class Trial:
    """Inputs, what the network makes of them, and how much of that is rounding."""

    inputs: tuple[Tensor, ...]
    output: Any
    rounding: float

    @classmethod
    def run(cls, net: nn.Module, inputs: tuple[Tensor, ...]) -> Trial:
        """Run the network, and once more on inputs moved by a rounding.

        Raises:
            ValueError: it does not take them, or predicts values that are not finite.
        """
        output = net(*inputs)
        wanted = tensors(output)
        if not all(x.isfinite().all() for x in wanted):
            raise ValueError("the network predicts values that are not finite in PyTorch already")
        moved = tensors(net(*map(_moved, inputs)))
        return cls(inputs, output, max(map(_largest, moved, wanted)))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the inputs."""
        return tuple(tuple(x.shape) for x in self.inputs)

    def compare(self, output: Any, what: str) -> Check:
        """Compare with what a file made of the inputs; an error calls the file `what`.

        Raises:
            ValueError: other shapes, or values too far off.
        """
        given, wanted = tensors(output), tensors(self.output)
        at = ", ".join(dict.fromkeys("x".join(map(str, shape)) for shape in self.shapes))
        if [x.shape for x in given] != [x.shape for x in wanted]:
            raise ValueError(
                f"{what}: for inputs of {at} its outputs have shapes {_shapes(given)} instead of "
                f"{_shapes(wanted)}; nothing was written"
            )
        scale = max(float(x.abs().max()) if x.numel() else 0.0 for x in wanted)
        precision = max(_precision(x.dtype) for x in (*self.inputs, *wanted))
        allowed = max(_TOLERANCE, 16 * precision) * scale + _AMPLIFICATION * self.rounding
        maximum = max(map(_largest, given, wanted))
        values = sum(x.numel() for x in wanted)
        mean = sum(map(_sum, given, wanted)) / max(1, values)
        if not maximum <= allowed:
            raise ValueError(
                f"{what}: for inputs of {at} it differs from PyTorch by up to {maximum:.3g}, on "
                f"average {mean:.3g}, where {allowed:.3g} is allowed; nothing was written"
            )
        return Check(self.shapes, maximum, mean, scale, allowed)


def check_bytes(net: nn.Module, size: int, per_tensor: int, what: str) -> None:
    """Refuse a file whose `stored_bytes` are more than the network's; an error calls it `what`.

    Raises:
        ValueError: larger than the weights, 2 MiB, and `per_tensor` for each tensor.
    """
    need = weight_bytes(net)
    slack = _SLACK + per_tensor * len(_owned(net))
    if size > need + slack:
        raise ValueError(
            f"{what}: it would have {size:,} bytes, but the network {need:,} bytes of weights "
            f"(and {slack:,} are allowed beside them), so it holds something else too; nothing "
            "was written"
        )


def stored_bytes(path: Path) -> int:
    """Bytes of a file, without a graph that it spells out as JSON.

    An exported program with symbolic sizes spells out every node's, in more bytes than a small
    network has.
    """
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(e.file_size for e in archive.infolist() if not e.filename.endswith(".json"))


def weight_bytes(net: nn.Module) -> int:
    """Bytes of the parameters and buffers."""
    return sum(x.numel() * x.element_size() for x in _owned(net))


def tensors(output: Any) -> list[Tensor]:
    """The tensors in what a network returns, on the CPU."""
    leaves = _pytree.tree_leaves(output)
    return [leaf.detach().cpu() for leaf in leaves if isinstance(leaf, Tensor)]


def _owned(net: nn.Module) -> list[Tensor]:
    return [*net.parameters(), *net.buffers()]


def _moved(x: Tensor) -> Tensor:
    """Every value moved by about the distance to the next, up or down."""
    if not x.is_floating_point():
        return x
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return x + x * signs.to(x) * _precision(x.dtype)


def _precision(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _largest(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _sum(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().sum())


def _shapes(outputs: Sequence[Tensor]) -> str:
    return ", ".join("x".join(map(str, x.shape)) for x in outputs)
