"""What messages between processes take: alpha seconds each and beta seconds a byte, measured.

Source of the model and of the published links: Shi et al., "MG-WFBP: Merging Gradients Wisely for
Efficient Communication in Distributed Deep Learning", TPDS 2021 (arXiv 1912.09268).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ....common.files import JsonFile, write_json
from ....common.timing import milliseconds

__all__ = ["LINKS", "SIZES", "Link", "fit_link", "measure_all_reduce"]

SIZES = tuple(1 << power for power in range(10, 25, 2))
"""Bytes of the messages that are measured: 1 KiB to 16 MiB."""


@dataclass(frozen=True)
class Link(JsonFile):
    """What an all-reduce of n bytes among some processes takes: alpha + beta n seconds.

    Raises:
        ValueError: fewer than two processes, or times that cannot be.
    """

    called = "a measured link"
    processes: int  #: how many
    alpha: float  #: seconds a message
    beta: float  #: seconds a byte

    def __post_init__(self) -> None:
        if self.processes < 2:
            raise ValueError(f"{self.processes} processes: a link has at least 2")
        if not (0 <= self.alpha < math.inf and 0 < self.beta < math.inf):
            raise ValueError(
                f"alpha {self.alpha}, beta {self.beta}: seconds, at least 0 and more than 0"
            )

    @classmethod
    def fitted(cls, processes: int, messages: Sequence[tuple[float, float]]) -> Link:
        """The link that fits measured messages, each (bytes, seconds).

        Raises:
            ValueError: they are of fewer than two sizes, or do not show a bandwidth.
        """
        alpha, beta = fit_link(*zip(*messages, strict=True))
        if not beta:
            raise ValueError(
                "large messages took no longer than small ones: measure again, on a machine and a "
                "link with less to do, or for more seconds"
            )
        return cls(processes, alpha, beta)

    @property
    def hop(self) -> float:
        """Seconds a message from one process to another, without its bytes."""
        return self.alpha / (2 * math.log2(self.processes))

    @property
    def byte(self) -> float:
        """Seconds a byte that a process sends: an all-reduce sends each 2 (P - 1) / P times."""
        return self.beta * self.processes / (2 * (self.processes - 1))

    def at(self, processes: int) -> Link:
        """The same wires among another number of processes.

        Latencies grow with the logarithm, as in a tree or by halving and doubling; those of a ring
        grow with the number itself, so that for a ring this is the least.
        """
        alpha = 2 * math.log2(processes) * self.hop
        return Link(processes, alpha, 2 * (processes - 1) / processes * self.byte)

    def save(self, path: str | os.PathLike[str], **more: object) -> Path:
        """Write it as JSON, for `load`, with more that is worth knowing."""
        return write_json(path, {**asdict(self), **more})

    @classmethod
    def from_json(cls, data: Any) -> Link:
        """What `vizoo comm measure` wrote; raises a ValueError where it is something else."""
        try:
            return cls(int(data["processes"]), float(data["alpha"]), float(data["beta"]))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"not a measured link ({error}); `vizoo comm measure` writes one"
            raise ValueError(reason) from None


LINKS = {
    "10gbe-8": Link(8, 5.2e-4, 8.6e-10),
    "10gbe-16": Link(16, 9.1e-4, 7.4e-10),
    "56gbib-8": Link(8, 9.8e-5, 3.1e-10),
    "56gbib-16": Link(16, 2.4e-4, 4.1e-10),
}
"""Published: 10 Gb/s Ethernet and 56 Gb/s InfiniBand, by the number of processes."""


def fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Alpha and beta of measured messages, by least squares; neither is negative.

    Errors may grow with the square root of the time: absolute ones would leave alpha to chance,
    relative ones let short messages, which a shaped or shared link treats better, decide on beta.

    Raises:
        ValueError: there are fewer than two sizes.
    """
    if len(set(sizes)) < 2 or len(sizes) != len(seconds):
        raise ValueError("alpha and beta need messages of at least two sizes, a time for each")
    times = np.asarray(seconds, dtype=float)
    rows = np.stack([np.ones(len(times)), np.asarray(sizes, dtype=float)], axis=1)
    rows, wanted = rows / np.sqrt(times)[:, None], np.sqrt(times)
    alpha, beta = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    if min(alpha, beta) < 0:  # then the other alone fits best
        alone = wanted @ rows / np.square(rows).sum(0)
        alpha, beta = np.where([alpha < 0, beta < 0], 0.0, alone)
    return float(alpha), float(beta)


def measure_all_reduce(
    device: torch.device | str = "cpu",
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] = SIZES,
    seconds: float = 0.5,
    longest: float = 2.0,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[tuple[int, float]]:
    """Time all-reduces; every process of the group has to call it.

    Args:
        device: of the tensors, as the group's backend wants it.
        group: by default all processes.
        sizes: of the messages in bytes, ascending.
        seconds: to spend on a size.
        longest: no larger size is measured once a message takes so many seconds, if there are five.
        tell: told after each size how many of how many are done.

    Returns:
        (bytes, median seconds of the slowest process), the same on all processes.
    """
    device, measured = torch.device(device), []

    def slowest(times: list[float]) -> list[float]:
        values = torch.tensor(times, dtype=torch.float32, device=device)
        dist.all_reduce(values, dist.ReduceOp.MAX, group)
        return values.tolist()

    def once(message: torch.Tensor) -> float:
        dist.all_reduce(message[:1], group=group)  # all begin together
        return 1e-3 * milliseconds(lambda: dist.all_reduce(message, group=group), device)

    for number, size in enumerate(sizes):
        message = torch.zeros(max(1, size // 4), device=device)
        once(message)
        first = slowest([once(message)])[0]
        repeats = min(50, max(3, int(seconds / first)))
        times = slowest([once(message) for _ in range(repeats)])
        measured.append((4 * len(message), sorted(times)[len(times) // 2]))
        tell(number + 1, len(sizes))
        if measured[-1][1] > longest and len(measured) >= 5:
            break
    return measured
