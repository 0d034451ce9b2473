"""Gradients merged into the best messages while training: measured, planned, applied.

Source: Shi et al., "MG-WFBP: Merging Gradients Wisely for Efficient Communication in Distributed
Deep Learning", TPDS 2021 (arXiv 1912.09268).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ...space import Architecture
from ..gradients.hooks import CommHook, devices_of
from .link import SIZES, fit_link, measure_all_reduce
from .simulator import BUCKET, FIRST_BUCKET, plan_groups
from .timing import ReadyTimes

__all__ = ["GroupedHook", "MergePlan", "bucket_caps", "has_bucket_caps", "own_buffers"]


class GroupedHook(CommHook):
    """Holds buckets back, and lets another hook see several of them as one.

    What is held at the end of a backward pass goes then, so that a plan need not fit: before
    buckets are made anew after the first step they are others. Without `groups`, the numbers of
    buckets that go together in order, they are of PyTorch's size.
    """

    def __init__(self, hook: CommHook, groups: Sequence[int] | None = None) -> None:
        self.hook = hook
        self.groups = groups
        self.buckets: dict[int, tuple[list[str], int]] = {}  # names and bytes, by index
        self._held: list[tuple[dist.GradBucket, Future[Tensor]]] = []
        self._sent = 0  # messages of this backward pass
        self._in_backward = False

    def setup(self, model: nn.Module, device: torch.device) -> None:
        """Set the hook up that averages."""
        self.hook.setup(model, device)

    def train_subnets(self, net: nn.Module, architectures: Sequence[Architecture]) -> None:
        """Tell the hook that averages."""
        self.hook.train_subnets(net, architectures)

    def close(self) -> None:
        """Close the hook that averages."""
        self.hook.close()

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Hold a bucket until its group is whole; its future comes with the group's message."""
        if not self._in_backward:
            # At the end of this backward pass, before gradients are used. The name is not public,
            # and PyTorch has no other for it; a test holds it.
            Variable._execution_engine.queue_callback(self._end_backward)
            self._in_backward, self._sent = True, 0
        names = [self.hook.names[id(parameter)] for parameter in bucket.parameters()]
        self.buckets[bucket.index()] = names, bucket.buffer().nbytes
        future: Future[Tensor] = Future(devices=devices_of(bucket.buffer()))
        self._held.append((bucket, future))
        if self._group_is_whole():
            self._send()
        return future

    def _group_is_whole(self) -> bool:
        if self.groups is not None:
            return self._held[-1][0].index() + 1 in accumulate(self.groups)
        held = sum(bucket.buffer().nbytes for bucket, _ in self._held)
        return held >= (BUCKET if self._sent else FIRST_BUCKET)

    def _end_backward(self) -> None:
        self._in_backward = False
        if self._held:
            self._send()

    def _send(self) -> None:
        buckets, futures = zip(*self._held, strict=True)
        buffers = [bucket.buffer() for bucket in buckets]
        merged = _merged(buckets, self._sent)
        self._held, self._sent = [], self._sent + 1

        def finish(reduced: Future[Tensor]) -> None:
            try:
                parts = reduced.value().split([len(buffer) for buffer in buffers])
                for buffer, part, future in zip(buffers, parts, futures, strict=True):
                    if buffer.data_ptr() != part.data_ptr():
                        buffer.copy_(part)
                    future.set_result(buffer)
            except Exception as error:  # raised by the backward pass
                for future in futures:
                    if not future.done():
                        future.set_exception(error)  # type: ignore[arg-type]

        self.hook.reduce(merged).add_done_callback(finish)


def _merged(buckets: Sequence[dist.GradBucket], index: int) -> dist.GradBucket:
    """Several buckets as one, as far as hooks ask."""
    flat = buckets[0].buffer() if len(buckets) == 1 else torch.cat([b.buffer() for b in buckets])
    parameters = [parameter for bucket in buckets for parameter in bucket.parameters()]
    last = buckets[-1].is_last()

    def gradients() -> list[Tensor]:
        parts = flat.split([parameter.numel() for parameter in parameters])
        return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]

    bucket = SimpleNamespace(
        buffer=lambda: flat,
        parameters=lambda: parameters,
        gradients=gradients,
        index=lambda: index,
        is_last=lambda: last,
    )
    return cast("dist.GradBucket", bucket)


class MergePlan:
    """Plans messages from what the first steps take, and again where that changes.

    All processes follow the first one's plan. At the start of an epoch whose batches, precision or
    number of processes differ from those that were planned for, it measures anew.

    Args:
        warmup_steps: backward passes before measuring; at least 2.
        measure_steps: backward passes to measure.
        alpha: seconds a message, for a link that need not be measured.
        beta: seconds a byte, likewise.
        apply: `hook` holds buckets of one parameter back and sends them together, on any PyTorch;
            `caps` gives the sizes of buckets to DistributedDataParallel, which copies nothing and
            needs a PyTorch that takes them (2.15).

    Raises:
        ValueError: a setting is out of range, or this PyTorch takes no sizes of buckets.
    """

    def __init__(
        self,
        warmup_steps: int = 5,
        measure_steps: int = 50,
        alpha: float | None = None,
        beta: float | None = None,
        apply: Literal["hook", "caps"] = "hook",
    ) -> None:
        if warmup_steps < 2 or measure_steps < 1:
            raise ValueError(
                f"warmup_steps {warmup_steps} and measure_steps {measure_steps}: at least 2 and 1"
            )
        if (alpha is None) != (beta is None) or (alpha or 0) < 0 or (beta or 0) < 0:
            raise ValueError(f"alpha {alpha} and beta {beta}: give both, not negative, or none")
        if apply not in ("hook", "caps"):
            raise ValueError(f"apply {apply!r}: choose hook or caps")
        if apply == "caps" and not has_bucket_caps():
            raise ValueError("apply caps: this PyTorch takes no sizes of buckets; choose hook")
        self.warmup_steps = warmup_steps
        self.measure_steps = measure_steps
        self.link = None if alpha is None or beta is None else (alpha, beta)
        self.apply = apply
        self.groups: list[int] | None = None
        self.caps: list[float] | None = None
        self._times: ReadyTimes | None = None
        self._planned_for: Any = None

    def setup(self, model: nn.Module, hook: CommHook, device: torch.device) -> CommHook:
        """Begin to measure; the hook to register in place of `hook`."""
        self.model, self.device = model, device
        self.hook = GroupedHook(hook)
        self._planned_for, self.groups, self.caps = None, None, None
        self._measure()
        return self.hook if self.apply == "hook" else hook

    def start_epoch(self, conditions: Any) -> None:
        """Measure anew if on any process the conditions are not those that were planned for."""
        changed = self._planned_for is not None and conditions != self._planned_for
        self._planned_for = conditions
        flag = torch.tensor(float(changed), device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        if flag.item():
            self._measure()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """A backward pass, which is measured while a plan is wanted."""
        if (times := self._times) is None:
            yield
            return
        times.skip = self._passes < self.warmup_steps
        times.begin()
        yield
        times.end()
        self._passes += 1

    def ready(self) -> bool:
        """Whether enough has been measured, so that all processes have to call `plan`."""
        return self._times is not None and self._passes >= self.warmup_steps + self.measure_steps

    def plan(self) -> list[int]:
        """Plan from what was measured; on all processes the first one's, which it returns."""
        times = cast("ReadyTimes", self._times).medians()
        self.close()
        if self.link is None:
            messages = measure_all_reduce(self.device, sizes=SIZES[:-1], seconds=0.2, longest=0.5)
            self.link = fit_link(*zip(*messages, strict=True))
        if self.apply == "hook":
            buckets = [bucket for _, bucket in sorted(self.hook.buckets.items())]
        else:
            trained = ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)
            ordered = sorted(trained, key=lambda item: times.get(item[0], 0.0))
            buckets = [([name], parameter.nbytes) for name, parameter in ordered]
        ready = accumulate((max(times.get(n, 0.0) for n in names) for names, _ in buckets), max)
        sizes = [size for _, size in buckets]
        groups = plan_groups(list(ready), sizes, *self.link)
        agreed: list[Any] = [groups, bucket_caps(sizes, groups)]
        dist.broadcast_object_list(agreed, 0)
        self.groups, self.caps = agreed
        self.hook.groups = self.groups
        return agreed[0]

    def close(self) -> None:
        """Stop measuring."""
        if self._times is not None:
            self._times.close()
            self._times = None

    def _measure(self) -> None:
        self.close()
        self._times, self._passes = ReadyTimes(self.model), 0


def bucket_caps(sizes: Sequence[float], groups: Sequence[int]) -> list[float]:
    """Megabytes at which buckets have to close for gradients of these bytes to be so grouped."""
    ends = [0, *accumulate(groups)]
    # A bucket closes as soon as it holds its cap; half a byte less is nearer to no other sum.
    return [(sum(sizes[a:b]) - 0.5) / 2**20 for a, b in pairwise(ends)]


def has_bucket_caps() -> bool:
    """Whether this PyTorch's DistributedDataParallel takes a size for each bucket."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters


def own_buffers() -> dict[str, bool]:
    """The argument of DistributedDataParallel by which each process keeps its own buffers."""
    known = inspect.signature(DistributedDataParallel).parameters
    new = "forward_sync_buffers"  # from PyTorch 2.13 on
    return {new if new in known else "broadcast_buffers": False}
