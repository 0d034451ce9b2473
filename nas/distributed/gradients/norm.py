"""Batch normalisation, elastic or not, by the statistics of all processes' samples."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins import LayerSync
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

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

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or dist.get_world_size() == 1:
            return super().forward(x)
        with _Together():  # the class may do more, such as an activation
            if isinstance(self, nn.SyncBatchNorm):  # which does the same, but on GPUs alone
                return _BatchNorm.forward(self, x)
            return super().forward(x)


class _Together(TorchFunctionMode):
    """Within it batches are normalised by the statistics of all processes' samples."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {} if kwargs is None else kwargs
        if func is F.batch_norm and given["training"]:
            return _batch_norm(*args, **given)
        return func(*args, **given)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
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
    y = centred * (variance + eps).rsqrt().view(shape)
    if weight is not None:
        y = y * weight.view(shape)
    if bias is not None:
        y = y + bias.view(shape)
    if running_mean is not None and running_var is not None:
        moments = mean.detach(), variance.detach() * size / (size - 1)
        for kept, new in zip((running_mean, running_var), moments, strict=True):
            kept.lerp_(new.to(kept.dtype), momentum)
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
