"""What a network costs: parameters and multiply-adds."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["count_macs", "count_parameters", "example_inputs", "input_names"]


def count_parameters(net: nn.Module) -> int:
    """Number of parameter values; buffers such as running means do not count."""
    return sum(parameter.numel() for parameter in net.parameters())


def count_macs(net: nn.Module, *inputs: Tensor) -> int:
    """Multiply-adds of one forward pass of all convolutions and matrix products.

    A transposed convolution counts its input positions times its kernel weights. Operators of
    `vision.ops`, activations and normalisations are left out. On the meta device nothing is
    computed, so that a large network costs no more than a small one.

    Args:
        net: called as ``net(*inputs)``, in evaluation mode.
        *inputs: tensors on the network's device.
    """
    training = net.training
    net.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            net(*inputs)
    finally:
        net.train(training)
    return counter.get_total_flops() // 2


def example_inputs(
    net: nn.Module,
    height: int,
    width: int,
    *,
    batch: int = 1,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Random arguments for a network's ``forward``.

    They are images (batch, 3, height, width) in [0, 1], as many as `input_names`. A network that
    takes anything else has a method ``example_inputs`` of this signature, without ``net``, whose
    tensors grow with height and width where the network allows other sizes.
    """
    own = getattr(net, "example_inputs", None)
    if own is not None:
        return tuple(own(height, width, batch=batch, device=device, dtype=dtype))
    shape = (batch, 3, height, width)
    return tuple(torch.rand(shape, device=device, dtype=dtype) for _ in input_names(net))


def input_names(net: nn.Module) -> list[str]:
    """Names of the arguments of ``forward`` that have no default.

    A network whose ``example_inputs`` are more than these lists them as ``input_names``.
    """
    own = getattr(net, "input_names", None)
    if own is not None:
        return list(own)
    return [
        argument.name
        for argument in inspect.signature(net.forward).parameters.values()
        if argument.default is argument.empty
        and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    ]
