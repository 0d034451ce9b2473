"""Messages as planned, by buckets that are held back and by the sizes of buckets."""

from __future__ import annotations

import distributed_merging as remote
import pytest
import torch
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import Strategy
from ranks import run_ranks

from vizoo.nas.distributed import HookDDPStrategy, MergePlan
from vizoo.nas.distributed.schedule.merging import bucket_caps, has_bucket_caps
from vizoo.nas.distributed.schedule.simulator import _bucket_groups

NAMES = ["4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"]
PLANS = {
    "hook": {"apply": "hook"},
    **({"caps": {"apply": "caps"}} if has_bucket_caps() else {}),
    # A message costs much beside its bytes, or next to nothing.
    "dear": {"alpha": 10.0, "beta": 0.0},
    "cheap": {"alpha": 0.0, "beta": 1e-12},
}


@pytest.fixture(scope="module")
def trained():
    """By plan, what both processes found in training by it."""
    found = run_ranks(2, remote.training, *PLANS.values())
    return dict(zip(PLANS, zip(*found, strict=True), strict=True))


@pytest.mark.skipif(not has_bucket_caps(), reason="this PyTorch takes no sizes of buckets")
def test_both_ways_give_the_planned_groups():
    for found, same in run_ranks(2, remote.both_ways):
        assert all(same)
        for way in ("hook", "caps"):
            assert [len(names) for names in found[way]] == [1, 3, 2]
        assert found["hook"] == found["caps"]
        assert sorted(sum(found["hook"], [])) == sorted(NAMES)
        assert len(found["plain"]) == 1


def test_compressors_see_groups():
    for found in run_ranks(2, remote.compressed):
        assert found == {"acpsgd": (True, 2, 3), "topk": (True, 2, 3)}


@pytest.mark.parametrize("apply", [name for name in ("hook", "caps") if name in PLANS])
def test_a_plan_is_measured_agreed_on_and_followed(trained, apply):
    one, other = trained[apply]
    for found in (one, other):
        assert found["weights"] == found["plain"]
        assert [len(names) for names in found["messages"]] == found["groups"]
        assert found["handles"] == 0
        assert found["epochs"] == [1, 4]  # after four passes, and after four of larger batches
    assert one["groups"] == other["groups"] and one["messages"] == other["messages"]


def test_a_plan_suits_the_link(trained):
    dear, cheap = trained["dear"][0], trained["cheap"][0]
    for found in (dear, cheap):
        assert found["weights"] == found["plain"] and len(sum(found["messages"], [])) == 14
    assert len(dear["groups"]) == 1 and 5 <= len(cheap["groups"]) <= 14


def test_parameters_that_no_process_uses_do_not_travel():
    for found in run_ranks(2, remote.skipped):
        for error, sent, used, messages in found:
            assert error < 1e-6 and sent == used and messages <= 2
        assert len({used for _, _, used, _ in found}) > 1


def test_caps_close_where_groups_do():
    sizes, groups = [4, 4, 400, 8, 1024, 4], [2, 1, 3]
    limits = [cap * 2**20 for cap in bucket_caps(sizes, groups)]
    assert limits == pytest.approx([8 - 0.5, 400 - 0.5, 1036 - 0.5])
    first = 0
    for limit, count in zip(limits, groups, strict=True):
        assert _bucket_groups(sizes[first:], int(limit))[0] == count
        first += count


def test_a_plan_of_a_config():
    parser = LightningArgumentParser()
    parser.add_subclass_arguments(Strategy, "strategy")
    plan = {"class_path": "vizoo.nas.distributed.MergePlan", "init_args": {"measure_steps": 9}}
    words = {"hook": "fp16", "plan": plan, "process_group_backend": "gloo"}
    config = {"class_path": "vizoo.nas.distributed.HookDDPStrategy", "init_args": words}
    made = parser.instantiate_classes(parser.parse_object({"strategy": config})).strategy
    assert isinstance(made.plan, MergePlan) and made.plan.measure_steps == 9
    assert made.hook.dtype == torch.float16


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MergePlan(1), "warmup_steps 1 and measure_steps 50: at least 2 and 1"),
        (lambda: MergePlan(alpha=1.0), "alpha 1.0 and beta None: give both, not negative, or none"),
        (lambda: MergePlan(apply="no"), "apply 'no': choose hook or caps"),
        (
            lambda: HookDDPStrategy("powersgd", MergePlan()),
            "plan: powersgd keeps its state by bucket",
        ),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(says) and "\n" not in str(error.value)
