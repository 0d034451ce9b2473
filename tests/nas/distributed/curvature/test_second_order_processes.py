"""Second-order preconditioners on several processes: as one process with the whole batch."""

from __future__ import annotations

import distributed_second_order as remote
import pytest
import torch
from ranks import run_ranks


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_are_as_one_with_the_whole_batch(processes):
    """Gradients of outputs are those of a process's mean loss: P times as large."""
    whole = remote.second_order(0, 1)
    ranks = run_ranks(processes, remote.second_order, processes)
    for kind, (weights, _, first) in whole.items():
        for rank in ranks:
            close(rank[kind][0], weights, 1e-5)
            assert rank[kind][:2] == ranks[0][kind][:2]
        found = ranks[0][kind][2]
        assert found.keys() == first.keys() == {"net.first", "net.volume", "net.head"}
        if kind == "eva":
            for name, (a, b) in first.items():
                close(found[name][0], a, 1e-6)
                close(torch.tensor(found[name][1]) / processes, b, 1e-6)
    close(ranks[0]["owner"][0], ranks[0]["eigen"][0], 1e-6)


def test_owners_store_alone_and_all_have_the_same(tmp_path):
    one, other = run_ranks(2, remote.owners, str(tmp_path))
    assert one["stored"] == one["solved"] and other["stored"] == other["solved"]
    assert not set(one["stored"]) & set(other["stored"])
    assert {*one["stored"], *other["stored"]} == {"net.first", "net.volume", "net.head"}
    assert one["digests"] == other["digests"] and len(set(one["digests"])) == 5
    assert min(rank["own"] for rank in (one, other) if rank["own"] is not None) <= 1e-6
    assert one["whole"] == other["whole"] == one["again"] == other["again"]
    assert one["restarted"] == other["restarted"]  # each from its own part, as snapshots keep it
    assert one["costs"] == other["costs"] and min(one["costs"]) > 0
    assert one["owners"] == other["owners"] and set(one["owners"]) == {0, 1}


@pytest.mark.parametrize("distribute", ["owner", "owner-local"])
def test_a_decomposition_that_fails_on_its_owner_ends_all(distribute):
    other, owner = run_ranks(2, remote.failing, distribute)
    assert owner == "it fails here"
    assert other.startswith("a factor of the curvature cannot be decomposed in another process")


def close(found, expected, within):
    found, expected = torch.as_tensor(found), torch.as_tensor(expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=within)
