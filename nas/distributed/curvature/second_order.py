"""What second-order preconditioners share: what layers saw, and gradients changed by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from ....common.ranks import rank_and_size
from ...training.task import SupernetTask
from .layers import Layer, layers_of

__all__ = ["Preconditioner"]


class Preconditioner(Callback):
    """Changes the gradients of layers by their curvature, before clipping and the optimiser.

    Layers are those of `layers_of`; grouped and transposed convolutions, normalisations, embeddings
    and other parameters keep their gradients, and so does a layer that has not been used yet. On
    several processes gradients have to be whole and averaged: any `DDPStrategy`.

    Args:
        damping: added to the curvature. Gradients of outputs are of the mean loss of a process's
            batch, so that this is relative to its size.
        kl_clip: bound on the sum of squared learning rate times p g over all layers, where p is
            the preconditioned gradient and g the gradient; 0 gives p the length of g instead.
        momentum: weight of the new in running averages, which start with the first.

    Raises:
        ValueError: a setting is out of its range; in `setup` and at the start also a network, a
            strategy or optimisers that this does not work with.
    """

    layers: list[Layer] = []
    step = 0
    degree = 1
    """To which power of b `respond` is."""
    _known: Any = None  # of each layer, once started: a list, or a tensor for which nobody waits

    def __init__(
        self, damping: float = 0.03, kl_clip: float = 0.001, momentum: float = 0.95
    ) -> None:
        if not (damping > 0 and kl_clip >= 0 and 0 < momentum <= 1):
            raise ValueError(
                f"damping {damping}, kl_clip {kl_clip}, momentum {momentum}: the first must be "
                "more than 0, the second at least 0, the third more than 0 and at most 1"
            )
        self.damping = damping
        self.kl_clip = kl_clip
        self.momentum = momentum
        self._seen: dict[Layer, tuple[Any, Any, int]] = {}
        self._handles: list[Any] = []
        self._watching = False
        self._resumed: dict[str, Any] = {}

    def observe(self, layer: Layer, x: Tensor) -> Tensor | None:
        """What to keep of a layer's inputs, as a vector; None if this process keeps nothing."""
        raise NotImplementedError

    def respond(self, layer: Layer, gradient: Tensor) -> Tensor:
        """What to keep of the gradients of a layer's outputs, as a vector."""
        raise NotImplementedError

    def entries(self, layer: Layer) -> tuple[int, int]:
        """Lengths of what `observe` and `respond` give."""
        raise NotImplementedError

    def start(self, state: dict[str, Any]) -> None:
        """Get ready on the network's device; `state` is what a checkpoint brought, or empty."""
        raise NotImplementedError

    def update(self) -> None:
        """Take in what layers saw since the last step."""
        raise NotImplementedError

    def precondition(self, layers: list[Layer], gradients: list[Tensor]) -> list[Tensor]:
        """The preconditioned gradients of the layers, in that order."""
        raise NotImplementedError

    def known(self, layer: Layer) -> Tensor | bool:
        """Whether something of the layer is known; its gradient stays as it is otherwise."""
        return self._known[layer.index]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the layers."""
        if stage != "fit":
            return
        name = type(self).__name__
        if isinstance(pl_module, SupernetTask):
            raise ValueError(
                f"{name}: the layers of a supernet change from step to step; take it out, or train "
                "one subnet"
            )
        if not isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy)) or getattr(
            trainer.strategy, "delays_gradients", False
        ):
            raise ValueError(
                f"{name} needs whole gradients before the optimiser's step, which "
                f"{type(trainer.strategy).__name__} does not have: take HookDDPStrategy or ddp"
            )
        self.layers = layers_of(pl_module)
        if not self.layers:
            raise ValueError(f"{name}: {type(pl_module).__name__} has no layer to precondition")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to watch the layers."""
        name = type(self).__name__
        if len(trainer.optimizers) != 1:
            raise ValueError(f"{name} works with one optimiser, not {len(trainer.optimizers)}")
        self._scaler = getattr(trainer.precision_plugin, "scaler", None)
        if self._scaler and getattr(trainer.optimizers[0], "_step_supports_amp_scaling", False):
            raise ValueError(f"{name}: a fused optimiser hides gradients' scale: fused false")
        weight = self.layers[0].module.weight
        self.device = weight.device
        self.dtype = torch.promote_types(weight.dtype, torch.float32)
        self.rank, self.world_size = rank_and_size()
        self.start(self._resumed)
        self._resumed = {}
        for layer in self.layers:
            hook = partial(self._forward, layer)
            self._handles.append(layer.module.register_forward_hook(hook))

    def on_train_batch_start(self, *_: Any) -> None:
        """Only training batches count."""
        self._watching = self.wants()

    def on_train_batch_end(self, *_: Any) -> None:
        """What runs between batches does not count."""
        self._watching = False

    def wants(self) -> bool:
        """Whether the step that goes on takes in what layers see."""
        return True

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Change the gradients."""
        with torch.autocast(self.device.type, enabled=False):
            if self.wants():
                self.update()
            self._seen.clear()
            layers = [layer for layer in self.layers if layer.module.weight.grad is not None]
            if layers:
                self._write(optimizer, layers)
        self.step += 1

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the network as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep what a checkpoint brought until the network is on its device."""
        self._resumed = state

    def message(self, layers: list[Layer], shared: bool) -> tuple[Tensor, Tensor]:
        """What layers saw since the last step, on average over uses and micro-batches.

        Added up over processes where it is shared.

        Returns:
            What `observe` and `respond` gave, layer by layer in one vector, zero where a layer saw
            nothing; and for each layer how many processes saw something. All zero where anything
            is not finite, as in steps that mixed precision leaves out.
        """
        scale = torch.ones((), device=self.device)
        if self._scaler is not None:
            scale = self._scaler.scale(scale)
        pieces: list[Tensor] = []
        flags = []
        for layer in layers:
            a, b, uses = self._seen.get(layer, (0, 0, 0))
            flags.append(float(uses > 0))
            if uses:
                pieces += [a / uses, b / uses / scale**self.degree]
            else:
                pieces.append(torch.zeros(sum(self.entries(layer)), device=self.device))
        pieces.append(torch.tensor(flags, device=self.device))
        flat = torch.cat([piece.to(self.dtype) for piece in pieces])
        if shared and self.world_size > 1:
            dist.all_reduce(flat)
        flat = torch.where(flat.isfinite().all(), flat, 0.0)
        return flat[: -len(flags)], flat[-len(flags) :]

    def _forward(self, layer: Layer, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if not (self._watching and inputs and output.requires_grad and module.weight.requires_grad):
            return
        seen = self._quietly(self.observe, layer, inputs[0])
        if seen is not None:
            # Not a module's backward hook: it forbids changing the output in place.
            output.register_hook(partial(self._backward, layer, seen))

    def _backward(self, layer: Layer, seen: Tensor, gradient: Tensor) -> None:
        a, b, uses = self._seen.get(layer, (0, 0, 0))
        response = self._quietly(self.respond, layer, gradient)
        self._seen[layer] = a + seen, b + response, uses + 1

    @torch.no_grad()
    def _quietly(self, measure: Callable, layer: Layer, x: Tensor) -> Tensor | None:
        with torch.autocast(x.device.type, enabled=False):
            return measure(layer, x.detach().to(torch.promote_types(x.dtype, torch.float32)))

    def _write(self, optimizer: Optimizer, layers: list[Layer]) -> None:
        gradients = [layer.gradient(self.dtype) for layer in layers]
        preconditioned = self.precondition(layers, gradients)
        rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
        known = [torch.as_tensor(self.known(layer), device=self.device) for layer in layers]
        both = list(zip(layers, gradients, preconditioned, known, strict=True))
        if self.kl_clip:
            total = _sum(
                know * rates.get(parameter, 0.0) ** 2 * (part * _gradient(parameter)).sum()
                for layer, _, p, know in both
                for parameter, part in layer.parts(p)
            )
            factor = (self.kl_clip / total).sqrt().clamp(max=1)
        else:
            total = _sum(know * p.square().sum() for _, _, p, know in both)
            factor = (_sum(know * g.square().sum() for _, g, _, know in both) / total).sqrt()
        for layer, g, p, know in both:
            for parameter, part in layer.parts(torch.where(know, factor * p, g)):
                _gradient(parameter).copy_(part)


def _gradient(parameter: Tensor) -> Tensor:
    return cast("Tensor", parameter.grad)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum().clamp(min=1e-30)
