"""How the process holds memory, and how much."""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .system import told_by

if TYPE_CHECKING:
    import torch

__all__ = [
    "PeakMemory",
    "available_memory",
    "held_memory",
    "keep_freed_memory",
    "ran_out_of_memory",
    "return_freed_memory",
]

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's malloc.h
_CGROUP = Path("/sys/fs/cgroup")


def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees, for the next tensor.

    glibc hands every large block back to the system and asks for it again, and the system clears
    each page anew: a fifth to a quarter of a training step on a CPU. What the process holds at its
    peak grows by a few per cent, and stays held until it ends, so this is for programs, not
    for libraries to call unasked.

    Returns:
        Whether it could be done: False where the C library is not glibc.
    """
    mallopt = _glibc("mallopt")
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, -1))


def return_freed_memory() -> None:
    """Give what this process freed and kept back to the system, where the C library is glibc."""
    if (trim := _glibc("malloc_trim")) is not None:
        trim(0)


def available_memory() -> int | None:
    """Return how many bytes new work could have without swapping; None where nobody says.

    In a container it is what its limit leaves, if that is less; files that are kept in memory count
    as used there, and give way.
    """
    free = _bytes("/proc/meminfo", "MemAvailable")
    try:
        limit, used = ((_CGROUP / name).read_text() for name in ("memory.max", "memory.current"))
        kept = re.findall(r"^(?:in)?active_file (\d+)$", told_by(_CGROUP / "memory.stat"), re.M)
        left = int(limit) - int(used) + sum(map(int, kept))
    except (OSError, ValueError):  # no container, or "max"
        return free
    return left if free is None else min(free, left)


def held_memory(most: bool = False) -> int:
    """Return how many bytes this process holds, or held at the most; 0 where nobody says."""
    return _bytes("/proc/self/status", "VmHWM" if most else "VmRSS") or 0


def ran_out_of_memory(error: BaseException) -> bool:
    """Say whether an error is that there is not enough memory, of the machine or of a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # PyTorch has no kind of its own for the CPU.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


class PeakMemory:
    """Peak memory inside a `with` block."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        #: after the block; on a GPU the allocator's peak, on the CPU the growth of resident memory
        #: beyond what was held before (0 outside Linux)
        self.bytes = 0

    def __enter__(self) -> PeakMemory:
        import torch

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            return_freed_memory()  # what takes it again would not show as growth
            # Writing 5 makes Linux forget the earlier peak; elsewhere the growth is a lower bound.
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
            self._before = held_memory()
        return self

    def __exit__(self, *_: object) -> None:
        import torch

        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self.device)
        else:
            self.bytes = max(0, held_memory(most=True) - self._before)


def _glibc(function: str) -> Any:
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None


def _bytes(file: str, key: str) -> int | None:
    """What Linux tells in kibibytes; None elsewhere."""
    row = next((line for line in told_by(file).splitlines() if line.startswith(f"{key}:")), None)
    return 1024 * int(row.split()[1]) if row else None
