"""What the processes of the tests of merged gradients do; plain values come back."""

from __future__ import annotations

import torch
from distributed_gradients import backward, gradients, network
from distributed_training import Shares, trainer, weights
from torch.nn.parallel import DistributedDataParallel
from toy_regression import Net, Regression

from vizoo.common.ranks import same_everywhere, tensor_digest
from vizoo.nas import activate, search_space
from vizoo.nas.distributed import ACPSGD, AllReduce, HookDDPStrategy, MergePlan, TopK
from vizoo.nas.distributed.schedule.merging import GroupedHook, bucket_caps
from vizoo.nas.training import UniformSampler


class Recording(AllReduce):
    """Notes the names of the parameters of each message, by step."""

    def setup(self, model, device):
        super().setup(model, device)
        self.messages = []

    def reduce(self, bucket):
        if bucket.index() == 0:
            self.messages.append([])
        self.messages[-1].append([self.names[id(p)] for p in bucket.parameters()])
        return super().reduce(bucket)


def both_ways(rank):
    """Messages of the last of four steps, by way, and whether gradients are those of plain DDP."""
    groups, found, ends = [1, 3, 2], {}, {}
    for way in ("plain", "hook", "caps"):
        net, hook = network(), Recording()
        ready = list(net.named_parameters())[::-1]
        sizes = [4 * parameter.numel() for _, parameter in ready]
        arguments = {
            "plain": {},
            "hook": {"bucket_cap_mb": 0},
            "caps": {"bucket_cap_mb_list": bucket_caps(sizes, groups)},
        }[way]
        model = DistributedDataParallel(net, **arguments)
        hook.setup(net, torch.device("cpu"))
        outer = GroupedHook(hook, groups) if way == "hook" else hook
        model.register_comm_hook(None, lambda state, bucket, outer=outer: outer.reduce(bucket))
        for step in range(4):
            backward(model, rank, step)
        found[way] = hook.messages[-1]
        ends[way] = torch.cat([g.flatten() for g in gradients(model).values()])
    same = [torch.equal(ends[way], ends["plain"]) for way in ends]
    return found, same


def compressed(rank):
    """Whether replicas stay equal where compressors see groups, and how many messages went."""
    found = {}
    for name, make in {
        "acpsgd": lambda: ACPSGD(2, start_step=0),
        "topk": lambda: TopK(0.1),
    }.items():
        hook, net = GroupedHook(make(), [2, 4]), network()
        model = DistributedDataParallel(net, bucket_cap_mb=0)
        hook.setup(net, torch.device("cpu"))
        model.register_comm_hook(None, lambda state, bucket, hook=hook: hook.reduce(bucket))
        for step in range(4):
            backward(model, rank, step)
        same = same_everywhere(tensor_digest(gradients(model).values()))
        found[name] = same, hook._sent, hook.hook.step
        hook.hook.close()
    return found


class Changing(Shares):
    """Batches twice as large from the third epoch on."""

    def train_dataloader(self):
        self.batch_size = 2 if self.trainer.current_epoch < 2 else 4
        return super().train_dataloader()


def training(rank, *several):
    """Train without a plan, and with each of several.

    Returns:
        For each plan the weights with it and without one, the plan, the names of the last step's
        messages, epochs in which it was planned, and how many hooks are left.
    """
    found = []
    for plan in (None, *(MergePlan(2, 2, **settings) for settings in several)):
        torch.manual_seed(0)
        task, hook = Regression(), Recording()
        strategy = HookDDPStrategy(hook, plan, process_group_backend="gloo")
        fit = trainer(strategy, 2, max_epochs=5, reload_dataloaders_every_n_epochs=1)
        epochs = []
        if plan:
            made = plan.plan

            def noted(made=made, epochs=epochs, fit=fit):
                epochs.append(fit.current_epoch)
                return made()

            plan.plan = noted
        fit.fit(task, Changing(16, batch_size=2))
        found.append(
            {
                "weights": weights(task.net).tolist(),
                "groups": plan and plan.groups,
                "messages": hook.messages[-1],
                "epochs": epochs,
                "handles": sum(len(p._post_accumulate_grad_hooks or ()) for p in task.parameters()),
            }
        )
    plain, *planned = found
    return [{**one, "plain": plain["weights"]} for one in planned]


def skipped(rank):
    """Supernet steps whose unused parameters DDP does not reduce, in groups that end as they do.

    Returns:
        For each step the largest error against the mean of both processes' gradients, and the
        share of the parameters that travelled.
    """
    import copy

    import torch.distributed as dist

    torch.manual_seed(0)
    net, hook = Net(), Recording()
    grouped = GroupedHook(hook, [5, 100])
    space = search_space(net)
    model = DistributedDataParallel(
        net,
        bucket_cap_mb=0,
        find_unused_parameters=True,
        skip_all_reduce_unused_params=True,
    )
    grouped.setup(net, torch.device("cpu"))
    model.register_comm_hook(None, lambda state, bucket: grouped.reduce(bucket))
    x = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(rank))
    found = []
    for step in range(4):
        activate(net, UniformSampler(1, seed=3).subnets(space, step)[0])
        net.zero_grad()
        before = hook.bytes_sent
        model(x).square().mean().backward()
        mean = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        twin, error = copy.deepcopy(net), 0.0
        twin.zero_grad()
        twin(x).square().mean().backward()
        used = 0
        for name, parameter in twin.named_parameters():
            if parameter.grad is not None:
                used += 4 * parameter.numel()
                dist.all_reduce(parameter.grad)
                error = max(error, (parameter.grad / 2 - mean[name]).abs().max().item())
        found.append((error, hook.bytes_sent - before, used, len(hook.messages[-1])))
    return found
