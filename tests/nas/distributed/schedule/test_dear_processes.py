"""DeAR and FSDP2: the same training as by DistributedDataParallel, scheduled otherwise."""

from __future__ import annotations

import distributed_dear as remote
import pytest
import torch
from ranks import run_ranks

from vizoo.nas.distributed import DeARStrategy
from vizoo.nas.distributed.gradients import sharded


@pytest.mark.parametrize("processes", [2, 3])
def test_weights_are_those_of_plain_training(processes, tmp_path):
    """To the last bit for two processes, whose sums have one order."""
    within = 0 if processes == 2 else 1e-6
    for found in run_ranks(processes, remote.parity, processes, str(tmp_path)):
        for optimizer in remote.OPTIMIZERS:
            plain, steps, losses = found[optimizer, "ddp"]
            weights, seen, found_losses = found[optimizer, "dear"]
            close(weights, plain, within)
            if remote.SHARDS:
                close(found[optimizer, "fsdp2"][0], plain, within)
            close(found_losses, losses, within)  # validation has the last update
            # Otherwise callbacks see weights from before it.
            close(seen[1], steps[0], within)
            assert seen[1] != seen[0] != steps[0]
        for weights in found["resumed"].values():  # each from the other's checkpoint
            close(weights, found["sgd", "ddp"][0], within)
        parts = found["micro-batches"]
        close(parts["dear"], parts["ddp"], within)
        assert parts["ddp"] != found["sgd", "ddp"][0]


def test_a_task_may_call_methods_of_its_network():
    """And validates with the first process's statistics of batch normalisation, as plainly."""
    for found in run_ranks(2, remote.staged):
        plain, losses = found.pop("ddp")
        assert len(found) == 1 + 2 * remote.SHARDS
        for weights, seen in found.values():
            close(weights, plain, 1e-6)
            close(seen, losses, 1e-6)


def test_processes_need_not_have_as_many_batches_to_validate_or_predict():
    for found, samples in zip(run_ranks(2, remote.uneven), (16, 8), strict=True):
        assert len(found["ddp"][2]) == samples
        for values in found.values():
            for value, plain in zip(values, found["ddp"], strict=True):
                close(value, plain, 1e-6)


def test_configs_train(tmp_path):
    one, other = run_ranks(2, remote.configured, str(tmp_path))
    assert one == other
    for code, bias in one:
        assert code == 0
        close(bias, one[0][1], 1e-6)


def test_shards_begin_on_their_device(monkeypatch):
    sent, shards = [], []
    monkeypatch.setattr(sharded, "broadcast_first", sent.extend)
    monkeypatch.setattr(sharded, "fully_shard", lambda module, **_: shards.append(module))
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3), torch.nn.BatchNorm2d(2))
    net.to(memory_format=torch.channels_last)
    task = torch.nn.Module()
    task.net = net
    sharded._shard(task, torch.device("meta"), {"data_parallel": None}, False)
    assert len(sent) == len(net.state_dict()) and all(tensor.is_meta for tensor in sent)
    assert net[0].weight.is_contiguous() and shards == [*net, net]


def test_what_does_not_fit_is_one_line():
    for said in run_ranks(2, remote.refusals):
        clipping, scaler, second, late, unused, other, *averages = said
        assert clipping.startswith("DeARStrategy has no gradients to clip")
        assert "take bf16-mixed; or take HookDDPStrategy" in scaler
        assert second.startswith("Eva needs whole gradients before the optimiser's step")
        assert late.startswith("EMAWeightAveraging reads weights that DeARStrategy has yet to upd")
        assert "net.spare.weight got none (2 did not)" in unused
        assert "not by LBFGS" in other
        if remote.SHARDS:
            assert averages[0].startswith("EMAWeightAveraging copies a network that FSDP2Strategy")
        assert not any("\n" in line for line in said)
    with pytest.raises(ValueError, match="group_mb 0: must be more than 0"):
        DeARStrategy(0)


def close(found, expected, within):
    found, expected = torch.tensor(found), torch.tensor(expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=within)
