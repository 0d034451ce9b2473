"""How a command's process holds memory, counted in a process of its own."""

from __future__ import annotations

import contextlib
import io
import resource

import torch

from vizoo.__main__ import main
from vizoo.common.memory import PeakMemory


def faults_and_peak(found) -> None:
    """Puts into a queue how many pages a tensor of 128 MB was given anew, and a peak in bytes."""

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    with contextlib.redirect_stdout(io.StringIO()):
        main(["convert", "--help"])
    torch.ones(1 << 25)
    counts = []
    for _ in range(12):
        before = faults()
        torch.ones(1 << 25)
        counts.append(faults() - before)
    with PeakMemory(torch.device("cpu")) as peak:
        torch.ones(1 << 25)
    # The first few can still find a small block in the way and grow the heap.
    found.put((min(counts), peak.bytes))
