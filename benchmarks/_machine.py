"""What a table says about the machine it was measured on."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch


def machine() -> str:
    """CPU, threads and PyTorch version in one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":", 1)[1].strip() if lines else name
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def commit() -> str:
    """The commit that is checked out, in short."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def seconds(function: Callable[[], object]) -> float:
    """Time of one call: wall time, or with one thread the CPU time of the process."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    function()
    return clock() - start


def gemm_rate(dtype: torch.dtype = torch.float32) -> float:
    """Multiply-adds per second of a large matrix product, best of ten."""
    a = torch.rand(1536, 1536).to(dtype)
    return len(a) ** 3 / min(seconds(lambda: a @ a) for _ in range(10))


def copy_rate() -> float:
    """Bytes read and written per second when a large tensor is copied, best of ten."""
    a = torch.rand(1 << 24)
    b = torch.empty_like(a)
    return 8 * a.numel() / min(seconds(lambda: b.copy_(a)) for _ in range(10))


def peak_megabytes() -> float:
    """The largest resident memory this process has had."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024
