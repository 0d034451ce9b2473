"""Sparse gradients: only the largest entries travel, the others wait until they have grown.

Sources: Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning" (2019,
arXiv 1911.08772: Gaussian-k); Shi et al., "A Distributed Synchronous SGD Algorithm with Global
Top-k Sparsification for Low Bandwidth Networks", ICDCS 2019 (arXiv 1901.04359: gTop-k); Shi et
al., "Layer-wise Adaptive Gradient Sparsification", ECAI 2020 (arXiv 1911.08727: LAGS).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from ..schedule.link import SIZES, Link, fit_link, measure_all_reduce
from ..schedule.timing import ReadyTimes
from .base import Compressor, Item

__all__ = ["GTopK", "TopK", "lags_densities"]

_LEAST = 0.001
_LEAST_BETA = 1e-15  # seconds a byte, where what was measured does not show any
_SELECT = 2e-9  # seconds an entry, to select the largest
_SMALL = 16_384  # entries; fewer are not worth selecting (64 KiB)
_WARMUP = (0.25, 0.0625, 0.015625, 0.004)


class _Sparse(Compressor):
    """Args as for `TopK`, those of `Compressor` behind."""

    def __init__(self, density: float, warmup: Sequence[float], *others: Any) -> None:
        super().__init__(*others)
        _check(density, *warmup)
        self.density = density
        self.warmup = tuple(warmup)
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        self.least = self.warmup[epoch] if epoch < len(self.warmup) else 0.0

    def count(self, size: int, density: float | None = None) -> int:
        """How many entries of so many travel."""
        return math.ceil(max(self.least, density or self.density) * size)

    def _flattened(self, items: list[Item]) -> Tensor:
        return torch.cat([self.corrected(name, gradient).flatten() for name, gradient in items])


class TopK(_Sparse):
    """The largest entries of every process travel, by one all-gather a bucket.

    Args:
        density: share of the entries that a process sends; `auto` chooses one for each parameter,
            the highest that hides behind the backward pass on this link (LAGS), from what the first
            `start_step` steps and some messages take; those below 64 KiB travel whole.
        selector: `exact` sorts; `gaussian` takes a normal distribution's threshold, adjusts it
            three times at most, and sends up to a third more.
        per_layer: choose the largest of each parameter instead of the whole bucket's, with the
            densities given by `densities`.
        densities: for names of parameters their own density (see `lags_densities`); others have
            `density`. Those of density 1 travel by an all-reduce.
        warmup: densities of the first epochs, as published; an empty list for none.
        start_step: steps at the start whose gradients travel whole.
        error_feedback: whether what is left out is kept.
        forget_after: see `Compressor`.
    """

    def __init__(
        self,
        density: float | Literal["auto"] = 0.001,
        selector: Literal["exact", "gaussian"] = "exact",
        per_layer: bool = False,
        densities: dict[str, float] | None = None,
        warmup: Sequence[float] = _WARMUP,
        start_step: int = 0,
        error_feedback: bool = True,
        forget_after: int = 0,
    ) -> None:
        self.auto = density == "auto"
        if self.auto and (start_step < 5 or densities):
            raise ValueError(
                f"density auto measures in start_step {start_step} steps: give at least 5, and no "
                "densities"
            )
        least = _LEAST if isinstance(density, str) else density
        super().__init__(least, warmup, start_step, error_feedback, forget_after)
        if selector not in ("exact", "gaussian"):
            raise ValueError(f"selector {selector!r}: choose exact or gaussian")
        self.selector = selector
        self.per_layer = per_layer or bool(densities) or self.auto
        self.densities = densities or {}
        _check(*self.densities.values())
        self._times: ReadyTimes | None = None
        self._ready: dict[str, float] | None = None

    def setup(self, model: nn.Module, device: torch.device) -> None:
        """Begin to measure when gradients are ready, where densities are chosen by that."""
        super().setup(model, device)
        if self.auto:
            self.densities, self._times = {}, ReadyTimes(model)
            self._times.skip = True

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Average a bucket; after the first steps densities are chosen."""
        if self._times is not None and bucket.index() == 0 and self.step + 1 >= self.start_step:
            self._ready = self._times.medians()
            self._stop()
        future = super().reduce(bucket)
        if self._times is not None and bucket.is_last():  # not within a pass, which began unnoticed
            self._times.skip = self.step < 1  # buckets are made anew after the first step
        return future

    def _choose(self, ready: dict[str, float]) -> None:
        """Densities of all parameters, the first process's on all."""
        if self.world_size == 1:  # nothing travels
            return
        group = self.thread.group
        messages = measure_all_reduce(self.device, group, SIZES[:-1], seconds=0.2, longest=0.5)
        alpha, beta = fit_link(*zip(*messages, strict=True))
        link = Link(self.world_size, alpha, beta or _LEAST_BETA)
        names, before = list(ready), [0.0, *ready.values()]
        times = {name: ready[name] - start for name, start in zip(names, before, strict=False)}
        sizes = {name: self.shapes[name].numel() for name in names}
        densities = lags_densities(sizes, times, link.hop, link.byte, self.world_size)
        agreed = [{n: 1.0 if sizes[n] < _SMALL else d for n, d in densities.items()}]
        dist.broadcast_object_list(agreed, 0, group, self.device)
        self.densities = agreed[0]

    def state_dict(self) -> dict[str, Any]:
        """The densities besides what was left out, where they were measured."""
        return {**super().state_dict(), **({"densities": self.densities} if self.auto else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the densities, where they were measured."""
        super().load_state_dict(state)
        if state.get("densities"):
            self.densities = state["densities"]
            self._stop()
        elif self.auto:
            self.step = -1  # they have yet to be measured

    def close(self) -> None:
        """Stop measuring, and end the thread."""
        self._stop()
        super().close()

    def _stop(self) -> None:
        if self._times is not None:
            self._times.close()
            self._times = None

    def average(self, items: list[Item]) -> None:
        """Average the largest entries in one message, and those of density 1 whole."""
        if self._ready is not None:  # in the thread, all processes between the same messages
            ready, self._ready = self._ready, None
            self._choose(ready)
        whole = [item for item in items if self.densities.get(item[0]) == 1.0]
        if whole:
            self._dense(whole)
            items = [item for item in items if self.densities.get(item[0]) != 1.0]
        if not all(bool(torch.isfinite(gradient).all()) for _, gradient in whole):
            for _, gradient in items:
                gradient.fill_(math.nan)
        elif items:
            self._average(items)

    def _average(self, items: list[Item]) -> None:
        u = self._flattened(items)
        groups = [(name, g.numel()) for name, g in items] if self.per_layer else [("", len(u))]
        select = _largest if self.selector == "exact" else _gaussian
        chosen, start = [], 0
        for name, size in groups:
            count = self.count(size, self.densities.get(name))
            chosen.append(select(u[start : start + size], count) + start)
            start += size
        index = torch.cat(chosen)
        values = u[index]
        if self.selector == "gaussian":  # places that pad its message say zero, which adds nothing
            values = torch.where(_first_of_each(index), values, 0.0)
        if not torch.isfinite(u).all():
            values = torch.full_like(values, math.nan)
        everyone = self.all_gathered(_pack(index, values))
        mean = torch.zeros_like(u)
        for message in everyone:
            where, what = _unpack(message)
            mean.index_add_(0, where, what)
        u[index] = 0.0
        finite = bool(torch.isfinite(everyone[:, len(index) :]).all())
        self.finish(items, mean.div_(self.world_size), u, finite)


class GTopK(_Sparse):
    """The largest entries of the sum over processes, by merging pairs of processes.

    Args:
        density: share of the entries that a process sends in a merge, and that the mean has.
        feedback: `conserve` lets what a merge drops be kept, in equal parts, by the processes
            that hold the merge, so that nothing is lost; `paper` has a process keep its own
            entries that are not in the end among the chosen, which loses what was dropped on the
            way of those that are.
        warmup: densities of the first epochs, as published; an empty list for none.
        start_step: steps at the start whose gradients travel whole.
        error_feedback: whether what is left out is kept.
        forget_after: see `Compressor`.
    """

    def __init__(
        self,
        density: float = 0.001,
        feedback: Literal["conserve", "paper"] = "conserve",
        warmup: Sequence[float] = _WARMUP,
        start_step: int = 0,
        error_feedback: bool = True,
        forget_after: int = 0,
    ) -> None:
        super().__init__(density, warmup, start_step, error_feedback, forget_after)
        if feedback not in ("conserve", "paper"):
            raise ValueError(f"feedback {feedback!r}: choose conserve or paper")
        self.feedback = feedback

    def average(self, items: list[Item]) -> None:
        """Average the largest entries of all processes' sums, merged pair by pair."""
        u = self._flattened(items)
        count = self.count(u.numel())
        own = _largest(u, count).sort().values
        values = u[own]
        if not torch.isfinite(u).all():
            values = torch.full_like(values, math.nan)
        left = u.clone()
        left[own] = 0.0
        paired = 1 << (self.world_size.bit_length() - 1)  # ranks beyond are folded into others
        index, partner = own, self.rank ^ paired
        if self.rank >= paired:
            self._send(_pack(index, values), partner)
            index, values = _unpack(self._receive(count, partner))
        else:
            if partner < self.world_size:
                index, values = self._merge(index, values, self._receive(count, partner), left, 1)
            span = 1
            while span < paired:
                other = self._exchange(_pack(index, values), self.rank ^ span)
                span *= 2
                index, values = self._merge(index, values, other, left, span)
            if partner < self.world_size:
                self._send(_pack(index, values), partner)
        mean = torch.zeros_like(u)
        mean[index] = values / self.world_size
        if self.feedback == "paper":
            lost = own[~torch.isin(own, index)]
            left[lost] = u[lost]
        self.finish(items, mean, left, bool(torch.isfinite(values).all()))

    def _merge(
        self, index: Tensor, values: Tensor, other: Tensor, left: Tensor, holders: int
    ) -> tuple[Tensor, Tensor]:
        kept, dropped = _merged((index, values), _unpack(other))
        if self.feedback == "conserve":
            left.index_add_(0, dropped[0], dropped[1] / holders)
        return kept

    def _send(self, message: Tensor, to: int) -> None:
        self.bytes_sent += message.nbytes
        dist.send(message, to, group=self.thread.group)

    def _receive(self, count: int, sender: int) -> Tensor:
        message = torch.empty(2 * count, device=self.device)
        dist.recv(message, sender, group=self.thread.group)
        return message

    def _exchange(self, message: Tensor, peer: int) -> Tensor:
        self.bytes_sent += message.nbytes
        received, group = torch.empty_like(message), self.thread.group
        both = (dist.isend, message), (dist.irecv, received)
        for work in dist.batch_isend_irecv([dist.P2POp(f, x, peer, group) for f, x in both]):
            work.wait()
        return received


def _largest(u: Tensor, count: int) -> Tensor:
    """Places of the `count` largest entries of a flat tensor, by magnitude and exactly.

    A threshold from a sixty-fourth of the entries leaves few to sort where few are wanted.
    """
    size = u.abs()
    if 16 * count < len(u):
        sample = size[::64]
        threshold = sample.topk(min(len(sample), count // 32 + 32)).values[-1]
        places = (size > threshold).nonzero().flatten()
        if len(places) >= count:
            return places[size[places].topk(count).indices]
    return size.topk(count).indices


def _gaussian(u: Tensor, count: int) -> Tensor:
    """Places of about the `count` largest entries, by a normal distribution's threshold.

    They are a third more: of more candidates the largest, and where there are fewer the rest
    repeats the place 0.
    """
    capacity = min(len(u), math.ceil(4 * count / 3))
    spread, centre = torch.std_mean(u, correction=0)
    share = torch.tensor(1 - count / (2 * u.numel()), dtype=torch.float64)
    threshold = (centre + spread * torch.special.ndtri(share).to(u)).clamp(min=0.0)
    size = u.abs()
    for _ in range(3):
        above = int((size > threshold).sum())
        if 3 * above < 2 * count:
            threshold = threshold * 0.5
        elif 3 * above > 4 * count:
            threshold = threshold * 1.5
        else:
            break
    places = (size > threshold).nonzero().flatten()
    if len(places) > capacity:
        places = places[u[places].abs().topk(capacity).indices]
    return torch.cat([places, places.new_zeros(capacity - len(places))])


def _check(*densities: float) -> None:
    for density in densities:
        if not 0 < density <= 1:
            raise ValueError(f"a density is more than 0 and at most 1, not {density}")


def _merged(
    one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Add two sparse vectors, places and values, and keep as many of the largest as the first has.

    Returns:
        What is kept, in ascending places, and what is dropped. Of equal sizes the lower place is
        kept.
    """
    places, back = torch.cat([one[0], other[0]]).unique(return_inverse=True)
    values = one[1].new_zeros(len(places))
    values[back[: len(one[0])]] = one[1]
    values[back[len(one[0]) :]] += other[1]
    order = values.abs().sort(descending=True, stable=True).indices
    kept, dropped = order[: len(one[0])].sort().values, order[len(one[0]) :]
    return (places[kept], values[kept]), (places[dropped], values[dropped])


def _pack(index: Tensor, values: Tensor) -> Tensor:
    """Places and values as one message; the bits of places, since floats end at 2^24."""
    return torch.cat([index.to(torch.int32).view(torch.float32), values])


def _unpack(message: Tensor) -> tuple[Tensor, Tensor]:
    """Places and values of a message."""
    index, values = message.chunk(2)
    return index.view(torch.int32).long(), values


def lags_densities(
    sizes: dict[str, int], times: dict[str, float], alpha: float, beta: float, processes: int
) -> dict[str, float]:
    """For each parameter the highest density that hides behind the rest of the backward pass.

    What is chosen of a parameter travels while the backward pass computes the next gradient; the
    density is the highest whose selection and all-gather end by then (LAGS-SGD, section 4), and at
    least a thousandth.

    Sizes are entries, in the order in which gradients are ready; times seconds of the backward pass
    for each; alpha is seconds a message, beta seconds a byte.
    """
    names, densities = list(sizes), {}
    following = [*(times.get(name, 0.0) for name in names[1:]), 0.0]
    for name, time in zip(names, following, strict=True):
        spare = time - _SELECT * sizes[name] - alpha * math.log2(processes)
        entry = 8 * (processes - 1) * beta * sizes[name]
        density = 1.0 if entry == 0 else spare / entry
        densities[name] = min(1.0, max(density, _LEAST))
    return densities


def _first_of_each(index: Tensor) -> Tensor:
    """Which places are not repetitions of an earlier one."""
    order = index.sort(stable=True)
    first = torch.ones_like(index, dtype=torch.bool)
    first[1:] = order.values[1:] != order.values[:-1]
    return torch.zeros_like(first).scatter_(0, order.indices, first)
