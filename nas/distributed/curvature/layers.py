"""Layers as second-order methods see them: a matrix of weights, its inputs, its outputs' gradients.

Layers are `nn.Linear`, `nn.Conv2d` and `nn.Conv3d`. The gradient of one is a matrix, outputs by
inputs, with a last column for the bias: the sum of outer products of b, the gradients of its
outputs, and a, its inputs (of a convolution: the patches under the kernel).
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

__all__ = ["Layer", "layers_of"]

_ENTRIES = 2**22  #: of the patches that are unfolded at a time


class Layer:
    """A layer whose gradient is preconditioned."""

    def __init__(self, name: str, index: int, module: nn.Linear | nn.Conv2d | nn.Conv3d) -> None:
        self.name = name
        self.index = index  #: among the layers
        self.module = module
        self.outputs = module.weight.shape[0]  #: rows of its gradient
        #: columns, one for the bias included
        self.inputs = module.weight[0].numel() + (module.bias is not None)

    def gradient(self, dtype: torch.dtype) -> Tensor:
        """The gradient as a matrix (outputs, inputs)."""
        weight, bias = cast("Tensor", self.module.weight.grad).flatten(1), self.module.bias
        if bias is not None:
            column = torch.zeros_like(bias) if bias.grad is None else bias.grad
            weight = torch.cat([weight, column[:, None]], 1)
        return weight.to(dtype)

    def parts(self, matrix: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The parameters that have a gradient, and what of a matrix is theirs, in their shape."""
        weight, bias = self.module.weight, self.module.bias
        columns = weight[0].numel()
        yield weight, matrix[:, :columns].view_as(weight)
        if bias is not None and bias.grad is not None:
            yield bias, matrix[:, columns]

    def mean_input(self, x: Tensor) -> Tensor:
        """The mean of a (inputs,) over a batch and positions."""
        if isinstance(self.module, nn.Linear):
            mean = x.reshape(-1, x.shape[-1]).mean(0)
        else:
            mean = self._padded(self._batch(x).mean(0, keepdim=True))
            for dim in range(self.module.weight.dim() - 2):  # one after the other: fewer to read
                mean = self._windows(mean, 2, dim).mean(2)
            mean = mean.flatten()
        return mean if self.module.bias is None else torch.cat([mean, mean.new_ones(1)])

    def input_moment(self, x: Tensor) -> Tensor:
        """The mean of a a^T (inputs, inputs) over a batch and positions."""
        linear = isinstance(self.module, nn.Linear)
        batches = [x.reshape(-1, x.shape[-1])] if linear else self._rows(self._batch(x))
        total, count = x.new_zeros(self.inputs, self.inputs), 0
        for rows in batches:
            if self.module.bias is not None:
                rows = F.pad(rows, (0, 1), value=1.0)
            total, count = total + rows.T @ rows, count + len(rows)
        return total / count

    def output_rows(self, gradient: Tensor) -> Tensor:
        """The gradients of outputs b, a row for each sample and position."""
        if not isinstance(self.module, nn.Linear):
            gradient = self._batch(gradient).movedim(1, -1)
        return gradient.reshape(-1, self.outputs)

    def _batch(self, x: Tensor) -> Tensor:
        return x if x.dim() == self.module.weight.dim() else x[None]

    def _rows(self, x: Tensor) -> Iterator[Tensor]:
        """What lies under the kernel, a row for each position; some samples at a time."""
        dims = range(2, x.dim())
        for part in x.split(max(1, _ENTRIES // (self.inputs * x[0, 0].numel()))):
            patches = self._padded(part)
            for dim in dims:  # a view (B, C, positions, kernel)
                patches = self._windows(patches, dim, dim - 2)
            order = (0, *dims, 1, *(dim + len(dims) for dim in dims))
            yield patches.permute(order).reshape(-1, self.module.weight[0].numel())

    def _windows(self, x: Tensor, where: int, dim: int) -> Tensor:
        """Splits one dimension into positions, in its place, and the kernel's, at the end."""
        module = cast("_ConvNd", self.module)
        dilation = module.dilation[dim]
        size = dilation * (module.kernel_size[dim] - 1) + 1
        return x.unfold(where, size, module.stride[dim])[..., ::dilation]

    def _padded(self, x: Tensor) -> Tensor:
        module = cast("_ConvNd", self.module)
        pads = module._reversed_padding_repeated_twice  # as its own forward pass takes it
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        return F.pad(x, tuple(pads), mode) if any(pads) else x


def layers_of(net: nn.Module) -> list[Layer]:
    """The layers of a network that can be preconditioned, in order.

    Left out are grouped and transposed convolutions, subclasses, since these may use their weights
    in another way, and layers that share a weight.
    """
    uses = collections.Counter(id(p) for m in net.modules() for p in m.parameters(recurse=False))
    layers: list[Layer] = []
    for name, module in net.named_modules():
        plain = type(module) in (nn.Linear, nn.Conv2d, nn.Conv3d)
        if plain and getattr(module, "groups", 1) == 1 and uses[id(module.weight)] == 1:
            layers.append(Layer(name, len(layers), module))
    return layers
