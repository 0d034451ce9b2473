"""Snapshots of several processes: shares, parity, the newest that all have."""

from __future__ import annotations

import distributed_snapshots as remote
from ranks import run_ranks


def test_the_newest_snapshot_that_all_have_is_found(tmp_path):
    facts = run_ranks(3, remote.stored, str(tmp_path))
    for found in facts:
        assert found["none"] is None
        assert found["all"] == (3, "memory")
        assert found["torn payload"] == found["torn header"] == (2, "memory")
        assert found["one lost"] == (3, "parity")
        assert found["one lost, another torn"] == (2, "parity")
        assert found["two lost"] == (2, "step0000000002")
        assert found["next"] == (4, "memory")
        assert found["gone"] == (False, False, None)
    own = [found["sizes"][2] for found in facts]
    assert facts[0]["sizes"][1] % 3  # the shares are not equal
    assert len(set(own)) == 3  # nor what each has for itself


def test_processes_that_hold_no_replicas_are_told_so(tmp_path):
    for said in run_ranks(2, remote.different_replicas, str(tmp_path)):
        assert said.startswith("the processes hold different parameters") and "\n" not in said


def test_compressed_training_goes_on_to_the_same_bits(tmp_path):
    memory = tmp_path / "memory"
    memory.mkdir()
    one, other = run_ranks(2, remote.compressed_training, str(tmp_path), str(memory))
    assert one[1] == other[1] and one[2] == other[2] == []
    for same, order, steps_lost in one[1]:
        assert same and order and 0 <= steps_lost <= 2
