"""Timing on a machine that other programs use too.

A median over repetitions forgives single disturbances but no drift: a processor that slows down
for a minute makes whatever is measured in that minute look slow. So where figures are compared,
they are measured in turns (`measure_in_turns`), and a long series carries a reference network
along, by whose own time each figure is corrected (`measure_against`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

__all__ = ["Timing", "measure", "measure_against", "measure_in_turns", "milliseconds", "now"]

_Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call, over repetitions."""

    median: float  #: half of the calls took less
    p10: float  #: a tenth took less
    p90: float  #: nine tenths took less
    repetitions: int  #: how many calls

    @classmethod
    def of(cls, times: Sequence[float]) -> Timing:
        """The summary of single calls' milliseconds; at least one."""
        if not times:
            raise ValueError("no repetitions to summarise")
        tenths = list(times)
        if len(times) > 1:
            tenths = statistics.quantiles(times, n=10, method="inclusive")
        return cls(statistics.median(times), tenths[0], tenths[-1], len(times))

    def scaled(self, factor: float) -> Timing:
        """The same at another speed."""
        median, p10, p90 = (factor * value for value in (self.median, self.p10, self.p90))
        return Timing(median, p10, p90, self.repetitions)

    def to_json(self) -> dict[str, float | int]:
        """Plain values, milliseconds to a tenth of a microsecond."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def milliseconds(call: _Call, device: torch.device | str = "cpu") -> float:
    """Wall time of one call, from an idle device until it is idle again."""
    start = now(device)
    call()
    return 1e3 * (now(device) - start)


def now(device: torch.device | str = "cpu") -> float:
    """Seconds of a clock, read once the device has done its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(
    call: _Call,
    device: torch.device | str = "cpu",
    *,
    warmup: int = 2,
    repetitions: int = 10,
    seconds: float = 0.0,
) -> Timing:
    """Time a call.

    Args:
        call: what is timed; it takes no arguments.
        device: what to wait for after each call.
        warmup: calls before the first that counts.
        repetitions: at least so many.
        seconds: go on at least so long.
    """
    return Timing.of(_repeat([call], device, warmup, repetitions, seconds)[0])


def measure_in_turns(
    calls: Sequence[_Call],
    device: torch.device | str = "cpu",
    *,
    warmup: int = 2,
    repetitions: int = 10,
) -> list[Timing]:
    """Time several calls in turns, so that drift meets all of them alike; as `measure`."""
    return [Timing.of(times) for times in _repeat(calls, device, warmup, repetitions, 0.0)]


def measure_against(
    call: _Call,
    reference: _Call,
    device: torch.device | str = "cpu",
    *,
    warmup: int = 2,
    repetitions: int = 10,
    seconds: float = 0.0,
) -> tuple[Timing, Timing, float]:
    """Time a call and a reference in turns.

    Returns:
        The call's timing, the reference's, and the median ratio of each call to the reference
        right before it: what drift leaves unchanged.
    """
    beside, times = _repeat([reference, call], device, warmup, repetitions, seconds)
    ratios = [mine / other for mine, other in zip(times, beside, strict=True)]
    return Timing.of(times), Timing.of(beside), statistics.median(ratios)


def _repeat(
    calls: Sequence[_Call],
    device: torch.device | str,
    warmup: int,
    repetitions: int,
    seconds: float,
) -> list[list[float]]:
    if repetitions < 1:
        raise ValueError(f"repetitions {repetitions}: must be at least 1")
    times: list[list[float]] = [[] for _ in calls]
    with torch.inference_mode():
        for call in calls:
            for _ in range(warmup):
                call()
        end = time.perf_counter() + seconds
        while len(times[-1]) < repetitions or time.perf_counter() < end:
            for call, mine in zip(calls, times, strict=True):
                mine.append(milliseconds(call, device))
    return times
