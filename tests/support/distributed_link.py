"""What the processes of the tests of links do; plain values come back."""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist

from vizoo.nas.distributed.schedule.link import SIZES, measure_all_reduce


def timed(rank, longest):
    """What is measured by a clock on which a message takes 2 ms, on one process 3, and 1 ns a byte.

    Returns:
        The messages, and how many all-reduces there were.
    """
    clock, count, plain = 0.0, 0, dist.all_reduce

    def all_reduce(tensor, *arguments, **more):
        nonlocal clock, count
        clock += 2e-3 + 1e-3 * rank + 1e-9 * tensor.nbytes
        count += 1
        return plain(tensor, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vizoo.common.timing.now", lambda device: clock)
        patch.setattr(dist, "all_reduce", all_reduce)
        return measure_all_reduce(sizes=SIZES, seconds=0.01, longest=longest), count


def printed(rank, function, path, *arguments):
    """Call a function of a process; what it prints comes at the end of a file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    function(rank, *arguments)
