"""Hooks by which gradients are averaged over processes, and the plainest of them.

A hook sees gradients bucket by bucket while the backward pass goes on, as PyTorch's
DistributedDataParallel collects them. What it keeps, it keeps by the parameters' names, since
buckets are made anew after the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from ...space import Architecture
from .regions import Region, active_regions, views

__all__ = ["AllReduce", "CommHook", "TorchHook", "devices_of"]

_LARGEST_HALF = 60_000.0  # with room below 65,504, since partial sums are rounded


class CommHook:
    """Averages gradients over all processes."""

    #: whether something is kept from step to step that belongs to this process
    error_feedback = False
    needs_unused = False  #: whether DistributedDataParallel has to look for unused parameters
    single_bucket = False  #: whether on a CPU all gradients have to be in one bucket
    takes_scaler = True  #: whether it works where mixed precision scales the loss
    #: what this process has sent so far by the algorithm's own count: an all-reduce of n bytes
    #: among P counts 2 n (P - 1) / P, an all-gather n (P - 1)
    bytes_sent = 0
    names: dict[int, str] = {}
    world_size = 1

    def setup(self, model: nn.Module, device: torch.device) -> None:
        """Get ready, once the process group exists; the model that is trained is on its device."""
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.device = device
        self.world_size = dist.get_world_size()

    def train_subnets(self, net: nn.Module, architectures: Sequence[Architecture]) -> None:
        """What the step that begins trains of a supernet."""

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Average a bucket.

        Returns:
            A future of the bucket's buffer, holding the mean over processes.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What this process needs to go on from a checkpoint; tensors by parameter."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` gave, after `setup`."""

    def begin_anew(self) -> None:
        """Drop what is kept of earlier steps: the weights are others now, or in another order."""

    def count_all_reduce(self, size: int) -> None:
        """Add an all-reduce of so many bytes to `bytes_sent`."""
        self.bytes_sent += 2 * size * (self.world_size - 1) // self.world_size

    def loss_scale(self) -> float:
        """What mixed precision has multiplied the loss by."""
        return 1.0

    def start_epoch(self, epoch: int) -> None:
        """An epoch begins."""

    def close(self) -> None:
        """End what runs beside the training, before the process group goes."""

    def active(self, bucket: dist.GradBucket) -> list[tuple[Tensor, Tensor]]:
        """The parameters of a bucket that this step uses, with their gradients in the buffer.

        Others of a supernet have no gradient, on any process, and their part of the buffer is
        zero. Those of another optimiser require none in this one's pass: what they have gathered
        so far lies in the buffer, and travels with a pass of their own.
        """
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        return [(p, _laid_out(g, p)) for p, g in pairs if p.requires_grad and p.grad is not None]


class AllReduce(CommHook):
    """The mean, exact or rounded, in one message a bucket.

    Args:
        dtype: `float16` or `bfloat16` halves what travels; by default gradients stay as they are.
            In `float16` finite entries beyond 60,000 travel as that, unless the loss is scaled:
            then they overflow, and the scaler leaves the step out.
        active_only: of a supernet, send only the parameters that the step's subnets use, and of
            those only the channels that they use: the rest is zero on every process. All
            processes have to train the same subnets.
    """

    def __init__(
        self, dtype: Literal["float16", "bfloat16"] | None = None, active_only: bool = False
    ) -> None:
        if dtype not in (None, "float16", "bfloat16"):
            raise ValueError(f"gradients cannot travel as {dtype!r}: choose float16 or bfloat16")
        self.dtype = None if dtype is None else getattr(torch, dtype)
        self.needs_unused = active_only
        self._regions: dict[int, list[Region]] = {}

    def train_subnets(self, net: nn.Module, architectures: Sequence[Architecture]) -> None:
        """Find what the step uses of each parameter, where only that travels."""
        self._regions = active_regions(net, architectures) if self.needs_unused else {}

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """The mean over processes in one message, rounded first where `dtype` says so."""
        pieces = [buffer := bucket.buffer()]
        if self.needs_unused:
            pieces = [
                view
                for parameter, gradient in self.active(bucket)
                for view in views(gradient, self._regions.get(id(parameter)))
            ]
        if not pieces:
            future: Future[Tensor] = Future(devices=devices_of(buffer))
            future.set_result(buffer)
            return future
        buffer.div_(self.world_size)  # before half precision could overflow
        flat = buffer if pieces[0] is buffer else torch.cat([p.reshape(-1) for p in pieces])
        if self.dtype == torch.float16 and self.loss_scale() == 1:
            flat = self._within_half(flat)
        flat = flat if self.dtype is None else flat.to(self.dtype)
        self.count_all_reduce(flat.nbytes)

        def unpack(reduced: Future[list[Tensor]]) -> Tensor:
            mean = reduced.value()[0]  # raises where the message failed
            if flat is not buffer:
                parts = mean.split([piece.numel() for piece in pieces])
                for piece, values in zip(pieces, parts, strict=True):
                    piece.copy_(values.view_as(piece))
            return buffer

        return dist.all_reduce(flat, async_op=True).get_future().then(unpack)

    def _within_half(self, flat: Tensor) -> Tensor:
        """Entries whose sum over processes half precision can hold, where they are finite."""
        finite = torch.linalg.vector_norm(flat, torch.inf).isfinite()
        bound = torch.where(finite, _LARGEST_HALF / self.world_size, torch.inf)
        return flat.clamp(-bound, bound)


class TorchHook(CommHook):
    """A hook as PyTorch has them, with its state.

    What it sends is not counted, and what it keeps is not in checkpoints. On a CPU one that sends
    again from callbacks can hang.
    """

    def __init__(
        self, hook: Callable[[Any, dist.GradBucket], Future[Tensor]], state: Any = None
    ) -> None:
        self.hook = hook
        self.state = state

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """What PyTorch's own hook makes of the bucket."""
        return self.hook(self.state, bucket)


def _laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """A gradient's part of a buffer, which lies there as its parameter does: channels-last."""
    if gradient.stride() == parameter.stride():
        return gradient
    axes = sorted(range(parameter.ndim), key=parameter.stride, reverse=True)
    if not parameter.permute(axes).is_contiguous():  # with gaps: PyTorch lays it out plainly
        return gradient
    return gradient.as_strided(parameter.shape, parameter.stride(), gradient.storage_offset())


def devices_of(buffer: Tensor) -> list[int | str | torch.device]:
    """What a future of this tensor has to know: nothing on a CPU."""
    return [] if buffer.device.type == "cpu" else [buffer.device]
