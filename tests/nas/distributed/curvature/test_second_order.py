"""Second-order preconditioners: what they see, what they solve, how they train."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from distributed_training import trainer, weights
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn import functional as F
from toy_regression import Data, Regression
from toy_volumes import Net, Task, Volumes

from vizoo.__main__ import main
from vizoo.nas.distributed import Eva, KFACPreconditioner
from vizoo.nas.distributed.curvature.eva import _eva_gradient
from vizoo.nas.distributed.curvature.factors import (
    balanced,
    decompose,
    eigen_gradient,
    pack,
    pi_damping,
    place_matrices,
    unpack,
)
from vizoo.nas.distributed.curvature.layers import layers_of
from vizoo.nas.training import SupernetTask

KINDS = {
    "eva": Eva,
    "eigen": lambda **more: KFACPreconditioner(factor_every=1, inverse_every=2, **more),
    "inverse": lambda **more: KFACPreconditioner("inverse", factor_every=1, **more),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def fit(callback, epochs=2, batch_size=8, checkpoint=None, task=None, **settings):
    """Train the toy task; its weights, the task and the trainer."""
    torch.manual_seed(0)
    task = task or Task()
    callbacks = [callback] if callback else []
    found = trainer(max_epochs=epochs, callbacks=callbacks, **settings)
    found.fit(task, Volumes(batch_size=batch_size), ckpt_path=checkpoint)
    return weights(task.net), task, found


def close(one, other, within):
    torch.testing.assert_close(one, other, rtol=0, atol=within)


def random_spd(size):
    x = torch.randn(size, size, dtype=torch.float64)
    x = x @ x.T
    return (x + x.T) / 2


def eye(size):
    return torch.eye(size, dtype=torch.float64)


def test_eva_is_the_inverse_of_its_curvature():
    g, a, b = (torch.randn(*n, dtype=torch.float64) for n in ((5, 7), (7,), (5,)))
    curvature = torch.kron(torch.outer(b, b), torch.outer(a, a)) + 0.03 * eye(35)
    expected = torch.linalg.solve(curvature, g.flatten()).view(5, 7)
    close(_eva_gradient(g, a, b, 0.03), expected, 1e-10)


def test_eigen_form_is_the_kronecker_solve_and_the_other_that_of_damped_factors():
    g, a, b = torch.randn(5, 7, dtype=torch.float64), random_spd(7), random_spd(5)
    exact = torch.linalg.solve(torch.kron(b, a) + 0.03 * eye(35), g.flatten()).view(5, 7)
    found = eigen_gradient(g, decompose(a, "eigen", 0.03), decompose(b, "eigen", 0.03), 0.03)
    close(found, exact, 1e-10)
    for_a, for_b = pi_damping(a, b, 0.03)
    assert for_a * for_b == pytest.approx(0.03)
    assert for_a / for_b == pytest.approx(float((a.trace() / 7) / (b.trace() / 5)))
    inverses = decompose(b, "inverse", for_b)[0] @ g @ decompose(a, "inverse", for_a)[0]
    a, b = a + for_a * eye(7), b + for_b * eye(5)
    close(inverses, torch.linalg.solve(torch.kron(b, a), g.flatten()).view(5, 7), 1e-10)
    assert (inverses - exact).norm() > 1e-3 * exact.norm()
    assert pi_damping(a * 0, b, 0.03) == pytest.approx((math.sqrt(0.03),) * 2)


@pytest.mark.parametrize("form", ["eigen", "inverse"])
def test_decompositions_leave_factors_alone_and_fail_readably(form):
    factor = random_spd(6)
    before = factor.clone()
    decompose(factor, form, 0.1)
    assert torch.equal(factor, before)
    singular = torch.diag(torch.tensor([1.0, 0.0, -1e-4]))  # rounding gives such
    assert all(t.isfinite().all() for t in decompose(singular, form, 1e-8))
    with pytest.raises(ValueError, match="3 x 3 .* cannot be decomposed: take a smaller") as error:
        decompose(singular * math.nan, form, 0.1)
    assert "\n" not in str(error.value)


def test_triangles_survive():
    factor = random_spd(9)
    assert len(pack(factor)) == 45 and torch.equal(unpack(pack(factor)), factor)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(5, 3),
        nn.Conv2d(3, 4, 3, padding=1, stride=2),
        nn.Conv2d(3, 4, (3, 2), padding="same", dilation=(2, 1), padding_mode="reflect"),
        nn.Conv3d(2, 4, (3, 1, 2), padding=(1, 0, 1), stride=(2, 1, 1), dilation=(1, 1, 2)),
        nn.Conv3d(2, 4, 3, padding="valid", bias=False),
    ],
)
def test_patches_and_rows_are_those_of_the_gradient(module, monkeypatch):
    """The gradient is the sum of b a^T over samples and positions."""
    module = module.double()
    size = (6, 5) if isinstance(module, nn.Linear) else (6, module.in_channels, 5, 6, 7)
    x = torch.randn(size[: module.weight.dim()], dtype=torch.float64)
    y = module(x)
    b = torch.randn_like(y)
    y.backward(b)
    (layer,) = layers_of(nn.Sequential(module))
    rows = layer.output_rows(b)
    if isinstance(module, nn.Linear):
        patches = x
    else:
        patches = torch.cat(list(layer._rows(x)))
    if module.bias is not None:
        patches = F.pad(patches, (0, 1), value=1.0)
    close(layer.gradient(torch.float64), rows.T @ patches, 1e-10)
    close(layer.mean_input(x), patches.mean(0), 1e-12)
    expected = patches.T @ patches / len(patches)
    close(layer.input_moment(x), expected, 1e-10)
    monkeypatch.setattr("vizoo.nas.distributed.curvature.layers._ENTRIES", 1)  # sample by sample
    close(layer.input_moment(x), expected, 1e-10)
    for parameter, part in layer.parts(layer.gradient(torch.float64)):
        assert torch.equal(parameter.grad, part)


def test_layers_that_are_left_alone():
    net = Net()
    net.twin = nn.Linear(252, 3)
    net.twin.weight = net.head.weight
    assert [layer.name for layer in layers_of(net)] == ["first", "volume", "spare"]


@each_kind
def test_gradients_are_solved_and_clipped_layer_by_layer(kind):
    """One step by hand; other parameters, and layers that are not used, keep theirs."""
    callback = KINDS[kind](damping=0.5, kl_clip=1e-6, momentum=0.9)
    task = Task(lr=0.1)
    net = copy.deepcopy(task.net)
    start = {name: p.clone() for name, p in task.net.named_parameters()}
    fit(callback, 1, 24, task=task)
    kept = {}
    names = ("first", "volume", "head")
    for name in names:
        layer = net.get_submodule(name)
        layer.register_forward_hook(lambda m, x, y, n=name: kept.update({n: [x[0], y]}))
    x, target = Volumes().train[:]
    out = net(x)
    loss = F.mse_loss(out, target)
    # The first layer's output is changed in place: its gradient is that of the value before.
    first = net.first(x)
    rest = net.head(net.volume(net.norm(net.channels(first.relu()))[:, None]).tanh().flatten(1))
    kept["first"] = [x, first]
    loss = F.mse_loss(rest, target)
    signals = torch.autograd.grad(loss, [kept[name][1] for name in names], retain_graph=True)
    loss.backward()
    preconditioned, layers = {}, {layer.name: layer for layer in layers_of(net)}
    for name, signal in zip(names, signals, strict=True):
        layer, g = layers[name], layers[name].gradient(torch.float32)
        rows = layer.output_rows(signal)
        if kind == "eva":
            p = _eva_gradient(g, layer.mean_input(kept[name][0]), rows.mean(0), 0.5)
        else:
            a, b = layer.input_moment(kept[name][0]), rows.T @ rows / len(rows)
            shifts = pi_damping(a, b, 0.5)
            a, b = (decompose(m, kind, shift) for m, shift in zip((a, b), shifts, strict=True))
            p = eigen_gradient(g, a, b, 0.5) if kind == "eigen" else b[0] @ g @ a[0]
        preconditioned[name] = g, p
    total = sum(0.1**2 * (g * p).sum() for g, p in preconditioned.values())
    factor = torch.sqrt(1e-6 / total)
    assert factor < 1
    for name, (_, p) in preconditioned.items():
        for parameter, part in layers[name].parts(factor * p):
            parameter.grad.copy_(part)
    for name, parameter in net.named_parameters():
        moved = 0.0 if parameter.grad is None else -0.1 * parameter.grad
        found = task.net.get_parameter(name) - start[name]
        close(found, torch.zeros_like(found) + moved, 2e-6)
        assert name.startswith("spare") or found.abs().max() > 1e-7, name


@each_kind
def test_no_clip_keeps_the_length(kind):
    lengths = {}
    for callback in (None, KINDS[kind](kl_clip=0)):
        _, task, _ = fit(callback, 1, 24)
        lengths[bool(callback)] = task.clipped[0]
    # Other parameters' gradients are part of both lengths.
    assert lengths[True] == pytest.approx(lengths[False], rel=1e-4)


@each_kind
def test_micro_batches_are_as_a_whole_batch(kind):
    whole, *_ = fit(KINDS[kind](), 4, 24)
    parts, *_ = fit(KINDS[kind](), 4, 8, accumulate_grad_batches=3)
    plain, *_ = fit(None, 4, 24)
    close(parts, whole, 1e-5)
    assert (whole - plain).abs().max() > 1e-3


@each_kind
def test_clipping_comes_after(kind):
    _, task, _ = fit(KINDS[kind](kl_clip=0, damping=1e-3), 1, gradient_clip_val=0.01)
    assert max(task.clipped) == pytest.approx(0.01, rel=1e-3)


@each_kind
def test_validation_does_not_count(kind):
    without, *_ = fit(KINDS[kind](), 2)
    with_it, *_ = fit(KINDS[kind](), 2, limit_val_batches=1.0, val_check_interval=1)
    assert torch.equal(without, with_it)


@each_kind
def test_a_resumed_training_ends_as_one_in_one_go(kind, tmp_path):
    whole, *_ = fit(KINDS[kind](), 5)
    _, _, half = fit(KINDS[kind](), 3)
    half.save_checkpoint(tmp_path / "half.ckpt")
    again, *_ = fit(KINDS[kind](), 5, checkpoint=str(tmp_path / "half.ckpt"))
    assert torch.equal(whole, again)
    other = Eva() if kind != "eva" else KFACPreconditioner()
    afresh, *_ = fit(other, 5, checkpoint=str(tmp_path / "half.ckpt"))
    assert not torch.equal(whole, afresh)


@each_kind
def test_scaled_losses_change_nothing_and_overflows_are_left_out(kind):
    def mixed(scale):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        callback = KINDS[kind]()
        found, *_ = fit(callback, 2, plugins=[plugin])
        return found, callback

    small, _ = mixed(8.0)
    large, _ = mixed(512.0)
    close(small, large, 2e-3)
    plain, *_ = fit(KINDS[kind](), 2)
    close(large, plain, 5e-3)
    overflown, callback = mixed(2.0**40)
    state = callback.state_dict()
    tensors = state.values() if kind == "eva" else [[m] for m in state["moments"].values()]
    assert overflown.isfinite().all()
    assert all(t.isfinite().all() for each in tensors for t in each)


@pytest.mark.parametrize(
    ("factor_every", "inverse_every", "steps"),
    [(2, 5, [0, 6, 10, 16, 20]), (4, 6, [0, 8, 12, 20]), (4, 2, range(0, 24, 4))],
)
def test_decompositions_come_with_the_first_update_that_is_due(factor_every, inverse_every, steps):
    found = []

    class Noting(KFACPreconditioner):
        def _decompose(self, layers):
            found.extend([self.step] * bool(layers))
            return super()._decompose(layers)

    callback = Noting(factor_every=factor_every, inverse_every=inverse_every)
    fit(callback, 8)
    assert callback.step == 24 and found == list(steps)


def test_a_state_that_was_given_stays_as_it_was():
    callback = KFACPreconditioner(factor_every=1)
    fit(callback, 1)
    state = callback.state_dict()["moments"]
    before = {name: value.clone() for name, value in state.items()}
    for value in callback.moments.values():
        value.lerp_(torch.zeros_like(value), 0.5)  # as every update does
    assert before and all(torch.equal(before[name], state[name]) for name in before)


class Line(LightningModule):
    """Linear layers that fit inputs of very different sizes, by SGD."""

    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


def test_each_gets_further_than_sgd_in_as_many_steps():
    """With the same learning rate, and steps of the same length."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(256, 16, generator=generator) * torch.logspace(0, -1.5, 16)
    y = (x / torch.logspace(0, -1.5, 16)) @ torch.randn(16, 4, generator=generator) / 4
    data = torch.utils.data.TensorDataset(x, y)
    settings = {"damping": 1e-5, "kl_clip": 0}
    every = {"factor_every": 1, "inverse_every": 5, "momentum": 0.05}
    losses = {}
    for name, callback in {
        "sgd": None,
        "eva": Eva(**settings),
        "eigen": KFACPreconditioner("eigen", **settings, **every),
        "inverse": KFACPreconditioner("inverse", **settings, **every),
    }.items():
        task = Line(0.3)
        loader = torch.utils.data.DataLoader(data, batch_size=64)
        trainer(max_epochs=15, callbacks=[callback] if callback else []).fit(task, loader)
        losses[name] = sum(task.losses[-4:]) / 4
    assert losses["sgd"] < 0.1 * task.losses[0]
    assert losses["eva"] < losses["sgd"]
    assert max(losses["eigen"], losses["inverse"]) < 0.7 * losses["sgd"]


def test_work_is_balanced_and_small_matrices_are_inverted_everywhere():
    assert balanced([1, 8, 4, 3], 2) == [1, 0, 1, 1]
    assert balanced([5.0], 3) == [0]
    found = place_matrices([8, 64, 512, 256, 300], 2, lambda n: n**3, lambda n: 1e5)
    assert found == [None, 0, 0, 1, 1] or found == [None, 1, 0, 1, 1]
    assert found[0] is None and found[2] != found[4] == found[3]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Eva(0), "damping 0, kl_clip 0.001, momentum 0.95: the first must be more than 0"),
        (lambda: Eva(momentum=2), "at most 1"),
        (lambda: KFACPreconditioner("both"), "form 'both': choose eigen or inverse"),
        (lambda: KFACPreconditioner(distribute="all"), "distribute 'all': choose replicate, owner"),
        (lambda: KFACPreconditioner(factor_every=0), "factor_every 0 and inverse_every 100: at"),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with pytest.raises(ValueError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["eva", "kfac"])
def test_configs_train(name, tmp_path, capsys):
    """Behind another config, as a user runs it; its callbacks stay."""
    words = ["fit", "--model", "toy_volumes.Task", "--data", "toy_volumes.Volumes"]
    words += ["--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.max_epochs=2"]
    words += ["--trainer.callbacks+=ModelCheckpoint", f"--trainer.default_root_dir={tmp_path}"]
    assert main([*words, "--config", f"distributed/{name}.yaml"]) == 0
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    kind = {"eva": "Eva", "kfac": "KFACPreconditioner"}[name]
    assert any(key.startswith("ModelCheckpoint") for key in saved["callbacks"])
    state = saved["callbacks"][kind]
    assert "net.head" in (state if name == "eva" else state["solvers"])


class Nothing(Task):
    def __init__(self):
        super().__init__()
        self.net = nn.BatchNorm2d(2)


class Fused(Task):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), fused=True)


def test_trainings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="^Eva: the layers of a supernet change") as error:
        trainer(callbacks=[Eva()]).fit(SupernetTask(Regression()), Data())
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="Nothing has no layer to precondition"):
        fit(Eva(), task=Nothing())
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="a fused optimiser hides gradients' scale"):
        fit(Eva(), task=Fused(), plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
