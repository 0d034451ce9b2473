"""Training in bfloat16 on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.hooks import RemovableHandle

__all__ = ["RightGradients"]


class RightGradients(Callback):
    """Keeps gradients right while a task is trained in bfloat16 on a CPU, and not after."""

    def __init__(self) -> None:
        self._hooks: list[RemovableHandle] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the hooks, where the precision asks for them."""
        if pl_module.device.type == "cpu" and "bf16" in str(trainer.precision):
            self._hooks = _keep_gradients_right(pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove them."""
        for hook in self._hooks:
            hook.remove()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove them."""
        self.on_fit_end(trainer, pl_module)


def _keep_gradients_right(net: nn.Module) -> list[RemovableHandle]:
    """Let dilated convolutions have right gradients in bfloat16 on a CPU, whatever their layout.

    oneDNN (3.13, that of torch 2.15) gives wrong ones of their weights, or none that are finite,
    where images are channels-last and channels in groups, or in no multiple of 16.

    Returns:
        The hooks that it sets.
    """
    hooks = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and max(module.dilation) > 1:
            if _contiguous in module._forward_pre_hooks.values():
                continue
            # A channels-last weight would make images so again.
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.clone(memory_format=torch.contiguous_format)
            hooks.append(module.register_forward_pre_hook(_contiguous))
    return hooks


def _contiguous(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    image, *others = inputs
    fits = module.groups == 1 and image.shape[1] % 16 == 0
    return None if fits else (image.contiguous(), *others)
