"""Warm-up and averages in shares of a run, whatever its length and however it ends."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import yaml
from distributed_fits import overflow
from lightning.pytorch import Callback
from ranks import run_ranks
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from trainers import quiet_trainer

from vizoo.vision.callbacks import AveragedWeights, KeepLast
from vizoo.vision.configs.builtin import CONFIGS
from vizoo.vision.schedule import run_steps, steps_of
from vizoo.vision.training import OptimisedTask

pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"
)
GOAL = torch.tensor([[1.0, -2.0, 3.0]])


class Task(OptimisedTask):
    """Learns `GOAL`; writes the learning rates down."""

    def __init__(self, rounds=(1,), **settings):
        super().__init__(**{"lr_schedule": "constant", "lr": 1.0, "optimizer": "sgd"} | settings)
        self.round_epochs = rounds
        self.net = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(self.net.weight)
        self.rates = []

    def training_step(self, batch, index):
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return (self.net.weight - GOAL).square().sum()


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(1)


def fit(folder, task, batches=10, callbacks=(), ckpt_path=None, **arguments):
    arguments["callbacks"] = list(callbacks)
    trainer = quiet_trainer(folder, enable_checkpointing=False, **arguments)
    data = batches if isinstance(batches, DataLoader) else TensorDataset(torch.zeros(batches, 1))
    trainer.fit(task, data if data is batches else DataLoader(data), ckpt_path=ckpt_path)
    return trainer


def warm_steps(task):
    """How many steps came before the full learning rate."""
    return next(n for n, rate in enumerate(task.rates) if rate == task.hparams.lr)


def test_a_length_is_steps_or_a_share():
    assert [steps_of(n, 60, "n") for n in (0, 1, 7, 480, 0.05, 0.25)] == [0, 1, 7, 480, 3, 15]
    assert steps_of(7, math.inf, "n") == 7
    with pytest.raises(ValueError, match=r"^n 0\.05 is a share of the run, which has no end: set"):
        steps_of(0.05, math.inf, "n")


@pytest.mark.parametrize(
    ("run", "steps"),
    [
        ({"max_epochs": 4}, 40),
        ({"max_epochs": 4, "max_steps": 24}, 24),
        ({"max_epochs": -1, "max_steps": 24}, 24),
        ({"max_epochs": 4, "limit_train_batches": 6}, 24),
        ({"max_epochs": 4, "accumulate_grad_batches": 2}, 20),
        ({"max_epochs": 4, "batches": DataLoader(Endless()), "limit_train_batches": 6}, 24),
    ],
)
def test_a_share_is_of_the_run_however_it_ends(tmp_path, run, steps):
    task = Task(warmup_steps=0.25)
    trainer = fit(tmp_path, task, **run)
    assert run_steps(trainer) == steps == trainer.global_step
    repeated = run.get("accumulate_grad_batches", 1)
    assert warm_steps(task) == steps // 4 * repeated


def test_data_without_an_end_are_one_epoch(tmp_path):
    task = Task(lr_schedule="milestones", lr_milestones=[1], rounds=(1, 1), warmup_steps=2)
    fit(tmp_path, task, DataLoader(Endless()), max_steps=6)
    assert task.rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1])


def test_a_share_is_of_each_round(tmp_path):
    task = Task(rounds=(1, 3), warmup_steps=0.2)
    fit(tmp_path, task, max_epochs=4)
    first, second = task.rates[:10], task.rates[10:]
    assert first == pytest.approx([1 / 3, 2 / 3, *[1] * 8])
    assert second == pytest.approx([*[n / 7 for n in range(1, 7)], *[1] * 24])


@pytest.mark.parametrize(
    ("settings", "callbacks", "what"),
    [
        ({"warmup_steps": 0.1}, (), "warmup_steps 0.1"),
        ({}, (AveragedWeights(0.2),), "averaged weights: share 0.2"),
    ],
)
def test_a_share_of_no_end_is_refused(tmp_path, settings, callbacks, what):
    with pytest.raises(ValueError, match=f"^{what} is a share of the run.*trainer.max_epochs or"):
        fit(tmp_path, Task(**settings), 10, callbacks, max_epochs=-1)


@pytest.mark.parametrize("warmup", [-1, -0.1, 1.5])
def test_a_warm_up_that_is_neither(warmup):
    with pytest.raises(ValueError, match=f"warmup_steps {warmup}: give a number of steps, or a"):
        Task(warmup_steps=warmup)


@pytest.mark.parametrize(
    ("warmup", "rounds", "run", "says"),
    [
        (480, (1,), {"max_epochs": 6}, "takes 60 of 60 steps"),
        (31, (1,), {"max_epochs": 6}, "takes 31 of 60 steps"),
        (8, (1, 5), {"max_epochs": 6}, "takes 8 of 10 steps"),
        (8, (5, 1), {"max_epochs": 6, "max_steps": 12}, "takes 8 of 12 steps"),
        (30, (1,), {"max_epochs": 6}, None),
        (8, (3, 1), {"max_epochs": 3}, None),
        (480, (1,), {"fast_dev_run": True}, None),
        (480, (1,), {"max_epochs": -1, "max_time": "00:00:00:00"}, None),
    ],
)
def test_a_warm_up_too_long_is_said(tmp_path, warmup, rounds, run, says):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, Task(rounds=rounds, warmup_steps=warmup), **run)
    said = [str(w.message) for w in caught if "warm-up" in str(w.message)]
    assert len(said) == (says is not None)
    assert not said or (says in said[0] and "a share such as 0.05" in said[0])


@pytest.mark.parametrize("batches", [1, 4])
def test_few_steps_learn_as_many_do(tmp_path, batches):
    """One step an epoch too; a warm-up of 480 steps does not."""
    settings = {"lr": 0.1, "lr_schedule": "cosine", "optimizer": "momentum"}
    settings["optimizer_args"] = {"momentum": 0.0}
    task = Task(warmup_steps=0.08, **settings)
    fit(tmp_path, task, batches, [AveragedWeights(0.1)], max_epochs=60)
    assert (task.net.weight - GOAL).abs().max() < 0.05
    if batches == 1:
        late = Task(warmup_steps=480, **settings)
        fit(tmp_path, late, batches, max_epochs=60)
        assert (late.net.weight - GOAL).abs().max() > 2


def test_the_average_reaches_back_by_its_share(tmp_path):
    """Each step adds one to the weights, so that a span of ten steps lags nine behind."""

    class Counting(Task):
        def training_step(self, batch, index):
            return -self.net.weight.sum()

    class Last(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            self.weight = pl_module.net.weight.detach().clone()

    for share, steps, lag in ((0.1, 100, 9), (0.1, 50, 4), (0.05, 100, 4), (0.1, 5, 0)):
        task, last = Counting(optimizer="momentum", optimizer_args={"momentum": 0.0}), Last()
        fit(tmp_path, task, steps, [AveragedWeights(share), last], max_epochs=1)
        assert torch.equal(last.weight, torch.full((1, 3), float(steps)))
        assert (last.weight - task.net.weight).tolist()[0] == pytest.approx([lag] * 3, abs=0.5)


class Growing(Task):
    """Each step adds one to the weights."""

    def training_step(self, batch, index):
        return -self.net.weight.sum()

    def validation_step(self, batch, index):
        pass

    test_step = validation_step


def growing():
    return Growing(optimizer="momentum", optimizer_args={"momentum": 0.0})


def keeping(folder, *callbacks):
    callbacks = [AveragedWeights(0.1), *callbacks, KeepLast()]
    return quiet_trainer(folder, max_epochs=1, callbacks=callbacks)


def test_an_interrupted_validation_keeps_both_kinds_of_weights_apart(tmp_path):
    class Interrupted(Callback):
        def on_validation_batch_end(self, *_):
            raise RuntimeError("stopped")

    task, data = growing(), DataLoader(TensorDataset(torch.zeros(40, 1)))
    trainer = keeping(tmp_path, Interrupted())
    with pytest.raises(RuntimeError, match="stopped"):
        trainer.fit(task, data, data)
    (path,) = tmp_path.rglob("last.ckpt")
    kept = torch.load(path, weights_only=True)
    assert kept["current_model_state"]["net.weight"].tolist() == [[40.0] * 3]
    assert (kept["state_dict"]["net.weight"] < 39).all()


@pytest.mark.parametrize("hook", ["validation_step", "on_validation_batch_end"])
@pytest.mark.parametrize("every", [2, 4])
def test_a_validation_that_was_broken_off_is_repeated_as_a_whole(tmp_path, hook, every):
    class Watched(Growing):
        seen, calls = (), 0

        def on_validation_epoch_end(self):
            self.seen += ((self.global_step, self.calls),)
            self.calls = 0

        def validation_step(self, batch, index):
            self.calls += 1

    class Stopped(Watched):
        pass

    def stop(self, *_):
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("stopped")

    setattr(Stopped, hook, stop)
    data, measured = (DataLoader(TensorDataset(torch.zeros(n, 1))) for n in (4, 3))
    options = {"max_epochs": 1, "val_check_interval": every}
    with pytest.raises(RuntimeError, match="stopped"):
        quiet_trainer(tmp_path, callbacks=[KeepLast()], **options).fit(Stopped(), data, measured)
    (path,) = tmp_path.rglob("last.ckpt")
    task = Watched()
    trainer = quiet_trainer(tmp_path, callbacks=[KeepLast()], **options)
    trainer.fit(task, data, measured, ckpt_path=path)
    assert task.seen == tuple((step, 3) for step in range(every, 5, every))


def test_what_is_loaded_after_a_fit_is_measured_as_it_is(tmp_path):
    task, data = growing(), DataLoader(TensorDataset(torch.zeros(40, 1)))
    trainer = keeping(tmp_path)
    trainer.fit(task, data)
    (path,) = tmp_path.rglob("last.ckpt")
    kept = torch.load(path, weights_only=True)["state_dict"]["net.weight"]
    trainer.test(task, data, ckpt_path=path, verbose=False)
    torch.testing.assert_close(task.net.weight.detach(), kept)


def test_what_is_only_measured_is_loaded_without_a_warning_of_averages(tmp_path):
    task, data = growing(), DataLoader(TensorDataset(torch.zeros(2, 1)))
    keeping(tmp_path).fit(task, data)
    (path,) = tmp_path.rglob("last.ckpt")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*WeightAveraging")
        keeping(tmp_path).test(task, data, ckpt_path=path, verbose=False)


def test_a_resumed_run_warms_up_and_averages_as_if_it_had_not_stopped(tmp_path):
    class Drawn(Task):
        def training_step(self, batch, index):
            self.rates.append(self.optimizers().param_groups[0]["lr"])
            return (self.net.weight - GOAL * (1 + self.global_step % 3)).square().sum()

    class Stops(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 15:
                trainer.save_checkpoint(tmp_path / "15.ckpt")
                trainer.should_stop = True

    def run(callbacks=(), ckpt_path=None):
        task = Drawn(warmup_steps=0.5, lr=0.1)
        fit(tmp_path, task, 10, [AveragedWeights(0.3), *callbacks], ckpt_path, max_epochs=4)
        return task

    whole, _ = run(), run([Stops()])
    resumed = run(ckpt_path=tmp_path / "15.ckpt")
    assert whole.rates[-len(resumed.rates) :] == pytest.approx(resumed.rates)
    assert torch.allclose(whole.net.weight, resumed.net.weight, atol=1e-6)


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1])
def test_an_average_over_no_share(share):
    with pytest.raises(ValueError, match=f"a share of {share}: between 0 and 1"):
        AveragedWeights(share)


@pytest.mark.parametrize(
    "name",
    ["classification/skin10", "classification/skin100", "stereo/easnet_small_pairs"],
)
def test_configs_for_data_of_ones_own_have_lengths_in_shares(name):
    settings = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    assert 0 < settings["model"]["init_args"]["warmup_steps"] <= 0.1
    callbacks = [entry["class_path"] for entry in settings["trainer"].get("callbacks", [])]
    others = {"AveragedWeights", "PredictionTable"}  # whose settings are shares, or none
    assert {path.rpartition(".")[2] for path in callbacks} <= others


@pytest.mark.parametrize("name", ["net.weight", "norm.running_var"])
def test_weights_that_are_no_numbers_are_not_kept(tmp_path, name):
    """The file of the epoch before stays, and the fit ends.

    Where 16 bits overflow a step is left out, but the batch norms have seen it.
    """

    class Diverging(Task):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(1)

        def training_step(self, batch, index):
            wrong = self.current_epoch > 0
            self.norm(torch.tensor([[0.0], [math.inf if wrong and "norm" in name else 1.0]]))
            factor = math.nan if wrong and "weight" in name else 1
            return super().training_step(batch, index) * factor

    trainer = quiet_trainer(tmp_path, max_epochs=5, callbacks=[KeepLast()])
    data = DataLoader(TensorDataset(torch.zeros(4, 1)))
    said = rf"not finite after epoch 1 \({name.split('.')[0]}\..*\): .*last.ckpt is of before"
    with pytest.raises(ValueError, match=said):
        trainer.fit(Diverging(), data)
    (path,) = tmp_path.rglob("last.ckpt")
    kept = torch.load(path, weights_only=True)
    assert kept["epoch"] == 0 and kept["state_dict"][name].isfinite().all()


def test_processes_agree_that_weights_are_not_kept(tmp_path):
    """Statistics are each one's own: those that are well would wait for the other to save."""
    for said in run_ranks(2, overflow, str(tmp_path)):
        assert "not finite after epoch 1 (" in said and "last.ckpt is of before" in said
    kept = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert kept["epoch"] == 0
