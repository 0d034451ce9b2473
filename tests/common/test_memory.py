"""The setting is of the whole process, so it is tried in one of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vizoo.common import memory
from vizoo.common.memory import available_memory

CODE = """
import resource, torch
from vizoo.__main__ import main
from vizoo.common.memory import PeakMemory
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
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
print(min(counts), peak.bytes)
"""


@pytest.mark.skipif(memory._glibc("mallopt") is None, reason="glibc only")
def test_freed_memory_serves_the_next_tensor():
    """In every command; a peak counts what was kept all the same."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    faults, peak = map(int, done.stdout.splitlines()[-1].split())
    assert faults < 1000  # 128 MB are 32,768 pages of 4 kB
    assert peak > 120e6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of /proc")
def test_available_memory_is_some():
    assert available_memory() > 1 << 20


def test_files_in_memory_give_way_in_a_container(monkeypatch, tmp_path):
    """Who has read a data set there would have no memory left for a single pair."""
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    for name, content in (("max", "2000000\n"), ("current", "1900000\n")):
        (tmp_path / f"memory.{name}").write_text(content)
    assert available_memory() == 100_000
    (tmp_path / "memory.stat").write_text(
        "anon 300000\nfile 1600000\nshmem 100000\ninactive_file 900000\nactive_file 600000\n"
    )
    assert available_memory() == 1_600_000
