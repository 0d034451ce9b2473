"""What hooks send as the loopback counts it, in processes of a private network."""

from __future__ import annotations

import ctypes
import os

import ranks
import torch
import torch.distributed as dist
from distributed_gradients import HOOKS, distributed
from torch import nn

from vizoo.nas.distributed.compression.lowrank import PowerSGD
from vizoo.nas.distributed.gradients.strategy import _make_hook

# So large that what a message takes beside its content is little.
SHAPES = [(512, 1024), (512,), (1024, 512), (1024,)]

_ROUNDS = 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1024))


def loopback():
    """Bytes that the loopback of this process's network has sent so far."""
    with open("/proc/net/dev", encoding="ascii") as lines:
        return next(int(line.split()[9]) for line in lines if line.split()[0] == "lo:")


def sent(rank):
    """By hook: this process's count of two steps, and what the loopback sent for all of them.

    The least of some rounds: what is sent beside the messages, such as the acknowledgements of a
    busy machine, only adds.
    """
    found = {}
    makers = {name: lambda name=name: _make_hook(name) for name in ("dense", "fp16", "bf16")}
    makers["powersgd"] = lambda: PowerSGD(8, start_step=2)
    for name, make in {**makers, **HOOKS}.items():
        hook = make()
        model, _ = distributed(hook, 100, network())
        generator = torch.Generator().manual_seed(rank)

        def step(model=model, generator=generator):
            model(torch.randn(4, 1024, generator=generator)).square().mean().backward()

        # Until PowerSGD compresses, and buckets have been made anew.
        for _ in range(2 if name == "powersgd" else 1):
            step()
        rounds = []
        for _ in range(_ROUNDS):
            dist.barrier()
            before, counted = loopback(), hook.bytes_sent
            dist.barrier()
            step()
            step()
            own = hook.bytes_sent - counted
            dist.barrier()
            rounds.append((own, loopback() - before))
            dist.barrier()
        counts, carried = zip(*rounds, strict=True)
        assert len(set(counts)) == 1
        found[name] = counts[0], min(carried)
        hook.close()
    return found


def in_network_of(pid, *words):
    """What a process of `run_ranks` does, in the network of another process."""
    kernel = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net"):
        path = f"/proc/{pid}/ns/{kind}"
        if kind == "user" and os.path.samefile(path, "/proc/self/ns/user"):
            continue  # it has been given a network alone
        with open(path, "rb") as file:
            if kernel.setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    ranks._main(*words)
