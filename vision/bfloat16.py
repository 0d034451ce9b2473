"""Training in bfloat16 on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["keep_gradients_right"]


def keep_gradients_right(net: nn.Module) -> None:
    """Let dilated convolutions have right gradients in bfloat16 on a CPU, whatever their layout.

    oneDNN (3.13, that of torch 2.15) gives wrong ones of their weights, or none that are finite,
    where images are channels-last and channels in groups, or in no multiple of 16.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and max(module.dilation) > 1:
            if _contiguous in module._forward_pre_hooks.values():
                continue
            # A channels-last weight would make images so again.
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.clone(memory_format=torch.contiguous_format)
            module.register_forward_pre_hook(_contiguous)


def _contiguous(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    image, *others = inputs
    fits = module.groups == 1 and image.shape[1] % 16 == 0
    return None if fits else (image.contiguous(), *others)
