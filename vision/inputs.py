"""What a network is called with."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

__all__ = ["example_inputs", "input_names", "size_axes"]


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
    forward = getattr(net, "_orig_mod", net).forward  # of what `torch.compile` wraps
    return [
        argument.name
        for argument in inspect.signature(forward).parameters.values()
        if argument.default is argument.empty
        and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    ]


def size_axes(
    net: nn.Module, height: int, width: int, batch: int = 1
) -> tuple[dict[int, str], ...]:
    """For each input of a network its axes that change with the size of images, and their names."""
    small = example_inputs(net, height, width, batch=batch, device="meta")
    large = example_inputs(net, 2 * height, 3 * width, batch=batch, device="meta")
    known = {(height, 2 * height): "height", (width, 3 * width): "width"}
    return tuple(
        {
            axis: known.get(lengths, f"{name}_{axis}")
            for axis, lengths in enumerate(zip(a.shape, b.shape, strict=True))
            if lengths[0] != lengths[1]
        }
        for name, a, b in zip(input_names(net), small, large, strict=True)
    )
