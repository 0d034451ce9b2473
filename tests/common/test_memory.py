"""The setting is of the whole process, so it is tried in one of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vizoo.common.memory import available_memory

CODE = """
import resource, torch
from vizoo.common.memory import keep_freed_memory
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
kept = keep_freed_memory()
torch.ones(1 << 25)
counts = []
for _ in range(12):
    before = faults()
    torch.ones(1 << 25)
    counts.append(faults() - before)
# The first few can still find a small block in the way and grow the heap.
print(kept, min(counts))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_serves_the_next_tensor():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept, faults = done.stdout.split()
    # 128 MB are 32,768 pages of 4 kB.
    assert kept == "False" or int(faults) < 1000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of /proc")
def test_available_memory_is_some():
    assert available_memory() > 1 << 20
