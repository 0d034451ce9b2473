"""The setting is of the whole process, so it is tried in one of its own."""

from __future__ import annotations

import sys

import pytest
from ranks import context

from vizoo.common import memory
from vizoo.common.memory import available_memory


@pytest.mark.skipif(memory._glibc("mallopt") is None, reason="glibc only")
def test_freed_memory_serves_the_next_tensor():
    """In every command; a peak counts what was kept all the same."""
    from page_faults import faults_and_peak  # Windows has none to count

    found = context.SimpleQueue()
    process = context.Process(target=faults_and_peak, args=(found,))
    process.start()
    process.join()
    assert process.exitcode == 0
    faults, peak = found.get()
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
