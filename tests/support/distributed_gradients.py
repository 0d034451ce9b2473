"""What the processes of the tests of gradient compression do; plain values come back."""

from __future__ import annotations

import math
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vizoo.common.ranks import same_everywhere, tensor_digest
from vizoo.nas.distributed.compression import sparse
from vizoo.nas.distributed.compression.lowrank import ACPSGD, PowerSGD
from vizoo.nas.distributed.compression.signs import EFSign
from vizoo.nas.distributed.compression.sparse import GTopK, TopK, _merged
from vizoo.nas.distributed.gradients.strategy import _make_hook

HOOKS = {
    "topk": lambda: TopK(0.05, warmup=()),
    "gaussian": lambda: TopK(0.05, "gaussian", warmup=()),
    "lags": lambda: TopK(0.05, densities={"2.weight": 0.01, "4.bias": 1.0}, warmup=()),
    "gtopk": lambda: GTopK(0.05, warmup=()),
    "acpsgd": lambda: ACPSGD(4, start_step=0),
    "efsign": EFSign,
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
    )


def distributed(hook, cap=0.005, net=None, noted=None, **more):
    """The network under `hook`, in buckets of `cap` megabytes, and what the hook was given.

    The hook's gradients go into the second value: for each step name to gradient. The indices of
    buckets go into `noted`.
    """
    net = network() if net is None else net
    model = DistributedDataParallel(net, bucket_cap_mb=cap, **more)
    hook.setup(model.module, torch.device("cpu"))
    given = []

    def run(state, bucket):
        if bucket.index() == 0:
            given.append({})
        if noted is not None:
            noted.append(bucket.index())
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            given[-1][hook.names[id(parameter)]] = gradient.clone()
        return hook.reduce(bucket)

    model.register_comm_hook(None, run)
    return model, given


def batch(rank, step, size=8):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 20, generator=generator)
    return x, x[:, :5].sin() + 0.1 * x[:, 5:10]


def backward(model, rank, step):
    model.zero_grad()
    x, y = batch(rank, step)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss.item()


def gradients(model):
    return {name: p.grad.clone() for name, p in model.module.named_parameters()}


def conservation(rank, names, steps=8):
    """By hook: what is missing of the total, whether gradients are the same, bytes, buckets."""
    found = {}
    for name in names:
        hook = HOOKS[name]() if isinstance(name, str) else GTopK(0.05, feedback="paper", warmup=())
        torch.manual_seed(rank)  # compressors must not depend on it
        model, given = distributed(hook)
        sent, same, messages = {}, True, []
        for step in range(steps):
            before = hook.bytes_sent
            backward(model, rank, step)
            messages.append(hook.bytes_sent - before)
            for key, gradient in gradients(model).items():
                sent[key] = sent.get(key, 0) + gradient.double() * hook.world_size
            same = same and same_everywhere(tensor_digest(gradients(model).values()))
        missing = _missing(sent, given, hook)
        hook.close()
        found[str(name)] = missing, same, messages
    return found


def _missing(sent, given, hook):
    """What has neither been sent nor kept, as a share of all gradients."""
    missing = total = 0.0
    for key, value in sent.items():
        kept = hook.residuals.get(key, torch.zeros_like(value)).double()
        both = torch.stack([sum(entry[key].double() for entry in given), kept])
        dist.all_reduce(both)
        missing += (both[0] - both[1] - value).square().sum().item()
        total += both[0].square().sum().item()
    return math.sqrt(missing / total)


def subnets_conservation(rank):
    """Where subnets change, of which hooks are told, or not: by hook what is missing of the total.

    And parameters left alone, bytes, the largest gradient of channels that a step did not use, and
    whether what is kept of a parameter keeps nothing else in memory.
    """
    return [_subnets_conservation(rank, told) for told in (True, False)]


def _subnets_conservation(rank, told):
    from toy_regression import Net

    from vizoo.nas import activate, search_space
    from vizoo.nas.distributed.gradients.regions import active_regions, views
    from vizoo.nas.training import UniformSampler

    found = {}
    for name, make in HOOKS.items():
        torch.manual_seed(0)
        hook, net = make(), Net()
        if name == "acpsgd":  # none of these kernels is large enough
            hook._shrinks = lambda gradient: min(gradient.shape[0], gradient[0].numel()) >= 4
        model, given = distributed(hook, 0.0005, net, find_unused_parameters=True)
        space, unused, outside = search_space(net), 0, 0.0
        sent = {key: torch.zeros_like(p, dtype=torch.float64) for key, p in net.named_parameters()}
        for step in range(5):
            drawn = UniformSampler(1, seed=3).subnets(space, step)
            activate(net, drawn[0])
            if told:
                hook.train_subnets(net, drawn)
            regions = active_regions(net, drawn)
            model.zero_grad()
            x = torch.randn(4, 4, 6, 6, generator=torch.Generator().manual_seed(9 * step + rank))
            model(x).square().mean().backward()
            for key, parameter in net.named_parameters():
                unused += parameter.grad is None
                if parameter.grad is not None:
                    sent[key] += parameter.grad.double() * hook.world_size
                    rest = parameter.grad.clone()
                    for view in views(rest, regions.get(id(parameter))):
                        view.zero_()
                    outside = max(outside, rest.abs().max().item())
        own = all(
            kept.untyped_storage().nbytes() == kept.nbytes for kept in hook.residuals.values()
        )
        found[name] = _missing(sent, given, hook), unused, hook.bytes_sent, outside, own
        hook.close()
    return found


class Either(nn.Module):
    """Two layers, of which a call uses one."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in range(2))

    def forward(self, x, which):
        return self.layers[which](x)


def returned(name, others, forget_after):
    """A step of a layer, after one of it and some of the other.

    Returns:
        What was left out before, the gradient, its approximate mean, and what is left out then.
    """
    hook, key = HOOKS[name](), "layers.0.weight"
    hook.forget_after = forget_after
    torch.manual_seed(0)
    model, given = distributed(hook, net=Either(40, 48), find_unused_parameters=True)
    left = [None]
    for which in (0, *[1] * others, 0):
        left.append(hook.residuals[key].clone() if key in hook.residuals else None)
        model.zero_grad()
        model(torch.randn(64, 40), which).square().mean().backward()
    hook.close()
    return left[-1], given[-1][key], model.module.layers[0].weight.grad, hook.residuals[key]


def whole_density(rank, steps):
    """Largest difference of weights after training with everything sent, and densely.

    And whether the first reduction was the same bit for bit.
    """
    found, ends, firsts = {}, {}, {}
    for name in ("dense", "topk", "gtopk"):
        hook = {
            "dense": lambda: _make_hook("dense"),
            "topk": lambda: TopK(1.0, warmup=()),
            "gtopk": lambda: GTopK(1.0, warmup=()),
        }[name]()
        model, _ = distributed(hook)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for step in range(steps):
            backward(model, rank, step)
            if step == 0:
                firsts[name] = torch.cat([g.flatten() for g in gradients(model).values()])
            optimizer.step()
        ends[name] = torch.cat([p.detach().flatten() for p in model.parameters()])
        found[name] = (ends[name] - ends["dense"]).abs().max().item()
        hook.close()
    return found, all(torch.equal(first, firsts["dense"]) for first in firsts.values())


def merges(rank):
    """gTop-k's mean of one bucket, and that of a merge of all sets in this process."""
    hook = GTopK(0.02, warmup=())
    model, given = distributed(hook, cap=100)
    backward(model, rank, 0)
    names = list(given[0])
    u = torch.cat([given[0][name].flatten() for name in names])
    mean = torch.cat([gradients(model)[name].flatten() for name in names])
    everyone = [torch.empty_like(u) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, u)
    sets = []
    for values in everyone:
        index = values.abs().topk(math.ceil(0.02 * len(u))).indices.sort().values
        sets.append((index, values[index]))
    power = 1 << (len(sets).bit_length() - 1)
    for extra in range(power, len(sets)):
        sets[extra - power] = _merged(sets[extra - power], sets[extra])[0]
    sets = sets[:power]
    while len(sets) > 1:
        pairs = zip(sets[::2], sets[1::2], strict=True)
        sets = [_merged(one, other)[0] for one, other in pairs]
    expected = torch.zeros_like(u)
    expected[sets[0][0]] = sets[0][1] / len(everyone)
    hook.close()
    return torch.equal(mean, expected), int(expected.count_nonzero())


def full_rank(rank):
    """Largest difference from the dense mean, even and odd step; of a square matrix, and not."""
    found = []
    for sizes in ((16, 16), (40, 6), (6, 40)):
        hook = ACPSGD(64, start_step=0, error_feedback=False)
        hook._shrinks = lambda gradient: gradient.dim() > 1
        torch.manual_seed(0)
        net = nn.Linear(sizes[1], sizes[0], bias=False)
        model, given = distributed(hook, net=net)
        differences = []
        for step in range(2):
            model.zero_grad()
            x = torch.randn(64, sizes[1], generator=torch.Generator().manual_seed(9 * step + rank))
            model(x).square().sum().backward()
            exact = given[-1]["weight"].clone()
            dist.all_reduce(exact)
            error = (net.weight.grad - exact / hook.world_size).norm() / exact.norm()
            differences.append(error.item())
        hook.close()
        found.append(differences)
    return found


def not_finite(rank):
    """Whether residuals stay, and gradients are not finite anywhere, if they are not on rank 1."""
    found = {}
    for name, make in HOOKS.items():
        hook = make()
        model, _ = distributed(hook)
        backward(model, rank, 0)
        before = {key: value.clone() for key, value in hook.residuals.items()}
        model.zero_grad()
        x, y = batch(rank, 1)
        loss = nn.functional.mse_loss(model(x), y)
        (loss * (math.inf if rank == 1 else 1.0)).backward()
        same = all(torch.equal(before[key], hook.residuals[key]) for key in before)
        finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
        hook.close()
        found[name] = same, finite, len(before)
    return found


def half(rank):
    """The largest entry of gradients in half precision, by factor of rank 1's loss and scale."""
    found = {}
    for factor, scale in ((1e9, 1.0), (math.inf, 1.0), (math.nan, 1.0), (1e9, 2.0)):
        hook = _make_hook("fp16")
        model, _ = distributed(hook)
        hook.loss_scale = lambda scale=scale: scale
        x, y = batch(rank, 0)
        (nn.functional.mse_loss(model(x), y) * (factor if rank == 1 else 1.0)).backward()
        found[str(factor), scale] = max(p.grad.abs().max().item() for p in model.parameters())
    return found


def scaled(rank):
    """Whether a loss that is scaled, differently in each step, changes residuals and means."""
    found = {}
    for name, make in HOOKS.items():
        ends = []
        for scales in ((1.0, 1.0, 1.0), (4.0, 2.0, 64.0)):
            hook = make()
            model, _ = distributed(hook)
            for step, scale in enumerate(scales):
                hook.loss_scale = lambda scale=scale: scale
                model.zero_grad()
                x, y = batch(rank, step)
                (nn.functional.mse_loss(model(x), y) * scale).backward()
            grads = torch.cat([p.grad.flatten() / scales[-1] for p in model.parameters()])
            kept = torch.cat([value.flatten() for value in hook.residuals.values()])
            ends.append(torch.cat([grads, kept]))
            hook.close()
        found[name] = (ends[0] - ends[1]).abs().max().item()
    return found


def scaled_and_resumed(rank):
    return scaled(rank), resumed(rank)


def resumed(rank):
    """Whether a hook whose state was kept goes on as one that was not interrupted."""
    found = {}
    for name, make in HOOKS.items():
        ends = []
        for interrupted in (False, True):
            hook = make()
            model, _ = distributed(hook)
            for step in range(6):
                if interrupted and step == 3:
                    state = hook.state_dict()
                    hook.close()
                    hook = make()
                    model, _ = distributed(hook, net=model.module)
                    hook.load_state_dict(state)
                    backward_without_keeping(model, hook, rank)
                backward(model, rank, step)
            ends.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            hook.close()
        found[name] = torch.equal(*ends)
    return found


def backward_without_keeping(model, hook, rank):
    """A step that lets buckets be made anew, and leaves the hook as it was."""
    state = hook.state_dict()
    backward(model, rank, 99)
    hook.load_state_dict(state)


def losses(rank, steps):
    """By hook, after training: loss, whether replicas are equal, bytes, share of right answers.

    The loss is the mean over all processes in the last steps; an answer is the largest output.
    """
    found = {}
    makers = {
        "dense": lambda: _make_hook("dense"),
        **HOOKS,
        "fp16": lambda: _make_hook("fp16"),
        "bf16": lambda: _make_hook("bf16"),
        "powersgd": lambda: PowerSGD(4, start_step=10),
    }
    for name, make in makers.items():
        hook = make()
        model, _ = distributed(hook, cap=100 if name == "powersgd" else 0.005)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        history = []
        for step in range(steps):
            history.append(backward(model, rank, step))
            optimizer.step()
        mean = torch.tensor(sum(history[-20:]) / 20)
        dist.all_reduce(mean)
        hook.close()
        digest = tensor_digest(p.data for p in model.parameters())
        x, y = batch(99, 0, 2000)
        right = (model.module(x).argmax(1) == y.argmax(1)).float().mean().item()
        loss = mean.item() / dist.get_world_size()
        found[name] = loss, same_everywhere(digest), hook.bytes_sent, right
    return found


def automatic(rank):
    """Densities that are measured, bytes of the last step, and what is missing of the total."""
    torch.manual_seed(rank)
    sparse._SMALL = 1000
    hook = TopK("auto", start_step=5, warmup=())
    model, given = distributed(hook)
    sent = {}
    for step in range(8):
        before = hook.bytes_sent
        backward(model, rank, step)
        for key, gradient in gradients(model).items():
            sent[key] = sent.get(key, 0) + gradient.double() * hook.world_size
    state, missing = hook.state_dict(), _missing(sent, given, hook)
    again = TopK("auto", start_step=5, warmup=())
    model, _ = distributed(again)
    again.load_state_dict(state)
    backward(model, rank, 8)
    for one in (hook, again):
        one.close()
    handles = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    same = again.densities == hook.densities and not handles
    return hook.densities, hook.bytes_sent - before, missing, same


def on_a_flat_link(rank):
    """Densities where a message takes no longer the more bytes it has."""
    sparse._SMALL = 1000
    sparse.measure_all_reduce = lambda *_, **__: [(4**i, 1e-3 / i) for i in range(1, 7)]
    hook = TopK("auto", start_step=5, warmup=())
    model, _ = distributed(hook)
    for step in range(7):
        backward(model, rank, step)
    hook.close()
    return hook.densities


def measuring_fails(rank):
    """What the backward pass says where densities cannot be measured."""

    def fails(*_, **__):
        raise ValueError("no link")

    sparse.measure_all_reduce = fails
    hook = TopK("auto", start_step=5, warmup=())
    model, _ = distributed(hook)
    said = []
    for step in range(6):
        try:
            backward(model, rank, step)
            said.append("")
        except Exception as error:
            said.append(str(error))
    hook.close()
    return said


def powersgd_resumed(rank):
    """What is said on resuming, and by step how far the mean is from the exact one."""
    hook = PowerSGD(2, start_step=4)
    model, _ = distributed(hook, cap=100)
    for step in range(6):
        backward(model, rank, step)
    again = PowerSGD(2, start_step=4)
    model, given = distributed(again, cap=100, net=model.module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.load_state_dict(hook.state_dict())
    differences = []
    for step in range(6, 10):
        backward(model, rank, step)
        exact = torch.cat([given[-1][name].flatten() for name in gradients(model)])
        dist.all_reduce(exact)
        mean = torch.cat([value.flatten() for value in gradients(model).values()])
        differences.append(((mean - exact / 2).norm() / exact.norm()).item())
    return [str(one.message) for one in caught], differences


def many_buckets(rank):
    """Buckets of the second step with twenty parameters, by hook; they are made anew for it."""
    layers = [nn.Linear(12, 12, bias=False) for _ in range(20)]
    plain = {
        name: lambda name=name: _make_hook(name) for name in ("dense", "fp16", "bf16", "subnet")
    }
    found = {}
    for name, make in {**plain, **HOOKS}.items():
        hook, indices = make(), []
        model, _ = distributed(hook, 0.0003, nn.Sequential(*layers), noted=indices)
        for _ in range(2):
            indices.clear()
            model(torch.randn(2, 12)).sum().backward()
        found[name] = indices
        hook.close()
    return found
