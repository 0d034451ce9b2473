"""What each process of `benchmarks.comm` does: the same training by each way, on its link."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks._links import sent_bytes
from vizoo import create_model
from vizoo.nas import Choice, activate, extract, search_space
from vizoo.nas.distributed import ACPSGD, AllReduce, CommHook, GTopK, PowerSGD, TopK
from vizoo.nas.distributed.gradients.regions import active_regions
from vizoo.nas.distributed.schedule.link import Link, measure_all_reduce
from vizoo.nas.distributed.schedule.merging import (
    GroupedHook,
    bucket_caps,
    has_bucket_caps,
    own_buffers,
)
from vizoo.nas.distributed.schedule.simulator import Step, plan_groups, simulate
from vizoo.nas.distributed.schedule.timing import alone, measure_hook, measure_step
from vizoo.nas.training import UniformSampler
from vizoo.stereo.fadnet import FADNetPlus

DENSITY, RANK = 0.01, 4
WAYS = {
    "plain": AllReduce,
    "merged": AllReduce,
    "fp16": lambda: AllReduce("float16"),
    "powersgd": lambda: PowerSGD(RANK, start_step=2),
    "acpsgd": lambda: ACPSGD(RANK, start_step=0),
    "topk": lambda: TopK(DENSITY, warmup=()),
    "gtopk": lambda: GTopK(DENSITY, warmup=()),
    "subnet": lambda: AllReduce(active_only=True),
}
MODELS = {
    "fadnet_plus_tiny": [way for way in WAYS if way != "subnet"],
    "lcnet_075": [way for way in WAYS if way != "subnet"],
    "fadnet_plus_tiny, elastic": ["plain", "subnet"],
}
_WARMUP = 2  # buckets are made anew after the first step


class Training:
    """A network, its data and its loss, the same on every process but for the samples."""

    def __init__(self, model: str, rank: int) -> None:
        self.rank = rank
        torch.manual_seed(0)
        self.stereo = model.startswith("fadnet")
        if model.endswith("elastic"):
            encoder = [Choice(f"encoder.{i}", (1, 2, 3, 4)) * 2**i for i in range(6)]
            decoder = [Choice(f"decoder.{i}", (1, 2)) * 2**i for i in (4, 3, 2, 1)]
            last = Choice("decoder.0", (1, 2))
            self.net = FADNetPlus(encoder, [*decoder, last, last], max_disparity=192)
        elif self.stereo:
            self.net = create_model(model)
        else:
            self.net = create_model("image_classifier", backbone=model, classes=10)
        self.net.train()
        self.classes = torch.rand(10, 3, 32, 32)
        self.regions = None
        if model.endswith("elastic"):
            space = search_space(self.net)
            drawn = UniformSampler(9).subnets(space, 0)
            drawn.sort(key=lambda one: sum(p.numel() for p in extract(self.net, one).parameters()))
            self.architecture = activate(self.net, drawn[len(drawn) // 2])
            self.regions = active_regions(self.net, [self.architecture])

    def batch(self, step: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """Arguments of the network and the truth: a shifted texture, or a noisy prototype."""
        generator = torch.Generator().manual_seed(10_000 * self.rank + step)
        if self.stereo:
            shift = int(torch.randint(1, 12, (), generator=generator))
            coarse = torch.rand(1, 3, 16, 36, generator=generator)
            texture = F.interpolate(coarse, (64, 144), mode="bilinear")
            left, right = texture[..., :128], texture[..., shift : 128 + shift]
            return (left, right), torch.full((1, 1, 64, 128), float(shift))
        labels = torch.randint(10, (2,), generator=generator)
        noise = torch.randn(2, 3, 32, 32, generator=generator)
        return ((self.classes[labels] + 0.3 * noise).clamp(0, 1),), labels

    def loss(self, model: nn.Module, step: int = 0) -> Tensor:
        inputs, truth = self.batch(step)
        found = model(*inputs)
        return F.smooth_l1_loss(found, truth) if self.stereo else F.cross_entropy(found, truth)


def measure_alone(model: str, rank: int, steps: int) -> dict:
    """A step without messages, and what compressing computes, where all processes run at once."""
    training = Training(model, rank)
    net = training.net
    optimizer = torch.optim.Adam(net.parameters(), 0.0, fused=True)
    step = measure_step(
        net, lambda: training.loss(net), steps, 2, training.regions, update=optimizer.step
    )
    computing = {}
    for way in (way for way in MODELS[model] if way != "merged"):
        hook, unused = WAYS[way](), training.regions is not None
        computing[way] = measure_hook(hook, net, training.loss, 3, 3, find_unused_parameters=unused)
    least = computing["plain"]  # of any hook; the simulator's message holds it
    computing = {way: max(0.0, time - least) for way, time in computing.items()}
    return {"step": asdict(step), "computing": computing}


def train(training: Training, hook: CommHook, arguments: dict, steps: int, seconds: float) -> dict:
    """Train a copy, from its first weights, and measure its steps after the first two.

    Arguments are DistributedDataParallel's. It takes so many steps and seconds at most, and at
    least four steps.
    """
    start = time.perf_counter
    net = copy.deepcopy(training.net)
    if training.regions is not None:
        arguments = {**arguments, "find_unused_parameters": True}
    # Statistics of batch normalisation stay where they are.
    model = DistributedDataParallel(net, **own_buffers(), **arguments)
    hook.setup(net, torch.device("cpu"))
    if training.regions is not None:
        hook.train_subnets(net, [training.architecture])
    model.register_comm_hook(None, lambda state, bucket: hook.reduce(bucket))
    optimizer = torch.optim.Adam(net.parameters(), 3e-4, fused=True)
    inner = hook.hook if isinstance(hook, GroupedHook) else hook
    times, losses = [], []
    while len(times) < _WARMUP + steps:
        if len(times) == _WARMUP + 1:  # the first process says how many, by its first step
            many = [min(steps, max(4, int(seconds / times[-1])))]
            dist.broadcast_object_list(many, 0)
            steps, counted, wire = many[0], inner.bytes_sent, sent_bytes()
        begin = start()
        optimizer.zero_grad()
        loss = training.loss(model, len(times))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(start() - begin)
    many = steps - 1
    counted, wire = inner.bytes_sent - counted, sent_bytes() - wire
    last = torch.tensor(sum(losses[-10:]) / len(losses[-10:]))
    dist.all_reduce(last)
    hook.close()
    return {
        "ms": 1e3 * median(times[-many:]),
        "steps": len(times),
        "counted": counted / many,
        "wire": wire / many,
        "loss": last.item() / dist.get_world_size(),
    }


def run(rank: int, folder: Path, settings: dict) -> None:
    """Measure what `settings` want on this process's link, and add it to the folder's files."""
    torch.set_num_threads(1)
    alone_file = folder / "alone.json"
    measured = json.loads(alone_file.read_text()) if alone_file.is_file() else {}
    for model in [m for m in settings["models"] if m not in measured]:
        with alone():
            measured[model] = measure_alone(model, rank, settings["alone_steps"])
        if rank == 0:
            alone_file.write_text(json.dumps(measured))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store{settings['megabits']}",
        rank=rank,
        world_size=settings["processes"],
        timeout=timedelta(seconds=300),
    )
    dist.broadcast_object_list(both := [measured], 0)
    measured = both[0]
    # The first bytes after a pause pass unshaped: two messages of each size go before.
    found = measure_all_reduce(sizes=settings["sizes"], seconds=settings["seconds"] / 4)
    link = Link.fitted(settings["processes"], found)
    if rank == 0:
        line = {"megabits": settings["megabits"], **asdict(link), "messages": found}
        _append(folder / "links.jsonl", line)
    for model in settings["models"]:
        training = Training(model, rank)
        step = Step(**measured[model]["step"])
        times = simulate(step, link, DENSITY, RANK, measured[model]["computing"])
        for way in MODELS[model]:
            if [model, way] in settings["done"]:
                continue
            hook, arguments = WAYS[way](), {}
            if way == "merged":
                plan = plan_groups(step.ready, step.sizes, link.alpha, link.beta)
                if has_bucket_caps():
                    arguments = {"bucket_cap_mb_list": bucket_caps(step.sizes, plan)}
                else:
                    hook, arguments = GroupedHook(hook, plan), {"bucket_cap_mb": 0}
            if way == "powersgd":
                arguments = {"bucket_cap_mb": 1 << 20}
            row = train(training, hook, arguments, settings["steps"], settings["seconds"])
            if rank == 0:
                names = {"model": model, "megabits": settings["megabits"], "way": way}
                row = {**names, **row, "predicted_ms": 1e3 * times[way]}
                _append(folder / "rows.jsonl", row)
                print(
                    f"{names['megabits']:5d} Mb/s  {model:26} {way:9} {row['ms']:8.1f} ms",
                    flush=True,
                )
    dist.destroy_process_group()


def _append(path: Path, line: dict) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
