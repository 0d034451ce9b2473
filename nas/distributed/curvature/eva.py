"""Eva: second-order steps from two vectors a layer.

Source: Zhang et al., "Eva: Practical Second-order Optimization with Kronecker-vectorized
Approximation", ICLR 2023 (arXiv 2308.02123). The curvature of a layer is the outer product of two
running means: of its inputs a and of the gradients of its outputs b. Its inverse is in closed form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .layers import Layer
from .second_order import Preconditioner

__all__ = ["Eva"]


class Eva(Preconditioner):
    """Preconditions the gradients of linear and convolutional layers by Eva, in every step.

    A callback of any training but a supernet's: `trainer.callbacks`. The inputs of a convolution
    are patches, averaged over the batch and positions. On several processes all (a, b) travel in
    one message a step, a few floats for each channel; every process preconditions all layers.

    What `Preconditioner` leaves out keeps its gradient. The running means go into checkpoints.

    Args:
        damping: gamma of the paper; see `Preconditioner`, as for all.
        kl_clip: kappa of the paper.
        momentum: weight of the new in the running means; the first step's is 1.
    """

    def entries(self, layer: Layer) -> tuple[int, int]:
        """Lengths of the mean input and of the mean gradient of an output."""
        return layer.inputs, layer.outputs

    def observe(self, layer: Layer, x: Tensor) -> Tensor:
        """The mean input, (inputs,)."""
        return layer.mean_input(x)

    def respond(self, layer: Layer, gradient: Tensor) -> Tensor:
        """The mean gradient of an output, (outputs,)."""
        return layer.output_rows(gradient).mean(0)

    def start(self, state: dict[str, Any]) -> None:
        """Lay the running means of all layers out in one vector."""
        sizes = [sum(self.entries(layer)) for layer in self.layers]
        self._sizes = torch.tensor(sizes, device=self.device)
        self._known = torch.zeros(len(sizes), dtype=torch.bool, device=self.device)
        self._means = torch.zeros(sum(sizes), dtype=self.dtype, device=self.device)
        self._parts = [
            part.split(self.entries(layer))
            for layer, part in zip(self.layers, self._means.split(sizes), strict=True)
        ]
        for layer in self.layers:
            if layer.name in state:
                self._known[layer.index] = True
                for kept, value in zip(self._parts[layer.index], state[layer.name], strict=True):
                    kept.copy_(value)

    def update(self) -> None:
        """Average what the processes saw, and move the running means towards it."""
        total, count = self.message(self.layers, shared=True)
        present = count > 0
        share = torch.where(self._known, self.momentum, 1.0) * present
        share, count = (
            each.repeat_interleave(self._sizes, output_size=len(total))
            for each in (share.to(self.dtype), count.clamp(min=1))
        )
        self._means.lerp_(total / count, share)
        self._known |= present

    def vectors(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """The running means a (inputs,) and b (outputs,) of a layer."""
        return self._parts[layer.index]

    def precondition(self, layers: list[Layer], gradients: list[Tensor]) -> list[Tensor]:
        """Each gradient (outputs, inputs) with its layer's rank-one curvature taken out."""
        return [
            _eva_gradient(gradient, *self.vectors(layer), self.damping)
            for layer, gradient in zip(layers, gradients, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The running means (a, b) by layer."""
        if self._known is None:  # before the start
            return self._resumed
        known = self._known.tolist()
        return {
            layer.name: tuple(v.cpu().clone() for v in self.vectors(layer))
            for layer in self.layers
            if known[layer.index]
        }


def _eva_gradient(gradient: Tensor, a: Tensor, b: Tensor, damping: float) -> Tensor:
    """(b b^T (x) a a^T + damping I)^-1 applied to a gradient, by Sherman and Morrison.

    The gradient is (outputs, inputs), a (inputs,) and b (outputs,).
    """
    share = (b @ gradient @ a) / (damping + a.dot(a) * b.dot(b))
    return torch.addr(gradient, share * b, a, alpha=-1.0) / damping
