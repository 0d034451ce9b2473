"""Processes that train one supernet together split it alike."""

from __future__ import annotations

import distributed_splits
import pytest
from ranks import run_ranks

from vizoo.nas.lid import SplitTree


@pytest.mark.parametrize(("criterion", "shared"), [("lid", True), ("gradient", False)])
def test_all_have_the_same_splits(tmp_path, criterion, shared):
    """Also where they see other batches, and where batch norms wait for all of them."""
    first, second = run_ranks(2, distributed_splits.find, str(tmp_path), criterion, shared)
    assert first == second
    tree = SplitTree.load(tmp_path / "tree.json")
    assert tree.leaves == ("00", "01", "10", "11")
    assert tree.to_json()["splits"] == first[0]["splits"]
