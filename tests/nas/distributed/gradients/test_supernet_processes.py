"""Supernets trained by several processes: as one process with the whole batch would."""

from __future__ import annotations

import distributed_training as remote
import pytest
import torch
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import Strategy
from ranks import run_ranks
from torch import nn
from toy_regression import Net

from vizoo.nas import activate, convert, search_space
from vizoo.nas.distributed import MergePlan
from vizoo.nas.distributed.gradients.regions import active_regions, views
from vizoo.nas.distributed.gradients.strategy import HOOKS, _make_hook
from vizoo.nas.distributed.schedule.merging import has_bucket_caps
from vizoo.nas.elastic import Conv2d, Sequential
from vizoo.nas.recalibration import recalibrate
from vizoo.nas.space import Choice
from vizoo.nas.training import LargestSampler, SandwichSampler, UniformSampler
from vizoo.nas.values import concat


def _close(one, other, within=1e-5):
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=0, atol=within)


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": UniformSampler(2)},
        {"sampler": SandwichSampler(1), "distillation": "in_place"},
        {"sampler": UniformSampler(1), "accumulate_grad_batches": 2, "gradient_clip_val": 0.02},
        {"sampler": UniformSampler(2), "hook": "dense", "limit_val_batches": 1.0},
    ],
)
def test_two_processes_train_as_one_with_the_whole_batch(settings):
    both = run_ranks(2, remote.train_supernet, 2, settings)
    whole = remote.train_supernet(0, 1, settings)
    assert both[0]["weights"] == both[1]["weights"]
    _close(both[0]["weights"], whole["weights"])
    start = remote.start_weights()
    assert (torch.tensor(whole["weights"]) - start).abs().max() > 1e-3
    assert both[0]["bytes"] > 0 and whole["kinds"] == both[0]["kinds"]
    if "limit_val_batches" in settings:  # measured on all processes' batches by all
        assert both[0]["statistics"] == both[1]["statistics"] != whole["statistics"]
        shown = {name: v for name, v in both[0]["metrics"].items() if name.startswith("val/")}
        assert set(shown) == {"val/largest/error", "val/smallest/error"}
        assert shown.items() <= both[1]["metrics"].items()


def test_hooks_run_on_a_processor_and_only_active_parameters_travel():
    one, other = run_ranks(2, remote.facts)
    assert one["same"] and not one["differ"]
    assert one["error"] < 1e-7 and one["calls"] > 4
    assert one["sizes"] == other["sizes"] and len(set(one["sizes"])) > 1
    # Entries that are zero by chance, and kernels' rims, travel as well.
    whole = 4 * sum(p.numel() for p in Net().parameters())
    assert all(u <= size <= whole for u, size in zip(one["used"], one["sizes"], strict=True))
    assert min(one["sizes"]) < whole / 3


def test_channels_last_parameters_travel_in_their_own_order():
    for found in run_ranks(2, remote.channels_last):
        assert max(found.values()) < 1e-7, found


def test_processes_sort_channels_alike():
    one, other = run_ranks(2, remote.sort_by_the_loss, 2)
    assert one == other and one != remote.start_weights().tolist()


def test_different_subnets_are_an_error():
    for said in run_ranks(2, remote.different_subnets):
        assert said.startswith("the processes drew different subnets for one step")


def test_drift_by_a_bit_is_seen_and_mended():
    one, other = run_ranks(2, remote.drifts)
    for said, _ in (one, other):
        assert "different parameters after step 2" in said and "\n" not in said
    assert one[1] == other[1]


@pytest.mark.parametrize("share", [[[0, 1], [2, 3, 4]], [[0, 1, 2, 3, 4], []], [[3], [4, 0, 1, 2]]])
def test_recalibration_over_processes_is_that_of_one(share):
    torch.manual_seed(0)
    net = Net().double()
    activate(net, search_space(net).smallest())
    recalibrate(net, remote.recalibration_batches())
    expected = torch.cat([b.flatten() for b in net.buffers()]).tolist()
    for found in run_ranks(2, remote.recalibrated, share):
        _close(found, expected, 1e-12)


def test_regions_hold_all_gradients():
    torch.manual_seed(0)
    net = Net()
    space = search_space(net)
    for step in range(8):
        net.zero_grad()
        drawn = UniformSampler(2).subnets(space, step)
        for architecture in drawn:
            activate(net, architecture)
            net(torch.randn(2, 4, 6, 6)).square().mean().backward()
        regions = active_regions(net, drawn)
        for parameter in net.parameters():
            if parameter.grad is not None:
                inside = views(parameter.grad, regions.get(id(parameter)))
                held = sum(view.abs().sum().double() for view in inside)
                assert held == pytest.approx(parameter.grad.abs().sum().double().item())
    assert not active_regions(net, LargestSampler().subnets(space, 0))


def test_converted_layers_travel_whole():
    """Their channels lie anywhere: pieces of them would take longer to gather than to send."""
    plain = nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 2, 1))
    net = convert(plain, torch.rand(1, 3, 4, 4)).net
    assert not active_regions(net, [search_space(net).smallest()])


def test_regions_of_a_concatenation_have_gaps():
    widths = [Choice(name, (1, 4)) for name in "ab"]
    net = Conv2d(concat(*widths), 2, 1)
    space = search_space(net)
    regions = active_regions(net, [space.smallest()])
    assert regions == {id(net.weight): [(1, ((0, 1), (4, 1)))]}
    blocks = views(net.weight, regions[id(net.weight)])
    assert [block.shape for block in blocks] == [(2, 1, 1, 1)] * 2
    both = space.restrict({"a": [4], "b": [1]}).largest()
    assert active_regions(net, [space.smallest(), both])[id(net.weight)] == [(1, ((0, 5),))]


def test_a_shared_parameter_travels_whole():
    width = Choice("width", (1, 4))
    net = Sequential(Conv2d(2, width, 1), Conv2d(width, 2, 1))
    net.append(torch.nn.Conv2d(2, 4, 1))
    net[2].weight = net[0].weight
    assert id(net[0].weight) not in active_regions(net, [search_space(net).smallest()])


def test_strategies_of_a_config():
    parser = LightningArgumentParser()
    parser.add_subclass_arguments(Strategy, "strategy")
    path = "vizoo.nas.distributed.HookDDPStrategy"

    def made(**arguments):
        config = {"strategy": {"class_path": path, "init_args": arguments}}
        return parser.instantiate_classes(parser.parse_object(config)).strategy

    found = made(hook="subnet", process_group_backend="gloo", bucket_cap_mb=1)
    assert found.hook.needs_unused and found._ddp_kwargs["bucket_cap_mb"] == 1
    hook = {"class_path": "vizoo.nas.distributed.AllReduce", "init_args": {"dtype": "float16"}}
    assert made(hook=hook).hook.dtype == torch.float16
    plain = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook"
    assert made(ddp_comm_hook=plain).hook.hook.__name__ == "allreduce_hook"
    for name in HOOKS:
        assert _make_hook(name).bytes_sent == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"hook": "subnett"}, "there is no hook 'subnett' (did you mean subnet?): choose dense"),
        ({"hook": "subnet", "static_graph": True}, "static_graph: subnets change"),
        ({"ddp_comm_state": 1}, "are for a ddp_comm_hook, which is not given"),
        ({"hook": "topk", "ddp_comm_hook": print}, "give hook or ddp_comm_hook, not both"),
        ({"plan": MergePlan(), "ddp_comm_hook": print}, "PyTorch's own buckets; apply caps"),
    ],
)
def test_bad_strategies_are_one_line(arguments, says):
    from vizoo.nas.distributed import HookDDPStrategy

    with pytest.raises(ValueError) as error:
        HookDDPStrategy(**arguments)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_compressed_training_resumes_with_what_was_left_out(tmp_path):
    one, other = run_ranks(2, remote.resumed_training, str(tmp_path))
    whole, again, lost, residuals, megabytes, files, others = one
    assert whole == again == other[0]
    assert lost == other[2] != whole  # where one has lost its file all start anew
    assert others[0] == others[1] == other[6][0]  # so does another hook
    assert residuals > 5 and 0 < megabytes < 1e-3
    assert "half.ckpt.rank0" in files and "end.ckpt.rank1" in files


def test_powersgd_has_one_bucket():
    one, other = run_ranks(2, remote.powersgd_training)
    assert one[0] == other[0] and torch.tensor(one[0]).isfinite().all()
    assert one[1] > 2


def test_plain_hooks_of_pytorch():
    for dense, same, rounded in run_ranks(2, remote.plain_hook):
        assert same == dense != rounded
        _close(rounded, dense, 1e-2)


def test_steps_that_overflow_leave_no_trace():
    one, other = run_ranks(2, remote.overflowing)
    trained, scale, kept, refused = one
    assert trained == other[0] != remote.start_weights().tolist()
    assert torch.tensor(trained).isfinite().all() and 1 < scale < 2**40
    assert 0 < kept < 1e3 and refused.endswith("take bf16-mixed, or acpsgd")


@pytest.mark.skipif(not has_bucket_caps(), reason="this PyTorch takes no sizes of buckets")
def test_buckets_of_a_supernet_cannot_be_sized():
    for said in run_ranks(2, remote.caps_of_a_supernet):
        assert said == "plan: buckets of subnets are in another order; apply hook"
