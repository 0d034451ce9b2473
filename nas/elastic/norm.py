"""Normalisations whose channels depend on choices: leading entries of one set of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..values import Value, maximum
from .base import Axis, Setting, check_channels, number_of, parts
from .sliced import Sliced, Slices

__all__ = ["BatchNorm2d", "BatchNorm3d", "ElasticBatchNorm2d", "ElasticBatchNorm3d"]
__all__ += ["ElasticGroupNorm", "ElasticLayerNorm", "GroupNorm", "LayerNorm"]

_TENSORS = ("weight", "bias", "running_mean", "running_var")


class _ElasticNorm(Sliced):
    dim = 1  #: of the input, along which its channels lie

    def settings(self, architecture: Setting) -> Slices:
        (number,) = self.numbers.values()
        channels, where = number_of(number, architecture), ((0, parts(number, architecture)),)
        held = (name for name in _TENSORS if getattr(self, name, None) is not None)
        return Slices(dict.fromkeys(held, where), self._sizes(channels), channels)

    def _sizes(self, channels: int) -> dict[str, Any]:
        """The attributes that depend on the number of channels."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        check_channels(self, x.shape[self.dim], self.active.channels)
        return super().forward(x)

    def axes(self) -> tuple[Axis, ...]:
        (number,) = self.numbers.values()
        return tuple(Axis(name, 0, number, "keeps") for name in self.active.tensors)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, active: {self.active.channels}"


class _ElasticBatchNorm(_ElasticNorm, _BatchNorm):
    def __init__(self, num_features: Value, *rest: Any) -> None:
        super().__init__(maximum(num_features), *rest)
        self.set_numbers(num_features=num_features)

    def _sizes(self, channels: int) -> dict[str, Any]:
        return {"num_features": channels}


class ElasticBatchNorm2d(_ElasticBatchNorm, nn.BatchNorm2d):
    """What `BatchNorm2d` returns where its channels depend on a choice."""

    plain = nn.BatchNorm2d


class ElasticBatchNorm3d(_ElasticBatchNorm, nn.BatchNorm3d):
    """What `BatchNorm3d` returns where its channels depend on a choice."""

    plain = nn.BatchNorm3d


class ElasticGroupNorm(_ElasticNorm, nn.GroupNorm):
    """What `GroupNorm` returns where its channels depend on a choice."""

    plain = nn.GroupNorm

    def __init__(self, num_groups: int, num_channels: Value, *rest: Any) -> None:
        super().__init__(num_groups, maximum(num_channels), *rest)
        self.set_numbers(num_channels=num_channels)

    def _sizes(self, channels: int) -> dict[str, Any]:
        width = self.num_channels // self.num_groups
        if channels % width:
            raise ValueError(
                f"{channels} channels are no multiple of the group width {width} "
                f"({self.num_channels} channels in {self.num_groups} groups)"
            )
        return {"num_groups": channels // width, "num_channels": channels}

    def axes(self) -> tuple[Axis, ...]:
        """None, since a channel that changed its group would be normalised otherwise."""
        return ()


class ElasticLayerNorm(_ElasticNorm, nn.LayerNorm):
    """What `LayerNorm` returns where its width depends on a choice."""

    plain, dim = nn.LayerNorm, -1

    def __init__(self, normalized_shape: Value, *rest: Any) -> None:
        super().__init__(maximum(normalized_shape), *rest)
        self.set_numbers(normalized_shape=normalized_shape)

    def _sizes(self, channels: int) -> dict[str, Any]:
        return {"normalized_shape": (channels,)}


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
    rest = (eps, momentum, affine, track_running_stats, device, dtype)
    if isinstance(num_features, Value):
        return ElasticBatchNorm2d(num_features, *rest)
    return nn.BatchNorm2d(num_features, *rest)


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
    rest = (eps, momentum, affine, track_running_stats, device, dtype)
    if isinstance(num_features, Value):
        return ElasticBatchNorm3d(num_features, *rest)
    return nn.BatchNorm3d(num_features, *rest)


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
    if isinstance(num_channels, Value):
        return ElasticGroupNorm(num_groups, num_channels, eps, affine, device, dtype)
    return nn.GroupNorm(num_groups, num_channels, eps, affine, device, dtype)


def LayerNorm(
    normalized_shape: Value | int | list[int] | tuple[int, ...],
    eps: float = 1e-5,
    elementwise_affine: bool = True,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.LayerNorm:
    """`nn.LayerNorm`, elastic where the size of the last dimension depends on a choice."""
    rest = (eps, elementwise_affine, bias, device, dtype)
    if isinstance(normalized_shape, Value):
        return ElasticLayerNorm(normalized_shape, *rest)
    return nn.LayerNorm(normalized_shape, *rest)
