"""What compressors of gradients share: a thread that talks, and error feedback by name."""

from __future__ import annotations

import functools
import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from ...space import Architecture
from ..gradients.hooks import CommHook, devices_of
from ..gradients.regions import active_regions, grid

__all__ = ["Compressor", "Item"]

Item = tuple[str, Tensor]
"""A parameter's name and its gradient, of a supernet that of the channels in use."""


class _CommThread:
    """Runs what compressors compute and send, one after the other, beside the backward pass.

    Several messages that depend on each other would cross those of other buckets if they were
    sent from callbacks, whose order differs between processes. All processes have to make one.
    """

    def __init__(self, device: torch.device) -> None:
        self.group = _second_group(dist.group.WORLD)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], result: Tensor) -> Future[Tensor]:
        """A future of `result`, complete when `work` has been done."""
        future: Future[Tensor] = Future(devices=devices_of(result))
        ready = torch.cuda.current_stream().record_event() if self._stream is not None else None
        self._tasks.put((work, result, future, ready))
        return future

    def close(self) -> None:
        """Finish what was submitted, and end."""
        if self._thread.is_alive():
            self._tasks.put(None)
            self._thread.join()

    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread; all processes have to round alike
        with torch.no_grad(), torch.cuda.stream(self._stream):
            while (task := self._tasks.get()) is not None:
                work, result, future, ready = task
                try:
                    if ready is not None:
                        ready.wait(self._stream)
                    work()
                    future.set_result(result)
                except Exception as error:  # raised by the backward pass
                    future.set_exception(error)


@functools.lru_cache(maxsize=1)
def _second_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group of all processes for these threads, of which one runs at a time; kept for the next.

    To leave one would be unsafe, since the others may still be reading its last message.
    """
    return cast("dist.ProcessGroup", dist.new_group())


class Compressor(CommHook):
    """Averages gradients approximately; what it left out is added to the next gradient.

    On a supernet only what the step uses travels, parameters and channels of them; the others keep
    what was left out of them.

    Args:
        start_step: steps at the start whose gradients travel as they are.
        error_feedback: whether what is left out is kept.
        forget_after: what was left out of a parameter that no subnet has used for more than so
            many steps is dropped, since the other weights have moved on; 0 keeps it.

    Raises:
        ValueError: `start_step` or `forget_after` is negative.
    """

    def __init__(
        self, start_step: int = 0, error_feedback: bool = True, forget_after: int = 0
    ) -> None:
        if min(start_step, forget_after) < 0:
            raise ValueError(
                f"start_step {start_step} and forget_after {forget_after}: must be at least 0"
            )
        self.start_step = start_step
        self.error_feedback = error_feedback
        self.forget_after = forget_after
        self.grids: dict[str, tuple[Tensor, ...]] = {}

    def setup(self, model: nn.Module, device: torch.device) -> None:
        """Start the thread that talks, with nothing left out so far."""
        super().setup(model, device)
        self.residuals: dict[str, Tensor] = {}
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.step = -1
        self.used_at: dict[str, int] = {}
        self.rank = dist.get_rank()
        self.thread = _CommThread(device)

    def train_subnets(self, net: nn.Module, architectures: Sequence[Architecture]) -> None:
        """Find the channels of each parameter that the step uses."""
        self.grids = {}
        for key, regions in active_regions(net, architectures).items():
            name = self.names[key]
            places = grid(self.shapes[name], regions)
            self.grids[name] = tuple(index.to(self.device) for index in places)

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Compress and average a bucket in the thread, beside the backward pass."""
        if bucket.index() == 0:
            self.step += 1
        named = [(self.names[id(parameter)], g) for parameter, g in self.active(bucket)]
        whole = [(name, g) for name, g in named if self.used(name, g).numel()]
        scale, dense = self.loss_scale(), self.step < self.start_step

        def work() -> None:
            if not whole:
                return
            self._forget([name for name, _ in whole])
            items = [(name, self.used(name, gradient)) for name, gradient in whole]
            if scale != 1:
                torch._foreach_div_([gradient for _, gradient in items], scale)
            (self._dense if dense else self.average)(items)
            if scale != 1:
                torch._foreach_mul_([mean for _, mean in items], scale)
            for (name, mean), (_, gradient) in zip(items, whole, strict=True):
                if name in self.grids:
                    gradient[self.grids[name]] = mean

        return self.thread.submit(work, bucket.buffer())

    def average(self, items: list[Item]) -> None:
        """Replace gradients by their approximate means; called in the same order everywhere.

        Where gradients are not finite on some process they end so on all, and what was kept
        stays as it was: the scaler of mixed precision leaves such a step out.
        """
        raise NotImplementedError

    def used(self, name: str, tensor: Tensor) -> Tensor:
        """Of a tensor of a parameter's shape what the step uses: all of it, or a copy."""
        return tensor[self.grids[name]] if name in self.grids else tensor

    def corrected(self, name: str, gradient: Tensor) -> Tensor:
        """The gradient and what was left out before, in single precision."""
        residual = self.residuals.get(name)
        gradient = gradient.float()
        return gradient if residual is None else gradient + self.used(name, residual)

    def keep(self, name: str, residual: Tensor) -> None:
        """Keep what was left out of what the step uses, in memory of the parameter's own."""
        if not self.error_feedback:
            return
        if name not in self.residuals:
            self.residuals[name] = residual.new_zeros(self.shapes[name])
        self.residuals[name][self.grids.get(name, ...)] = residual

    def finish(self, items: list[Item], mean: Tensor, left: Tensor, finite: bool) -> None:
        """Replace gradients by their mean and keep what is left, both flat; NaN if not finite."""
        if finite:
            parts = left.split([gradient.numel() for _, gradient in items])
            for (name, gradient), residual in zip(items, parts, strict=True):
                self.keep(name, residual.view_as(gradient))
        else:
            mean.fill_(math.nan)
        write(items, mean)

    def all_reduced(self, flat: Tensor) -> Tensor:
        """The mean over processes, in place."""
        self.count_all_reduce(flat.nbytes)
        dist.all_reduce(flat, group=self.thread.group)
        return flat.div_(self.world_size)

    def all_gathered(self, message: Tensor) -> Tensor:
        """The messages of all processes (P, n), by rank."""
        self.bytes_sent += message.nbytes * (self.world_size - 1)
        messages = message.new_empty(self.world_size, message.numel())
        dist.all_gather(list(messages), message, group=self.thread.group)
        return messages

    def state_dict(self) -> dict[str, Any]:
        """What was left out so far, by parameter, and the number of steps."""
        residuals = {name: residual.clone() for name, residual in self.residuals.items()}
        return {"step": self.step, "residuals": residuals, "used_at": dict(self.used_at)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take copies of what was left out, which changes in place."""
        self.step = state["step"]
        self.used_at = dict(state.get("used_at", {}))
        kept = state["residuals"].items()
        self.residuals = {name: t.to(self.device, copy=True) for name, t in kept}

    def begin_anew(self) -> None:
        """Forget what was left out; the first steps travel as they are again."""
        self.residuals, self.used_at, self.step = {}, {}, -1

    def close(self) -> None:
        """End the thread once all is sent."""
        if hasattr(self, "thread"):
            self.thread.close()

    def _forget(self, names: Sequence[str]) -> None:
        """Drop what is too old of the parameters that this step uses."""
        for name in names if self.forget_after else ():
            if self.step - self.used_at.get(name, self.step) > self.forget_after:
                self.residuals.pop(name, None)
            self.used_at[name] = self.step

    def _dense(self, items: list[Item]) -> None:
        flat = self.all_reduced(torch.cat([gradient.flatten() for _, gradient in items]))
        write(items, flat)


def write(items: list[Item], flat: Tensor) -> None:
    """Replace gradients by the entries of a flat tensor."""
    parts = flat.split([gradient.numel() for _, gradient in items])
    for (_, gradient), values in zip(items, parts, strict=True):
        gradient.copy_(values.view_as(gradient))
