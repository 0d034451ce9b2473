"""What the processes of the tests of distributed training do; plain values come back."""

from __future__ import annotations

import copy
import os
import tempfile

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy_regression import Data, Net, Regression
from trainers import quiet_trainer

from vizoo.common.ranks import same_everywhere
from vizoo.nas import activate, search_space
from vizoo.nas.distributed import HookDDPStrategy, ReplicaDriftCheck
from vizoo.nas.distributed.gradients.strategy import _make_hook
from vizoo.nas.training import ProgressiveShrinking, Stage, SupernetTask, UniformSampler


def trainer(strategy="auto", devices=1, **settings):
    defaults = {"max_epochs": 2, "limit_val_batches": 0, "enable_checkpointing": False}
    settings = {"strategy": strategy, "devices": devices, **defaults, **settings}
    return quiet_trainer(tempfile.mkdtemp(), **settings)


class Shares(Data):
    """The toy data in order, divided among processes so that together they see whole batches."""

    def train_dataloader(self):
        place = {"num_replicas": self.trainer.world_size, "rank": self.trainer.global_rank}
        sampler = DistributedSampler(self.train, **place, shuffle=False)
        return DataLoader(self.train, batch_size=self.batch_size, sampler=sampler)


def weights(net):
    parameters = [p.detach() for p in net.parameters()]
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
    return torch.cat([p.flatten() for p in whole])


def train_supernet(rank, processes, settings):
    """Train the toy supernet, batches of 8 over all processes.

    Returns:
        Weights, statistics of batch normalisation, the logged metrics, megabytes sent.
    """
    settings = dict(settings)
    torch.manual_seed(0)
    task = Regression()
    arguments = {
        name: settings.pop(name) for name in ("sampler", "distillation") if name in settings
    }
    module = SupernetTask(task, recalibration_batches=2, **arguments)
    strategy, hook = "auto", settings.pop("hook", "subnet")
    if processes > 1:
        more = {"find_unused_parameters": True} if hook != "subnet" else {}
        strategy = HookDDPStrategy(hook, process_group_backend="gloo", **more)
    found = trainer(strategy, processes, sync_batchnorm=processes > 1, **settings)
    found.fit(module, Shares(32, batch_size=8 // processes))
    statistics = [b.flatten() for b in task.net.buffers() if b.is_floating_point()]
    return {
        "weights": weights(task.net).tolist(),
        "statistics": torch.cat(statistics).tolist(),
        "metrics": {name: value.item() for name, value in found.callback_metrics.items()},
        "bytes": strategy.hook.bytes_sent if processes > 1 else 0,
        "kinds": sorted({type(module).__name__ for module in task.net.modules()}),
    }


def sort_by_the_loss(rank, processes):
    """Weights of the toy supernet once each process has sorted by batches of its own."""
    torch.manual_seed(0)
    task = Regression(lr=1e-12)
    stages = [Stage("all", 1, ["*"], sort_channels="taylor")]
    strategy = HookDDPStrategy(process_group_backend="gloo")
    found = trainer(strategy, processes, max_epochs=1)
    found.fit(ProgressiveShrinking(task, stages), Shares(32, batch_size=4))
    return weights(task.net).tolist()


class DifferByRank(UniformSampler):
    def subnets(self, space, step):
        self.seed = dist.get_rank()
        return super().subnets(space, step)


def different_subnets(rank):
    try:
        train_supernet(rank, 2, {"sampler": DifferByRank(), "max_epochs": 1})
    except RuntimeError as error:
        return str(error)


class Push(Callback):
    """Moves a weight on one process by one bit."""

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == 2 and trainer.global_rank == 1:
            with torch.no_grad():
                weight = next(module.parameters()).view(-1)
                weight[0] = torch.nextafter(weight[0], weight[0] + 1)


def drifts(rank):
    """What is said where it ends the training, and the weights where it is mended."""
    return [_drift(on_drift) for on_drift in ("raise", "broadcast")]


def _drift(on_drift):
    torch.manual_seed(0)
    task = Regression()
    callbacks = [Push(), ReplicaDriftCheck(1, on_drift)]
    strategy = HookDDPStrategy(process_group_backend="gloo", find_unused_parameters=True)
    settings = {"callbacks": callbacks, "max_epochs": 1}
    try:
        trainer(strategy, 2, **settings).fit(SupernetTask(task), Data(32, batch_size=4))
    except RuntimeError as error:
        return str(error)
    return weights(task.net).tolist()


def facts(rank):
    """What PyTorch's DistributedDataParallel does, that the hooks build on."""
    found = {"same": same_everywhere(7), "differ": same_everywhere(rank)}
    torch.manual_seed(0)
    net = Net()
    space = search_space(net)
    hook = _make_hook("subnet")
    model = DistributedDataParallel(net, find_unused_parameters=True, bucket_cap_mb=0.0005)
    hook.setup(model.module, torch.device("cpu"))
    calls = []
    model.register_comm_hook(None, lambda state, bucket: (calls.append(1), hook.reduce(bucket))[1])
    x = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(rank))
    errors, sizes = [], []
    for step in range(4):
        architecture = UniformSampler(1, seed=3).subnets(space, step)[0]
        activate(net, architecture)
        hook.train_subnets(net, [architecture])
        before = hook.bytes_sent
        net.zero_grad()
        model(x).square().mean().backward()
        sizes.append(hook.bytes_sent - before)
        mean = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        twin = copy.deepcopy(net)
        twin.zero_grad()
        twin(x).square().mean().backward()
        for name, parameter in twin.named_parameters():
            if (parameter.grad is None) != (name not in mean):
                errors.append(float("inf"))
            elif parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                errors.append((parameter.grad / 2 - mean[name]).abs().max().item())
        used = nn.utils.parameters_to_vector(mean.values()).count_nonzero().item()
        found.setdefault("used", []).append(4 * used)
    return {**found, "calls": len(calls), "error": max(errors), "sizes": sizes}


def channels_last(rank):
    """By hook, how far gradients of a subnet in this memory format are from the exact mean."""
    from vizoo.nas import Choice
    from vizoo.nas.distributed import TopK
    from vizoo.nas.elastic import Conv2d, Sequential

    found, width = {}, Choice("width", (2, 8))
    for name, make in {
        "subnet": lambda: _make_hook("subnet"),
        "topk": lambda: TopK(1.0, warmup=()),
    }.items():
        torch.manual_seed(0)
        net = Sequential(Conv2d(3, width, 3, padding=1), Conv2d(width, 3, 3, padding=1))
        net.to(memory_format=torch.channels_last)
        hook = make()
        model = DistributedDataParallel(net, find_unused_parameters=True)
        hook.setup(net, torch.device("cpu"))
        model.register_comm_hook(None, lambda state, bucket, hook=hook: hook.reduce(bucket))
        smallest = search_space(net).smallest()
        activate(net, smallest)
        hook.train_subnets(net, [smallest])
        x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(rank))
        twin = copy.deepcopy(net)
        for each in (model, twin):
            each(x).square().mean().backward()
        found[name] = 0.0
        for parameter, exact in zip(net.parameters(), twin.parameters(), strict=True):
            mean = exact.grad.contiguous()
            dist.all_reduce(mean)
            found[name] = max(found[name], (parameter.grad - mean / 2).abs().max().item())
        hook.close()
    return found


def recalibrated(rank, share):
    """Statistics of a subnet after recalibration on this process's batches."""
    from vizoo.nas.recalibration import recalibrate

    torch.manual_seed(0)
    net = Net().double()
    activate(net, search_space(net).smallest())
    batches = recalibration_batches()
    recalibrate(net, [batches[i] for i in share[rank]], group=dist.group.WORLD)
    return torch.cat([b.flatten() for b in net.buffers()]).tolist()


def recalibration_batches():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(n, 4, 6, 6, generator=generator).double() * n for n in (4, 3, 2, 4, 1)]


def start_weights():
    torch.manual_seed(0)
    return weights(Regression().net)


def resumed_training(rank, folder):
    """Weights after training with compression: in one go, resumed, and resumed with a file lost.

    And of another hook, resumed from this one's file and from none.
    """
    from vizoo.nas.distributed import ACPSGD, BytesSent, TopK

    place = "everything"

    def fit(epochs, checkpoint=None, hook=None):
        torch.manual_seed(0)
        task = Regression()
        hook = hook or TopK(0.1, warmup=[0.5])
        strategy = HookDDPStrategy(hook, process_group_backend="gloo")
        found = trainer(strategy, 2, max_epochs=epochs, callbacks=[BytesSent()])
        found.fit(SupernetTask(task), Shares(32, batch_size=4), ckpt_path=checkpoint)
        found.save_checkpoint(f"{folder}/{place}.ckpt")
        logged = found.callback_metrics["comm/megabytes"].item()
        return weights(task.net).tolist(), strategy.hook.residuals, logged

    whole, residuals, logged = fit(4)
    place = "half"
    fit(2)
    half, place = f"{folder}/half.ckpt", "end"
    again = fit(4, half)[0]
    others = [fit(4, half, ACPSGD())[0]]
    if rank == 1:
        os.unlink(f"{half}.rank1")
    dist.barrier()
    lost = fit(4, half)[0]
    others.append(fit(4, half, ACPSGD())[0])
    files = sorted(os.listdir(folder))
    return whole, again, lost, len(residuals), logged, files, others


def powersgd_training(rank):
    """A task that is no supernet, by PyTorch's PowerSGD, whose gradients need one bucket."""
    from vizoo.nas.distributed import PowerSGD

    torch.manual_seed(0)
    task = Regression(lr=0.01)
    strategy = HookDDPStrategy(PowerSGD(1, start_step=2), process_group_backend="gloo")
    trainer(strategy, 2, max_epochs=3).fit(task, Shares(32, batch_size=4))
    return weights(task.net).tolist(), strategy.hook.state.iter


def plain_hook(rank):
    """Weights after training densely, and by a hook of PyTorch's and its wrapper."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

    found = []
    for settings in (
        {},
        {"ddp_comm_hook": hooks.allreduce_hook},
        {"ddp_comm_hook": hooks.allreduce_hook, "ddp_comm_wrapper": hooks.bf16_compress_wrapper},
    ):
        torch.manual_seed(0)
        task = Regression()
        strategy = HookDDPStrategy(process_group_backend="gloo", **settings)
        trainer(strategy, 2, max_epochs=1).fit(task, Shares(32, batch_size=4))
        found.append(weights(task.net).tolist())
    return found


def overflowing(rank):
    """By top-k with a scale that overflows at first: weights, its end, what is kept; refusals."""
    from lightning.pytorch.plugins import MixedPrecision

    from vizoo.nas.distributed import TopK

    def fit(hook):
        torch.manual_seed(0)
        task = Regression()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
        precision = MixedPrecision("16-mixed", "cpu", scaler)
        strategy = HookDDPStrategy(hook, process_group_backend="gloo")
        found = trainer(strategy, 2, max_epochs=5, plugins=[precision])
        found.fit(task, Shares(64, batch_size=4))
        return weights(task.net).tolist(), scaler.get_scale(), strategy.hook

    trained, scale, hook = fit(TopK(0.1, warmup=()))
    kept = torch.cat([residual.flatten() for residual in hook.residuals.values()])
    try:
        fit("powersgd")
    except ValueError as error:
        return trained, scale, kept.abs().max().item(), str(error)


def caps_of_a_supernet(rank):
    from vizoo.nas.distributed import MergePlan

    strategy = HookDDPStrategy(plan=MergePlan(apply="caps"), process_group_backend="gloo")
    try:
        trainer(strategy, 2, max_epochs=1).fit(SupernetTask(Regression()), Shares(16))
    except ValueError as error:
        return str(error)


def configured(rank, configs):
    """Train the toy with the strategy of each config: weights, and bytes that the hook counted."""
    from lightning.pytorch.cli import LightningArgumentParser
    from lightning.pytorch.strategies import Strategy

    found = {}
    for name, settings in configs.items():
        parser = LightningArgumentParser()
        parser.add_subclass_arguments(Strategy, "strategy")
        settings["init_args"]["process_group_backend"] = "gloo"
        made = parser.instantiate_classes(parser.parse_object({"strategy": settings})).strategy
        torch.manual_seed(0)
        task = Regression()
        module = SupernetTask(task) if name == "subnet" else task
        trainer(made, 2, max_epochs=1).fit(module, Shares(24, batch_size=2))
        found[name] = weights(task.net).tolist(), made.hook.bytes_sent
    return found
