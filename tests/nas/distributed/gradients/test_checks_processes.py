"""What watches a training of several processes, and what would go wrong in it unseen."""

from __future__ import annotations

from types import SimpleNamespace

import distributed_checks as remote
import pytest
from ranks import run_ranks

from vizoo.nas.distributed import FSDP2Strategy, HookDDPStrategy, ReplicaDriftCheck


def test_a_config_adds_the_checks(tmp_path):
    (seen, megabytes), (other, _) = run_ranks(2, remote.configured, str(tmp_path))
    assert seen == other == [(200, "raise")]
    assert len(megabytes) > 1 and min(megabytes) > 0


def test_parameters_that_are_divided_are_not_compared():
    check = ReplicaDriftCheck()
    check.setup(SimpleNamespace(strategy=HookDDPStrategy()), None, "fit")
    with pytest.raises(ValueError, match="whole parameters, which FSDP2Strategy divides"):
        check.setup(SimpleNamespace(strategy=FSDP2Strategy()), None, "fit")


def test_batch_normalisation_of_one_value_is_refused():
    assert run_ranks(2, remote.single_values, [1, 1]) == [True, True]
    for said in run_ranks(2, remote.single_values, [0, 1]):
        assert "it needs more than one value for each channel" in said and "\n" not in said
