"""Batch normalisation, elastic or not, by the statistics of all processes' samples."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins import LayerSync
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...elastic.base import ElasticModule, put, take

__all__ = ["SyncedBatchNorm"]


class SyncedBatchNorm(LayerSync):
    """Lets batch normalisations train as if one process had the batches of all.

    Unlike PyTorch's `SyncBatchNorm` also on a CPU, and where channels are chosen.
    """

    def apply(self, model: nn.Module) -> nn.Module:
        """Let every batch normalisation of the network see all processes; in place."""
        for module in model.modules():
            if isinstance(module, _BatchNorm) and not isinstance(module, _Synced):
                module.__class__ = _synced(type(module))
        return model

    def revert(self, model: nn.Module) -> nn.Module:
        """Give every batch normalisation its own class back."""
        for module in model.modules():
            if isinstance(module, _Synced):
                module.__class__ = type(module).alone
        return model


class _Synced(_BatchNorm):
    alone: type[Any]
    weight: nn.Parameter
    bias: nn.Parameter
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or dist.get_world_size() == 1:
            return super().forward(x)
        self._check_input_dim(x)
        where = self.active.where if isinstance(self, ElasticModule) else ((0, self.num_features),)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = wide.new_full((1,), x.numel() / x.shape[1])
        # Deviations from the mean in a second message: squares alone would lose small variances.
        total = _Sum.apply(torch.cat([wide.sum(dims), count]))
        if x.numel() <= x.shape[1] and total[-1] < 2:
            raise ValueError(
                f"batch normalisation of {tuple(x.shape)} in training, and no more in the other "
                "processes: it needs more than one value for each channel; make batches larger"
            )
        mean, size = total[:-1] / total[-1], total[-1].detach()
        shape = [1, -1] + [1] * (x.dim() - 2)
        centred = wide - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(dims)) / size
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            weight, bias = take(self.weight, 0, where), take(self.bias, 0, where)
            y = y * weight.view(shape) + bias.view(shape)
        if self.track_running_stats:
            steps = self.num_batches_tracked.add_(1)
            share = 1.0 / float(steps) if self.momentum is None else self.momentum
            moments = mean.detach(), variance.detach() * size / (size - 1)
            for kept, new in zip((self.running_mean, self.running_var), moments, strict=True):
                put(kept, where, torch.lerp(take(kept, 0, where), new.to(kept.dtype), share))
        return y.to(x.dtype)


class _Sum(torch.autograd.Function):
    """The sum over processes, whose gradient is the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.apply(gradient)


_KINDS: dict[type, type] = {}


def _synced(kind: type[_BatchNorm]) -> type:
    if kind not in _KINDS:
        _KINDS[kind] = type(f"Synced{kind.__name__}", (_Synced, kind), {"alone": kind})
    return _KINDS[kind]
