"""What DistributedDataParallel does with supernets, on which `HookDDPStrategy` builds."""

from __future__ import annotations

import distributed_table as remote
import pytest
from ranks import run_ranks


@pytest.fixture(scope="module")
def found():
    return run_ranks(2, remote.table)[1]


def test_subnets_that_change_are_an_error_where_nothing_looks_for_unused_parameters(found):
    assert "Expected to have finished reduction in the prior iteration" in found["default"]
    assert "training graph has changed" in found["static"] or "static graph" in found["static"]


@pytest.mark.parametrize("setting", ["unused", "different", "together", "apart", "mixed", "single"])
def test_gradients_are_exact_and_unused_ones_stay_away(found, setting):
    if setting not in found:
        pytest.skip("this PyTorch reduces unused parameters always")
    error, right, _, _ = found[setting]
    assert error < 1e-7 and right


def test_what_travels(found):
    for setting in ("unused", "different", "together", "apart"):
        _, _, travelled, used = found[setting]
        assert set(travelled) == {found["all"]}, setting
    assert len(set(found["unused"][3])) == 2


def test_only_whole_buckets_are_skipped(found):
    if "single" not in found:
        pytest.skip("this PyTorch reduces unused parameters always")
    _, _, travelled, used = found["single"]
    assert travelled == used and min(used) < max(used)
    _, _, mixed, _ = found["mixed"]
    assert all(u <= m <= found["all"] for m, u in zip(mixed, used, strict=True)) and mixed != used


def test_different_subnets_of_equal_shapes_are_mixed_up_without_a_word(found):
    """Hence the check of every step that all processes train the same subnets."""
    if "mixed up" not in found:
        pytest.skip("this PyTorch reduces unused parameters always")
    assert found["mixed up"] == (True, True)


def test_one_flat_message_is_exact():
    for error, entries in run_ranks(2, remote.flat):
        assert error == 0.0 and 0 < entries < 400
