"""The setting is of the whole process, so it is tried in one of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vizoo.common import memory
from vizoo.common.memory import available_memory

CODE = """
import resource, torch
from vizoo.common.memory import keep_freed_memory
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{}
torch.ones(1 << 25)
counts = []
for _ in range(12):
    before = faults()
    torch.ones(1 << 25)
    counts.append(faults() - before)
# The first few can still find a small block in the way and grow the heap.
print(min(counts))
"""


COMMAND = "__import__('vizoo.__main__').__main__.main(['convert', '--help'])"


@pytest.mark.skipif(memory._glibc("mallopt") is None, reason="glibc only")
@pytest.mark.parametrize("call", ["keep_freed_memory()", COMMAND])
def test_freed_memory_serves_the_next_tensor(call):
    """Where it is asked for, and in every command."""
    code = CODE.format(call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # 128 MB are 32,768 pages of 4 kB.
    assert int(done.stdout.splitlines()[-1]) < 1000


PEAK = """
import torch
from vizoo.common.memory import PeakMemory, keep_freed_memory
keep_freed_memory()
torch.ones(1 << 25)
with PeakMemory(torch.device("cpu")) as peak:
    torch.ones(1 << 25)
print(peak.bytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of /proc")
def test_the_peak_counts_what_was_kept():
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 120e6


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
