"""What watches a training of several processes, and what would go wrong in it unseen."""

from __future__ import annotations

import distributed_checks as remote
from ranks import run_ranks


def test_a_config_adds_the_checks(tmp_path):
    (seen, megabytes), (other, _) = run_ranks(2, remote.configured, str(tmp_path))
    assert seen == other == [(200, "raise")]
    assert len(megabytes) > 1 and min(megabytes) > 0


def test_batch_normalisation_of_one_value_is_refused():
    assert run_ranks(2, remote.single_values, [1, 1]) == [True, True]
    for said in run_ranks(2, remote.single_values, [0, 1]):
        assert "it needs more than one value for each channel" in said and "\n" not in said
