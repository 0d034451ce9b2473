"""Differentiable search as Lightning: who learns when, which candidate wins, resuming, halves."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path

import pytest
import torch
import toy_supernet
from distributed_fits import differentiable_search, search_by_hook, search_of_noise
from lightning.pytorch import LightningDataModule
from ranks import run_ranks
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler
from toy_mixture import Filtered, Fit
from trainers import fit_forked, quiet_trainer

from vizoo.__main__ import main
from vizoo.nas import Architecture, extract, search_space
from vizoo.nas.differentiable import (
    BinaryGates,
    Cost,
    DifferentiableSearch,
    Dirichlet,
    GumbelSoftmax,
    HalvedData,
    Linear,
    Reinforce,
    Sigmoid,
    Softmax,
    Uniform,
    derive,
)
from vizoo.nas.distributed import AllReduce, HookDDPStrategy
from vizoo.nas.recalibration import recalibrate
from vizoo.nas.search import UnreachableError
from vizoo.vision.hub.weights import load_weights

METHODS = {
    "softmax": Softmax,
    "sigmoid": Sigmoid,
    "soft": lambda: GumbelSoftmax(False),
    "hard": GumbelSoftmax,
    "gates": BinaryGates,
    "dirichlet": Dirichlet,
    "reinforce": Reinforce,
}


def _trainer(folder, **arguments):
    defaults = {"max_epochs": 1, "limit_val_batches": 0, "enable_checkpointing": False}
    return quiet_trainer(folder, **{**defaults, **arguments})


def _state(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def _changed(before, module):
    return {name for name, p in module.named_parameters() if not torch.equal(before[name], p)}


class Steps(DifferentiableSearch):
    """Notes what each optimiser's step changed."""

    def __init__(self, *args, **arguments):
        super().__init__(*args, **arguments)
        self.notes = []

    def configure_optimizers(self):
        found = super().configure_optimizers()
        for who, entry in zip(("weights", "logits"), found, strict=True):
            optimizer = entry["optimizer"]
            before = {}
            optimizer.register_step_pre_hook(lambda *_, b=before: b.update(_state(self)))
            optimizer.register_step_post_hook(
                lambda *_, b=before, who=who: self.notes.append((who, _changed(b, self)))
            )
        return found


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("method", METHODS)
def test_a_logit_step_moves_every_logit_and_no_weight_and_the_reverse(tmp_path, method, precision):
    search = Steps(Fit(), METHODS[method](), logits_weight_decay=0.0)
    trainer = _trainer(tmp_path, limit_train_batches=6, precision=precision)
    trainer.fit(search, HalvedData(Filtered(96)))
    logits = {"logits.blocks/0/kind", "logits.blocks/1/kind"}
    moved = [names for who, names in search.notes if who == "logits"]
    assert [who for who, _ in search.notes] == ["logits", "weights"] * len(moved)
    if method == "reinforce":  # the first loss is what the next ones are compared with
        moved = moved[1:]
    assert len(moved) >= 5 and all(names == logits for names in moved)
    weights = [names for who, names in search.notes if who == "weights"]
    assert all(names and all(n.startswith("task.net.") for n in names) for names in weights)
    assert search.global_step == 6


def test_a_step_of_the_weights_trains_one_candidate(tmp_path):
    search = Steps(Fit(), GumbelSoftmax())
    _trainer(tmp_path).fit(search, HalvedData(Filtered(64)))
    first = next(names for who, names in search.notes if who == "weights")
    touched = {name.split(".")[4] for name in first if "blocks.0" in name}
    assert len(touched) <= 1  # noise has no parameters


@pytest.mark.parametrize("method", METHODS)
def test_the_provably_better_candidate_wins(tmp_path, method):
    search = DifferentiableSearch(Fit("two"), METHODS[method](), logits_lr=0.05, seed=3)
    with torch.no_grad():  # from behind
        search.logits.vectors["kind"].copy_(torch.tensor([0.5, 0.0]))
    _trainer(tmp_path, max_epochs=20).fit(search, HalvedData(Filtered(64)))
    assert search.result["kind"] == "convolution"
    assert search.probabilities()["kind"][1] > 0.6


def test_uniform_weights_learn_no_logits_and_ranking_finds_the_better_candidate(tmp_path):
    search, data = DifferentiableSearch(Fit("two"), Uniform()), HalvedData(Filtered(64))
    before = _state(search.logits)
    _trainer(tmp_path, max_epochs=20).fit(search, data)
    assert not _changed(before, search.logits)
    images, wanted = data.data.val.tensors

    def errors(architectures):
        nets = [extract(search.task.net, architecture) for architecture in architectures]
        for net in nets:
            recalibrate(net, [(images,)])
        return [(net.eval()(images) - wanted).square().mean().item() for net in nets]

    ranked = derive(search.space, search.probabilities(), errors, samples=5)
    assert len(ranked) == 2 and ranked[0].architecture["kind"] == "convolution"


def test_numbers_are_searched_by_their_score(tmp_path):
    """Width 2 cannot carry four channels through the head."""
    search = DifferentiableSearch(Fit("elastic"), Reinforce(), logits_lr=0.05)
    _trainer(tmp_path, max_epochs=25).fit(search, HalvedData(Filtered(64)))
    assert search.result["width"] == 6 and search.result["blocks.0.kind"] == "large"
    with pytest.raises(ValueError, match="choice 'width' is a number"):
        DifferentiableSearch(Fit("elastic"))
    DifferentiableSearch(Fit("elastic"), only={"width": [6]})


@pytest.mark.parametrize("run", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 3}])
def test_a_search_that_is_all_warm_up_is_said(tmp_path, run):
    search = DifferentiableSearch(Fit(), warmup_epochs=2)
    with pytest.warns(UserWarning, match="warmup_epochs 2 of 2 epochs train weights alone"):
        _trainer(tmp_path, **run).fit(search, HalvedData(Filtered(32)))


def test_warm_up_trains_weights_alone(tmp_path):
    search = Steps(Fit(), warmup_epochs=1)
    _trainer(tmp_path, max_epochs=2).fit(search, HalvedData(Filtered(32)))
    assert [who for who, _ in search.notes] == ["weights"] * 2 + ["logits", "weights"] * 2


def test_jointly_both_learn_from_one_batch(tmp_path):
    search = Steps(Fit(), GumbelSoftmax(False), joint=True)
    _trainer(tmp_path).fit(search, Filtered(32))
    assert [who for who, _ in search.notes] == ["logits", "weights"] * 4
    with pytest.raises(ValueError, match="takes training data of two, named weights and logits"):
        _trainer(tmp_path).fit(DifferentiableSearch(Fit()), Filtered(32))


def test_accumulated_batches_make_one_step_and_only_weights_are_clipped(tmp_path):
    search = Steps(Fit(lr=1.0), logits_lr=0.1)
    norms = []
    search.configure_gradient_clipping = None
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 1e-4}
    clip = search.clip_gradients
    search.clip_gradients = lambda optimizer, *a, **k: (norms.append(optimizer), clip(optimizer))
    trainer = _trainer(tmp_path, **settings)
    trainer.fit(search, HalvedData(Filtered(64)))
    assert [who for who, _ in search.notes] == ["logits", "weights"] * 2
    assert {id(optimizer) for optimizer in norms} == {id(trainer.optimizers[0])}


@pytest.mark.parametrize("run", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 6}])
def test_the_derived_network_is_recalibrated_and_validated(tmp_path, run):
    search = DifferentiableSearch(
        Fit(),
        temperature=Linear(5, 1),
        watched={"largest": "largest"},
        samples=3,
        metric="val/error",
    )
    trainer = _trainer(tmp_path, limit_val_batches=1.0, **run)
    trainer.fit(search, HalvedData(Filtered(32)))
    assert search.steps == search.global_step == trainer.estimated_stepping_batches == 6
    found = trainer.callback_metrics
    assert {"val/derived/error", "val/largest/error", "search/entropy", "search/skips"} <= set(
        found
    )
    assert found["search/temperature"] == 1
    assert {"train/loss", "train/logits/loss"} <= set(found)
    ranked = {n: float(v) for n, v in found.items() if n.startswith(("val/drawn", "val/derived"))}
    assert len(ranked) == 4
    best = min(ranked, key=ranked.get)
    wanted = {"derived": search.derived, **search._ranked}[best.split("/")[1]]
    assert search.result == wanted
    assert Architecture.load(tmp_path / "architecture.json") == wanted
    shares = json.loads((tmp_path / "probabilities.json").read_text())
    assert list(shares) == list(search.space.names)


def test_a_target_is_kept_to(tmp_path):
    """The large convolution fits better, and costs too much."""
    task = Fit("two")
    space = search_space(task.net)
    cost = Cost(target=100, quantity="parameters", weight=50.0)
    search = DifferentiableSearch(task, Softmax(), logits_lr=0.1, cost=cost)
    _trainer(tmp_path, max_epochs=10).fit(search, HalvedData(Filtered(32)))
    assert cost.table(space.largest()) == 148 and cost.table(space.smallest()) == 0
    assert search.probabilities()["kind"][1] < 0.75
    assert search.result["kind"] == "noise"


def test_a_target_out_of_reach_is_refused_at_once(tmp_path):
    search = DifferentiableSearch(
        Fit(), cost=Cost(10, "parameters"), only={"*": ["small", "large"]}
    )
    with pytest.raises(UnreachableError, match="smallest reachable is 98"):
        _trainer(tmp_path).fit(search, HalvedData(Filtered(32)))


def test_a_search_that_collapses_ends(tmp_path):
    search = DifferentiableSearch(Fit("two"), max_skips=1.0)
    with torch.no_grad():
        search.logits.vectors["kind"].copy_(torch.tensor([9.0, 0.0]))
    trainer = _trainer(tmp_path, max_epochs=5)
    with pytest.warns(UserWarning, match="100% of the derived architecture's choices took a"):
        trainer.fit(search, HalvedData(Filtered(32)))
    assert trainer.current_epoch == 1


def test_dropped_candidates_are_chosen_by_the_step_and_fewer_from_epoch_to_epoch(tmp_path):
    zeros = []

    class Watched(DifferentiableSearch):
        def _draw(self, batch_idx, learn):
            draw = super()._draw(batch_idx, learn)
            again = super()._draw(batch_idx, learn)
            for name, weights in draw.weights.items():
                assert torch.equal(weights.values, again.weights[name].values)
                assert weights.values[1:].min() > 0  # those with parameters
                zeros.append((self.current_epoch, bool(weights.values[0] == 0)))
            return draw

    search = Watched(Fit(), Softmax(), skip_dropout=0.9)
    _trainer(tmp_path, max_epochs=3).fit(search, HalvedData(Filtered(96)))
    counts = [sum(zero for epoch, zero in zeros if epoch == number) for number in range(3)]
    assert counts[0] > counts[1] > counts[2] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits_lr": -1}, "logits_lr has to be above 0, not -1"),
        ({"logits_weight_decay": -1}, "logits_weight_decay has to be 0 or more, not -1"),
        ({"warmup_epochs": -5}, "warmup_epochs has to be 0 or more, not -5"),
        ({"max_skips": 7}, "max_skips has to be a share up to 1, not 7"),
        ({"skip_dropout": 1.0}, "skip_dropout has to be from 0 to below 1, not 1.0"),
        ({"skip_dropout": 0.1}, "needs a sampler that runs all candidates"),
        ({"samples": -3}, "samples has to be 0 or more, not -3"),
        ({"mode": "maximum"}, "mode has to be min or max, not 'maximum'"),
        ({"samples": 3}, "to rank 3 samples takes a metric"),
        ({"only": {"*": ["large"]}}, "no choice is left with more than one value"),
        ({"only": {"*.kin": ["large"]}}, "no choice is called"),
        ({"joint": True, "sampler": Reinforce()}, "cannot be joint"),
        ({"cost": Cost(1, form="power"), "sampler": Reinforce()}, "hinge or linear, not power"),
    ],
)
def test_settings_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        DifferentiableSearch(Fit(), **arguments)
    assert "\n" not in str(error.value)


def test_a_metric_that_nobody_logs_is_named_after_the_first_epoch(tmp_path):
    search = DifferentiableSearch(Fit(), samples=2, metric="val/erorr")
    with pytest.raises(ValueError, match="val/erorr is not logged.* there are val/error$"):
        _trainer(tmp_path, limit_val_batches=1.0).fit(search, HalvedData(Filtered(32)))


@pytest.mark.parametrize(("epochs", "ranked"), [(4, 3), (3, 0)])
def test_samples_are_ranked_where_the_last_epoch_is_validated(tmp_path, epochs, ranked):
    search = DifferentiableSearch(Fit(), samples=3, metric="val/error")
    often = {"check_val_every_n_epoch": 2, "limit_val_batches": 1.0}
    trainer = _trainer(tmp_path, max_epochs=epochs, **often)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(search, HalvedData(Filtered(32)))
    assert len(search._ranked) == ranked
    told = any("no samples were ranked" in str(warning.message) for warning in caught)
    assert told == (not ranked)


def test_where_one_architecture_keeps_to_the_cost_no_sample_is_missed(tmp_path, recwarn):
    search = DifferentiableSearch(
        Fit("two"), cost=Cost(1, "parameters"), samples=3, metric="val/error"
    )
    _trainer(tmp_path, limit_val_batches=1.0).fit(search, HalvedData(Filtered(32)))
    assert search.result["kind"] == "noise" and not search._ranked
    assert not any("no samples were ranked" in str(warning.message) for warning in recwarn)


def test_halves_are_disjoint_and_repeatable():
    data = HalvedData(Filtered(32), share=0.25, seed=4)
    parts = {name: loader.dataset.indices for name, loader in data.train_dataloader().items()}
    assert sorted(parts["weights"] + parts["logits"]) == list(range(32))
    assert len(parts["logits"]) == 8
    again = HalvedData(Filtered(32), share=0.25, seed=4).train_dataloader()
    assert {name: loader.dataset.indices for name, loader in again.items()} == parts
    orders = []
    for epoch in (0, 1, 0):
        loader = again["weights"]
        loader.sampler.set_epoch(epoch)
        orders.append(torch.cat([x for x, _ in loader]))
    assert torch.equal(orders[0], orders[2]) and not torch.equal(orders[0], orders[1])


def test_a_half_smaller_than_a_batch_is_one():
    data = LightningDataModule()
    whole = TensorDataset(torch.rand(20, 1))
    data.train_dataloader = lambda: DataLoader(whole, 8, shuffle=True, drop_last=True)
    halves = HalvedData(data, share=0.25).train_dataloader()
    sizes = {name: [len(x) for (x,) in loader] for name, loader in halves.items()}
    assert sizes == {"weights": [8], "logits": [5]}


def test_resumed_behind_the_last_batch_of_an_epoch_it_goes_on_with_the_next(tmp_path):
    class Fetched(Filtered):  # before the epoch is known
        def train_dataloader(self):
            return DataLoader(self.train, 8, shuffle=True, num_workers=1)

    class Seen(DifferentiableSearch):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(batch["weights"][0].sum())
            self.trainer.save_checkpoint(tmp_path / f"{self.global_step}.ckpt")

    runs = []
    for start in (None, tmp_path / "2.ckpt"):
        seen = []
        trainer = _trainer(tmp_path, max_epochs=2)
        trainer.fit(Seen(Fit()), HalvedData(Fetched()), ckpt_path=start)
        runs.append(seen)
    assert runs[0][2:] == runs[1]


def test_a_loader_of_its_own_kind_gives_its_halves_itself():
    class Own(LightningDataModule):
        def train_dataloader(self):
            data = TensorDataset(torch.rand(8, 1))
            return DataLoader(data, 2, sampler=WeightedRandomSampler(torch.ones(8), 8))

    class Endless(IterableDataset):
        def __iter__(self):
            raise NotImplementedError

    one, endless = DataLoader(TensorDataset(torch.rand(1, 1)), 2), DataLoader(Endless(), 2)
    for loader, says in (
        (one, "has 1 training samples: a search takes two"),
        (endless, "in its own way .*Infinite"),
        ([one], r"in its own way \(list\)"),
    ):
        own = LightningDataModule()
        own.train_dataloader = lambda loader=loader: loader
        with pytest.raises(ValueError, match=says):
            HalvedData(own).train_dataloader()
    with pytest.raises(ValueError, match="Own draws its training samples in its own way"):
        HalvedData(Own()).train_dataloader()
    Own.halves = lambda self, share, seed: {"weights": 1 - share, "logits": share + seed}
    assert HalvedData(Own(), 0.25, 7).train_dataloader() == {"weights": 0.75, "logits": 7.25}
    with pytest.raises(ValueError, match="between 0 and 1, not 1"):
        HalvedData(Own(), 1)


CONFIG = """
model:
  class_path: vizoo.nas.differentiable.DifferentiableSearch
  init_args:
    task:
      class_path: toy_mixture.Fit
      init_args: {lr: 0.02}
    sampler:
      class_path: vizoo.nas.differentiable.GumbelSoftmax
      init_args: {hard: true}
    temperature:
      class_path: vizoo.nas.differentiable.Linear
      init_args: {start: 5, end: 0.5}
    cost:
      class_path: vizoo.nas.differentiable.Cost
      init_args: {target: 200, quantity: parameters}
    logits_lr: 0.01
data:
  class_path: vizoo.nas.differentiable.HalvedData
  init_args:
    data: {class_path: toy_mixture.Filtered}
trainer:
  max_epochs: 4
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_and_resumed_it_ends_the_same(tmp_path):
    done = fit_forked(tmp_path / "whole", CONFIG)
    assert done.returncode == 0, done.stderr
    killed = tmp_path / "killed"
    assert fit_forked(killed, CONFIG, KILL_AT="201").returncode == -signal.SIGKILL
    done = fit_forked(killed, CONFIG, "--ckpt_path", "checkpoints/last.ckpt")
    assert done.returncode == 0, done.stderr

    def end(folder):
        return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)

    whole, parts = end(tmp_path / "whole"), end(killed)
    assert whole["global_step"] == parts["global_step"] == 8
    assert whole["search"]["steps"] == parts["search"]["steps"] == 8
    assert "logits.blocks/0/kind" in whole["state_dict"]
    for key, value in whole["state_dict"].items():
        assert torch.equal(value, parts["state_dict"][key]), key
    for one, other in zip(whole["optimizer_states"], parts["optimizer_states"], strict=True):
        for number, moments in one["state"].items():
            for name, value in moments.items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value, other["state"][number][name])
    files = [folder / "architecture.json" for folder in (tmp_path / "whole", killed)]
    assert Architecture.load(files[0]) == Architecture.load(files[1])


def test_the_result_goes_through_the_subnet_command(tmp_path, monkeypatch, capsys):
    toy_supernet.register(monkeypatch)
    monkeypatch.setattr("vizoo.vision.subnets.bench._SECONDS", 0.0)
    monkeypatch.setattr("vizoo.vision.subnets.bench._REPETITIONS", 3)
    monkeypatch.chdir(tmp_path)
    config = {
        "model": {
            "class_path": "vizoo.nas.differentiable.DifferentiableSearch",
            "init_args": {
                "task": {"class_path": "toy_supernet.ToyTask"},
                "sampler": {"class_path": "vizoo.nas.differentiable.Reinforce"},
            },
        },
        "data": {
            "class_path": "vizoo.nas.differentiable.HalvedData",
            "init_args": {"data": {"class_path": "toy_supernet.ToyData"}},
        },
        "trainer": {"max_epochs": 1, "accelerator": "cpu", "logger": False},
    }
    Path("search.yaml").write_text(json.dumps(config))
    assert main(["fit", "--config", "search.yaml"]) == 0
    capsys.readouterr()
    words = ["--supernet", "checkpoints/last.ckpt", "--architecture", "architecture.json"]
    words += ["--input", "16x24", "--out", "small.safetensors", "--json"]
    assert main(["subnet", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"] == Architecture.load("architecture.json").to_json()
    assert load_weights("small.safetensors").architecture["subnet"] == report["architecture"]


@pytest.mark.usefixtures("distributed_ends")
def test_a_strategy_that_wants_all_parameters_used_is_refused(tmp_path):
    trainer = _trainer(tmp_path, strategy="ddp", devices=1)
    with pytest.raises(ValueError, match="strategy to ddp_find_unused_parameters_true") as error:
        trainer.fit(DifferentiableSearch(Fit()), HalvedData(Filtered()))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("distributed_ends")
def test_gradients_travel_once_a_step(tmp_path):
    """Of logits and of weights, however many batches they are gathered from."""

    class Counting(AllReduce):
        messages = 0

        def reduce(self, bucket):
            self.messages += bucket.index() == 0
            return super().reduce(bucket)

    hook = Counting()
    strategy = HookDDPStrategy(hook, process_group_backend="gloo")
    settings = {"strategy": strategy, "devices": 1, "accumulate_grad_batches": 2, "max_epochs": 1}
    search = DifferentiableSearch(Fit(), only={"*.kind": ["small", "large"]})
    _trainer(tmp_path, **settings).fit(search, HalvedData(Filtered(64, batch_size=8)))
    assert search.steps == 2 and hook.messages == 4


def test_two_processes_end_alike_and_as_one(tmp_path):
    """Each takes half of every batch, and their gradients are averaged."""
    one, other = run_ranks(2, differentiable_search, str(tmp_path))
    assert one == other
    torch.manual_seed(0)
    search = DifferentiableSearch(Fit(), only={"*.kind": ["small", "large"]})
    settings = {"max_epochs": 2, "accumulate_grad_batches": 2}
    _trainer(tmp_path, **settings).fit(search, HalvedData(Filtered(64, batch_size=8)))
    for name, value in search.state_dict().items():
        torch.testing.assert_close(torch.tensor(one[name]), value, rtol=1e-4, atol=1e-5)


def test_gradients_travel_where_the_last_path_has_no_weights(tmp_path):
    one, other = run_ranks(2, search_of_noise, str(tmp_path))
    assert one == other


def test_gathered_gradients_travel_with_their_own_pass(tmp_path):
    """A compressor keeps what it leaves out of them, so that they must not pass it twice."""
    one, other = run_ranks(2, search_by_hook, str(tmp_path))
    assert one == other == [["logi"], ["task"]] * 2


def test_extracted_without_the_supernets_weights():
    net = Fit().net
    largest = search_space(net).largest()
    kept, fresh = extract(net, largest), extract(net, largest, inherit=False)
    assert [p.shape for p in kept.parameters()] == [p.shape for p in fresh.parameters()]
    pairs = zip(kept.parameters(), fresh.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)
    net.head.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ValueError, match="Sequential has parameters and no method reset_paramet"):
        extract(net, largest, inherit=False)
