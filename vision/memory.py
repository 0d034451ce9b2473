"""How the process holds memory."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees, for the next tensor.

    glibc hands every large block back to the system and asks for it again, and the system clears
    each page anew: a fifth to a quarter of a training step on a CPU. What the process holds at its
    peak grows by a few per cent, and stays held until it ends, so this is for programs, not
    for libraries to call unasked.

    Returns:
        Whether it could be done: False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
