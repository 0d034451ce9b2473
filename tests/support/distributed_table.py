"""DistributedDataParallel with supernets, setting by setting; plain values come back."""

from __future__ import annotations

import contextlib
import copy
import inspect

import torch
import torch.distributed as dist
from distributed_gradients import Either
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy_regression import Net

from vizoo.nas import activate, search_space
from vizoo.nas.distributed import AllReduce

KNOWN = inspect.signature(DistributedDataParallel).parameters
SKIP = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}


class Subnets(nn.Module):
    """The loss of some subnets, in one forward pass."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, architectures):
        total = 0.0
        for architecture in architectures:
            activate(self.net, architecture)
            total = total + self.net(x).square().mean()
        return total


def _trained(rank, subnets, arguments, apart=False):
    """Train some steps of these subnets (for each step a list).

    Returns:
        The largest error of a gradient, whether just the unused ones have none, and the entries
        that travelled and those that were used, by step.
    """
    torch.manual_seed(0)
    loss, hook = Subnets(Net()), AllReduce()
    model = DistributedDataParallel(loss, **arguments)
    hook.setup(loss, torch.device("cpu"))
    model.register_comm_hook(None, lambda state, bucket: hook.reduce(bucket))
    x = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(rank))
    error, right, travelled, used = 0.0, True, [], []
    for architectures in subnets:
        loss.zero_grad()
        before = hook.bytes_sent
        if apart:  # a backward pass for each subnet, of which only the last is reduced
            for number, architecture in enumerate(architectures):
                last = number + 1 == len(architectures)
                with contextlib.nullcontext() if last else model.no_sync():
                    model(x, [architecture]).backward()
        else:
            model(x, architectures).backward()
        travelled.append((hook.bytes_sent - before) // 4)  # of two processes
        twin = copy.deepcopy(loss)
        twin.zero_grad()
        twin(x, architectures).backward()
        used.append(0)
        for found, expected in zip(loss.parameters(), twin.parameters(), strict=True):
            mine = torch.tensor(float(expected.grad is not None))
            dist.all_reduce(mine)
            right = right and (found.grad is not None) == bool(mine)
            if mine:
                used[-1] += found.numel()
                mean = torch.zeros_like(found) if expected.grad is None else expected.grad
                dist.all_reduce(mean)
                error = max(error, (mean / 2 - found.grad).abs().max().item())
    return error, right, travelled, used


def _mixed_up(rank):
    """Whether the layer that each process uses gets the mean of both processes' layers."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Either(3, 3), **SKIP, bucket_cap_mb=0)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))
    model(x, rank).sum().backward()
    mixed = x.sum(0).expand(3, 3).clone()
    dist.all_reduce(mixed)
    unused = model.module.layers[1 - rank].weight.grad
    return torch.allclose(model.module.layers[rank].weight.grad, mixed / 2), unused is None


def _message(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def table(rank):
    """By setting, what `_trained` found, or what the error said."""
    space = search_space(Net())
    deep, shallow = space.largest(), space.smallest()
    changing = [[shallow], [deep], [shallow], [deep]]
    unused = {"find_unused_parameters": True}
    found = {
        "all": sum(parameter.numel() for parameter in Net().parameters()),
        "default": _message(lambda: _trained(rank, changing, {})),
        "static": _message(lambda: _trained(rank, changing[::-1], {"static_graph": True})),
        "unused": _trained(rank, changing, unused),
        "different": _trained(rank, [[deep if rank else shallow]] * 3, unused),
        "together": _trained(rank, [[deep, shallow]] * 3, unused),
        "apart": _trained(rank, [[deep, shallow], [shallow, shallow]], unused, apart=True),
    }
    if SKIP.keys() <= KNOWN.keys():
        found["mixed"] = _trained(rank, changing, {**SKIP, "bucket_cap_mb": 0.0006})
        found["single"] = _trained(rank, changing, {**SKIP, "bucket_cap_mb": 0})
        found["mixed up"] = _mixed_up(rank)
    return found


def flat(rank):
    """One flat all-reduce of what has a gradient, without DistributedDataParallel."""
    torch.manual_seed(0)
    loss, space = Subnets(Net()), search_space(Net())
    x = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(rank))
    loss(x, [space.smallest()]).backward()
    gradients = [p.grad for p in loss.parameters() if p.grad is not None]
    expected = [gradient.clone() for gradient in gradients]
    message = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(message)
    error = 0.0
    for mean, gradient in zip(message.split([g.numel() for g in gradients]), expected, strict=True):
        dist.all_reduce(gradient)
        error = max(error, (mean - gradient.flatten()).abs().max().item())
    return error, message.numel()
