"""Linear layers whose features depend on choices."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..values import Value, maximum
from .base import (
    Axis,
    Copies,
    ElasticModule,
    Part,
    Setting,
    check_channels,
    fill,
    number_of,
    parts,
    take,
)

__all__ = ["ElasticLinear", "Linear"]


class _LinearSettings(NamedTuple):
    """What is active of a linear layer."""

    in_features: int
    out_features: int
    rows: tuple[Part, ...]
    columns: tuple[Part, ...]


class ElasticLinear(ElasticModule, nn.Linear):
    """What `Linear` returns where a number depends on a choice."""

    def __init__(self, in_features: Value | int, out_features: Value | int, *rest: Any) -> None:
        super().__init__(maximum(in_features), maximum(out_features), *rest)
        self.set_numbers(in_features=in_features, out_features=out_features)

    def settings(self, architecture: Setting) -> _LinearSettings:
        """The active features and where they lie."""
        numbers = self.numbers["in_features"], self.numbers["out_features"]
        n_in, n_out = (number_of(value, architecture) for value in numbers)
        columns, rows = (parts(value, architecture) for value in numbers)
        return _LinearSettings(n_in, n_out, rows, columns)

    def _in_use(self, active: _LinearSettings) -> tuple[Tensor, Tensor | None]:
        # Contiguous, so that the product is computed alike here and in the extracted layer.
        weight = take(take(self.weight, 0, active.rows), 1, active.columns).contiguous()
        return weight, None if self.bias is None else take(self.bias, 0, active.rows)

    def forward(self, x: Tensor) -> Tensor:
        """(…, active inputs) to (…, active outputs)."""
        check_channels(self, x.shape[-1], self.active.in_features)
        return F.linear(x, *self._in_use(self.active))

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Linear:
        """A plain linear layer with copies of the active weights."""
        active = self.settings(architecture)
        sizes = (active.in_features, active.out_features)
        layer = nn.Linear(*sizes, self.bias is not None, device="meta")
        with torch.no_grad():
            weight, bias = self._in_use(active)
        return fill(layer, self, weight=weight, bias=bias)

    def axes(self) -> tuple[Axis, ...]:
        """Rows are written, columns are read."""
        reads, writes = self.numbers["in_features"], self.numbers["out_features"]
        bias = () if self.bias is None else (Axis("bias", 0, writes, "writes"),)
        return Axis("weight", 0, writes, "writes"), Axis("weight", 1, reads, "reads"), *bias

    def extra_repr(self) -> str:
        """Torch's own line and the active numbers."""
        return f"{super().extra_repr()}, active: {self.active[0]}->{self.active[1]}"


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
    if isinstance(in_features, Value) or isinstance(out_features, Value):
        return ElasticLinear(in_features, out_features, bias, device, dtype)
    return nn.Linear(in_features, out_features, bias, device, dtype)
