"""Normalisations whose channels depend on choices: leading entries of one set of weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

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
    put,
    take,
)

__all__ = ["BatchNorm2d", "BatchNorm3d", "ElasticBatchNorm2d", "ElasticBatchNorm3d"]
__all__ += ["ElasticGroupNorm", "ElasticLayerNorm", "GroupNorm", "LayerNorm"]

_TENSORS = ("weight", "bias", "running_mean", "running_var")


class _NormSettings(NamedTuple):
    channels: int
    where: tuple[Part, ...]


class _ElasticNorm(ElasticModule):
    def settings(self, architecture: Setting) -> _NormSettings:
        (number,) = self.numbers.values()
        return _NormSettings(number_of(number, architecture), parts(number, architecture))

    def _in_use(self, active: _NormSettings) -> dict[str, Tensor | None]:
        tensors = {name: getattr(self, name, None) for name in _TENSORS}
        return {n: None if t is None else take(t, 0, active.where) for n, t in tensors.items()}

    def axes(self) -> tuple[Axis, ...]:
        (number,) = self.numbers.values()
        held = (name for name in _TENSORS if getattr(self, name, None) is not None)
        return tuple(Axis(name, 0, number, "keeps") for name in held)

    def _plain(self, active: _NormSettings) -> nn.Module:
        """Torch's own layer of the active size, on the meta device."""
        raise NotImplementedError

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Module:
        active = self.settings(architecture)
        return fill(self._plain(active), self, **self._in_use(active))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, active: {self.active.channels}"


class _ElasticBatchNorm(_ElasticNorm, _BatchNorm):
    plain: type[_BatchNorm]

    def __init__(self, num_features: Value, *rest: Any) -> None:
        super().__init__(maximum(num_features), *rest)
        self.set_numbers(num_features=num_features)

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        check_channels(self, x.shape[1], self.active.channels)
        tracked = self.training and self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        used = self._in_use(self.active)
        mean, var = used["running_mean"], used["running_var"]
        by_batch = self.training or mean is None
        kept = (mean, var) if not self.training or self.track_running_stats else (None, None)
        y = F.batch_norm(x, *kept, used["weight"], used["bias"], by_batch, momentum, self.eps)
        if tracked and len(self.active.where) > 1:  # one part is a view, and updated already
            for name in ("running_mean", "running_var"):
                if (new := used[name]) is not None:
                    put(getattr(self, name), self.active.where, new)
        return y

    def _plain(self, active: _NormSettings) -> _BatchNorm:
        rest = (self.eps, self.momentum, self.affine, self.track_running_stats)
        return self.plain(active.channels, *rest, device="meta")

    def export(self, architecture: Setting, copies: Copies = None) -> nn.Module:
        layer = super().export(architecture)
        return fill(layer, self, num_batches_tracked=self.num_batches_tracked)


class ElasticBatchNorm2d(_ElasticBatchNorm, nn.BatchNorm2d):
    """What `BatchNorm2d` returns where its channels depend on a choice."""

    plain = nn.BatchNorm2d


class ElasticBatchNorm3d(_ElasticBatchNorm, nn.BatchNorm3d):
    """What `BatchNorm3d` returns where its channels depend on a choice."""

    plain = nn.BatchNorm3d


class ElasticGroupNorm(_ElasticNorm, nn.GroupNorm):
    """What `GroupNorm` returns where its channels depend on a choice."""

    def __init__(self, num_groups: int, num_channels: Value, *rest: Any) -> None:
        super().__init__(num_groups, maximum(num_channels), *rest)
        self.set_numbers(num_channels=num_channels)

    def settings(self, architecture: Setting) -> _NormSettings:
        """The active channels, which have to be whole groups."""
        active = super().settings(architecture)
        width = self.num_channels // self.num_groups
        if active.channels % width:
            raise ValueError(
                f"{active.channels} channels are no multiple of the group width {width} "
                f"({self.num_channels} channels in {self.num_groups} groups)"
            )
        return active

    def _groups(self, active: _NormSettings) -> int:
        return active.channels * self.num_groups // self.num_channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, …) of the active channels, each group normalised by itself."""
        check_channels(self, x.shape[1], self.active.channels)
        used = self._in_use(self.active)
        return F.group_norm(x, self._groups(self.active), used["weight"], used["bias"], self.eps)

    def _plain(self, active: _NormSettings) -> nn.GroupNorm:
        sizes = (self._groups(active), active.channels)
        return nn.GroupNorm(*sizes, self.eps, self.affine, device="meta")

    def axes(self) -> tuple[Axis, ...]:
        """None, since a channel that changed its group would be normalised otherwise."""
        return ()


class ElasticLayerNorm(_ElasticNorm, nn.LayerNorm):
    """What `LayerNorm` returns where its width depends on a choice."""

    def __init__(self, normalized_shape: Value, *rest: Any) -> None:
        super().__init__(maximum(normalized_shape), *rest)
        self.set_numbers(normalized_shape=normalized_shape)

    def forward(self, x: Tensor) -> Tensor:
        """(…, C) of the active width, normalised over it."""
        check_channels(self, x.shape[-1], self.active.channels)
        used = self._in_use(self.active)
        return F.layer_norm(x, (self.active.channels,), used["weight"], used["bias"], self.eps)

    def _plain(self, active: _NormSettings) -> nn.LayerNorm:
        flags = (self.eps, self.elementwise_affine, self.bias is not None)
        return nn.LayerNorm(active.channels, *flags, device="meta")


def BatchNorm2d(
    num_features: Value | int,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
    affine: bool = True,
    track_running_stats: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.BatchNorm2d:
    """`nn.BatchNorm2d`, elastic where `num_features` depends on a choice.

    The active entries of the one set of running statistics are used, and updated in training.
    """
    kind: Any = ElasticBatchNorm2d if isinstance(num_features, Value) else nn.BatchNorm2d
    return kind(num_features, eps, momentum, affine, track_running_stats, device, dtype)


def BatchNorm3d(
    num_features: Value | int,
    eps: float = 1e-5,
    momentum: float | None = 0.1,
    affine: bool = True,
    track_running_stats: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.BatchNorm3d:
    """`nn.BatchNorm3d`, elastic where `num_features` depends on a choice; see `BatchNorm2d`."""
    kind: Any = ElasticBatchNorm3d if isinstance(num_features, Value) else nn.BatchNorm3d
    return kind(num_features, eps, momentum, affine, track_running_stats, device, dtype)


def GroupNorm(
    num_groups: int,
    num_channels: Value | int,
    eps: float = 1e-5,
    affine: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.GroupNorm:
    """`nn.GroupNorm`, elastic where `num_channels` depends on a choice.

    There are `num_groups` of the largest number of channels; the width of a group stays as it is
    then, so that fewer channels, a multiple of that width, are fewer groups.
    """
    kind: Any = ElasticGroupNorm if isinstance(num_channels, Value) else nn.GroupNorm
    return kind(num_groups, num_channels, eps, affine, device, dtype)


def LayerNorm(
    normalized_shape: Value | int | list[int] | tuple[int, ...],
    eps: float = 1e-5,
    elementwise_affine: bool = True,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.LayerNorm:
    """`nn.LayerNorm`, elastic where the size of the last dimension depends on a choice."""
    kind: Any = ElasticLayerNorm if isinstance(normalized_shape, Value) else nn.LayerNorm
    return kind(normalized_shape, eps, elementwise_affine, bias, device, dtype)
