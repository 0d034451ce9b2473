"""The wrapper that trains any task's network as a supernet."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn
from torchmetrics import MeanMetric
from toy_regression import Data, Net, Regression
from trainers import quiet_trainer

from vizoo.__main__ import main
from vizoo.nas.distributed import HookDDPStrategy
from vizoo.nas.recalibration import recalibrate
from vizoo.nas.supernet import activate, active, extract, search_space
from vizoo.nas.training import LargestSampler, SandwichSampler, SupernetTask, UniformSampler
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.weights import save_weights


def _trainer(folder, **arguments):
    settings = {"max_epochs": 1, "enable_checkpointing": False, **arguments}
    return quiet_trainer(folder, **settings)


def _weights(task):
    return torch.cat([p.detach().flatten() for p in task.net.parameters()])


def _by_hand(task, sampler, batches, *, accumulate=1, clip=None):
    """The training that the wrapper has to amount to."""
    net, space = task.net, search_space(task.net)
    optimizer = torch.optim.SGD(net.parameters(), lr=task.hparams.lr, momentum=0.9)
    for step in range(len(batches) // accumulate):
        optimizer.zero_grad()
        for batch in batches[step * accumulate : (step + 1) * accumulate]:
            subnets = sampler.subnets(space, step)
            for architecture in subnets:
                activate(net, architecture)
                loss = nn.functional.mse_loss(net(batch[0]), batch[1])
                (loss / len(subnets) / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, None), (1, 0.01), (2, 0.01)])
def test_a_step_averages_the_gradients_of_its_subnets(tmp_path, accumulate, clip):
    task, data, sampler = Regression(), Data(), SandwichSampler(2)
    twin = copy.deepcopy(task)
    settings = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    trainer = _trainer(tmp_path, limit_val_batches=0, **settings)
    trainer.fit(SupernetTask(task, sampler), data)
    assert trainer.global_step == 4 // accumulate
    _by_hand(twin.train(), sampler, list(data.train_dataloader()), accumulate=accumulate, clip=clip)
    torch.testing.assert_close(_weights(task), _weights(twin), rtol=1e-5, atol=1e-6)


def test_trained_on_the_largest_alone_it_is_the_task(tmp_path):
    """The task's own training by Lightning, gives the same."""
    task = Regression(schedule="step")
    plain = copy.deepcopy(task)
    settings = {"max_epochs": 3, "limit_val_batches": 0, "accumulate_grad_batches": 3}
    _trainer(tmp_path, **settings).fit(SupernetTask(task, LargestSampler()), Data())
    _trainer(tmp_path, **settings).fit(plain, Data())
    assert torch.equal(_weights(task), _weights(plain))


@pytest.mark.parametrize(("schedule", "halvings"), [("step", 8), ("epoch", 2), ("none", 0)])
def test_schedules_step_as_the_task_says(tmp_path, schedule, halvings):
    task = SupernetTask(Regression(lr=1.0, schedule=schedule))
    trainer = _trainer(tmp_path, max_epochs=2, limit_val_batches=0)
    trainer.fit(task, Data())
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.5**halvings


def test_bfloat16_trains(tmp_path):
    task = Regression()
    before = _weights(task)
    trainer = _trainer(tmp_path, precision="bf16-mixed")
    trainer.fit(SupernetTask(task), Data())
    assert _weights(task).isfinite().all() and not torch.equal(before, _weights(task))


def test_watched_subnets_are_recalibrated_on_training_batches_and_logged(tmp_path):
    task, data = Regression(), Data()
    watched = {
        "largest": "largest",
        "mine": {"*.width": [4], "depth": [1]},
        "small": "smallest",
        "again": "largest",
    }
    trainer = _trainer(tmp_path, max_epochs=2)
    trainer.fit(SupernetTask(task, watched=watched, recalibration_batches=2), data)
    found = trainer.callback_metrics
    assert found["val/again/error"] == found["val/largest/error"]
    space = search_space(task.net)
    named = {
        "largest": space.largest(),
        "mine": space.restrict(watched["mine"]).largest(),
        "small": space.smallest(),
    }
    assert named["mine"]["blocks.0.width"] == 4 and named["mine"]["blocks.0.kernel"] == 3
    batches = [(x,) for x, _ in list(data.train_dataloader())[:2]]
    for name, architecture in named.items():
        net = extract(task.net, architecture)
        recalibrate(net, batches)
        x, y = data.val.tensors
        with torch.no_grad():
            error = nn.functional.mse_loss(net.eval()(x), y)
        assert found[f"val/{name}/error"].item() == pytest.approx(error.item(), rel=1e-5), name
    assert "val/error" not in found
    assert active(task.net) == space.largest()
    largest = extract(task.net, space.largest())
    recalibrate(largest, batches)
    with torch.no_grad():  # the supernet alone is its largest subnet, statistics and all
        torch.testing.assert_close(task.net.eval()(x), largest.eval()(x))


def test_metrics_are_logged_as_objects_too(tmp_path):
    class Objects(Regression):
        def __init__(self):
            super().__init__()
            self.train_error = MeanMetric()

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.train_error(loss.detach())
            self.log("train/error", self.train_error)
            return loss

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("val/error", self.val_error)

        def on_validation_epoch_end(self):
            """Lightning computes and resets it."""

    found = []
    for task in (Objects, Regression):
        torch.manual_seed(0)
        trainer = _trainer(tmp_path, max_epochs=2)
        trainer.fit(SupernetTask(task(), UniformSampler(2)), Data())
        found.append(trainer.callback_metrics)
    assert found[0]["train/error"] > 0
    for name in ("val/largest/error", "val/smallest/error"):
        torch.testing.assert_close(found[0][name], found[1][name])


def test_recalibration_does_not_touch_training(tmp_path):
    """In the middle of an epoch, whose loader keeps its workers; random numbers go on as well."""
    results = []
    for batches in (0, 3):
        torch.manual_seed(0)
        task, data = Regression(), Data(workers=1)
        wrapped = SupernetTask(task, recalibration_batches=batches)
        _trainer(tmp_path, max_epochs=2, val_check_interval=2).fit(wrapped, data)
        results.append((_weights(task), torch.rand(1)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_bar_counts_the_batches_of_recalibration(tmp_path, monkeypatch):
    bar, task, shown = RichProgressBar(), Regression(), []
    outputs = task.outputs

    def seen(batch):
        bars = {bar_.description: bar_ for bar_ in bar.progress.tasks}
        if (counted := bars.get("Batch statistics")) is not None:
            shown.append((counted.completed, counted.total))
        return outputs(batch)

    monkeypatch.setattr(task, "outputs", seen)
    settings = {"callbacks": [bar], "enable_progress_bar": True, "num_sanity_val_steps": 0}
    _trainer(tmp_path, **settings).fit(SupernetTask(task, recalibration_batches=2), Data())
    assert shown[0] == (0, 2) and shown[-1] == (1, 2) and {*shown} == {(0, 2), (1, 2)}
    assert "Batch statistics" not in {bar_.description for bar_ in bar.progress.tasks}


def test_predicts_by_the_first_watched_subnet(tmp_path):
    task, data = Regression(), Data()
    wrapped = SupernetTask(task, watched={"small": "smallest", "largest": "largest"})
    predictions = _trainer(tmp_path).predict(wrapped, data)
    net = extract(task.net, search_space(task.net).smallest())
    recalibrate(net, [(x,) for x, _ in data.train_dataloader()])
    with torch.no_grad():
        expected = net.eval()(data.val.tensors[0])
    torch.testing.assert_close(torch.cat(predictions), expected)


def test_without_training_data_it_says_so(tmp_path):
    task, data = SupernetTask(Regression()), Data()
    with pytest.raises(ValueError, match="no training data to recalibrate"):
        _trainer(tmp_path).validate(task, data.val_dataloader(), verbose=False)
    task = SupernetTask(Regression(), recalibration_batches=0)
    found = _trainer(tmp_path).validate(task, data.val_dataloader(), verbose=False)
    assert set(found[0]) == {"val/largest/error", "val/smallest/error"}


def test_hooks_of_the_task_are_called(tmp_path):
    class Hooked(Regression):
        calls = ()

        def on_train_start(self):
            self.calls += ("train_start",)

        def on_train_batch_start(self, batch, batch_idx):
            self.calls += (batch_idx,)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] * 0, batch[1] * 0]

    task = Hooked()
    _trainer(tmp_path, limit_val_batches=0).fit(SupernetTask(task), Data())
    assert task.calls == ("train_start", 0, 1, 2, 3)
    assert task.trainer.callback_metrics["train/loss"] < 1


def test_in_place_the_others_learn_from_the_largest_alone(tmp_path):
    """With truth that is not a number for all but the largest's loss, only it could spoil them."""
    losses = []

    class Spy(Regression):
        def loss(self, outputs, batch):
            losses.append(active(self.net))
            return super().loss(outputs, batch)

        def distillation_loss(self, outputs, teacher_outputs, batch):
            assert not teacher_outputs.requires_grad and outputs.requires_grad
            losses.append("distance")
            return super().distillation_loss(outputs, teacher_outputs, batch)

    task = Spy()
    wrapped = SupernetTask(task, SandwichSampler(1), distillation="in_place")
    trainer = _trainer(tmp_path, limit_val_batches=0, limit_train_batches=2)
    trainer.fit(wrapped, Data())
    assert losses == [search_space(task.net).largest(), "distance", "distance"] * 2
    assert set(trainer.callback_metrics) == {"train/loss", "train/distillation"}


def test_in_place_needs_the_largest_first(tmp_path):
    wrapped = SupernetTask(Regression(), UniformSampler(2), distillation="in_place")
    with pytest.raises(ValueError, match=r"first subnet is the largest.*UniformSampler"):
        _trainer(tmp_path, limit_val_batches=0).fit(wrapped, Data())


def test_a_teacher_is_followed_and_stays_as_it_is(tmp_path):
    torch.manual_seed(1)
    teacher = Net()
    state = copy.deepcopy(teacher.state_dict())
    task = Regression()
    settings = {"distillation": "teacher", "teacher": teacher, "distillation_weight": 1e4}
    wrapped = SupernetTask(task, LargestSampler(), **settings)
    assert not any("teacher" in name for name, _ in wrapped.named_parameters())
    data = Data()

    def distance():
        x = data.train.tensors[0]
        with torch.no_grad():
            return nn.functional.mse_loss(task.net.eval()(x), teacher.eval()(x)).item()

    before = distance()
    task.hparams.lr = 1e-6
    _trainer(tmp_path, max_epochs=10, limit_val_batches=0).fit(wrapped, data)
    assert distance() < 0.8 * before
    assert all(torch.equal(state[name], value) for name, value in teacher.state_dict().items())


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_teacher_computes_in_the_precision_of_training(tmp_path, precision):
    settings = {"distillation": "teacher", "teacher": Net()}
    trainer = _trainer(tmp_path, precision=precision, limit_val_batches=0, limit_train_batches=2)
    trainer.fit(SupernetTask(Regression(), **settings), Data())
    assert trainer.callback_metrics["train/distillation"] > 0


def test_a_config_names_a_teacher_by_the_function_that_loads_it(tmp_path):
    save_weights(create_model("fadnet_plus_micro"), tmp_path / "teacher.safetensors")
    teacher = {
        "class_path": "vizoo.load_weights",
        "init_args": {"path": str(tmp_path / "teacher.safetensors")},
    }
    task = {
        "class_path": "vizoo.stereo.task.StereoTask",
        "init_args": {"model": "fadnet_plus_elastic"},
    }
    parser = LightningArgumentParser()
    parser.add_subclass_arguments(SupernetTask, "model")
    arguments = {"task": task, "teacher": teacher, "distillation": "teacher"}
    model = {"class_path": "vizoo.nas.training.SupernetTask", "init_args": arguments}
    made = parser.instantiate_classes(parser.parse_object({"model": model})).model
    assert made._teacher[0].architecture["name"] == "fadnet_plus_micro"


def test_arguments_of_log_are_kept_by_position(tmp_path):
    class Task(Regression):
        def training_step(self, batch, batch_idx):
            self.log("train/lucky", 1.0, True, False)
            return super().training_step(batch, batch_idx)

    wrapped, seen = SupernetTask(Task()), []
    log = wrapped.log
    wrapped.log = lambda *args, **arguments: (seen.append(args), log(*args, **arguments))
    _trainer(tmp_path, limit_val_batches=0, limit_train_batches=1).fit(wrapped, Data())
    assert ("train/lucky", 1.0, True, False) in seen


class _Plain(LightningModule):
    net = nn.Linear(1, 1)


class _Manual(Regression):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class _Shy(Regression):
    distillation_loss = None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SupernetTask(LightningModule()), "has no network `net`"),
        (lambda: SupernetTask(_Plain()), "nothing elastic"),
        (lambda: SupernetTask(_Manual()), "steps its optimiser itself"),
        (lambda: SupernetTask(_Shy(), distillation="in_place"), "no method distillation_loss"),
        (lambda: SupernetTask(Regression(), distillation="teacher"), "needs a teacher"),
        (lambda: SupernetTask(Regression(), watched={"a": "biggest"}), "'biggest' names no subnet"),
        (lambda: SupernetTask(Regression(), watched={"a": {"widht": [2]}}), "^watched 'a': no"),
        (lambda: SupernetTask(Regression(), recalibration_batches=-1), "batches -1: give 0 or mo"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_several_optimisers_are_refused(tmp_path):
    class Two(Regression):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer, optimizer]

    with pytest.raises(ValueError, match="configure_optimizers of Two has to return an optimizer"):
        _trainer(tmp_path).fit(SupernetTask(Two()), Data())


CONFIG = """
model:
  class_path: vizoo.nas.training.SupernetTask
  init_args:
    task:
      class_path: toy_regression.Regression
      init_args: {lr: 0.02}
    sampler:
      class_path: vizoo.nas.training.SandwichSampler
      init_args: {between: 1}
data:
  class_path: toy_regression.Data
trainer:
  max_epochs: 2
  accelerator: cpu
  logger: false
  gradient_clip_val: 1
  enable_progress_bar: false
  enable_model_summary: false
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "toy.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_config(folder, capsys):
    fit = ["fit", "--config", "toy.yaml"]
    assert main(fit) == 0
    checkpoint = torch.load("checkpoints/last.ckpt", weights_only=True)
    task = checkpoint["hyper_parameters"]["task"]
    assert task["init_args"]["lr"] == 0.02 and task["init_args"]["schedule"] == "none"
    assert "task.net.blocks.0.expand.weight" in checkpoint["state_dict"]
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == 0.02
    assert yaml.safe_load(open("config.yaml"))["model"]["init_args"]["sampler"]["init_args"] == {
        "between": 1,
        "seed": 0,
    }
    last = ["--ckpt_path", "checkpoints/last.ckpt"]
    assert main([*fit, "--trainer.max_epochs=3", *last]) == 0
    capsys.readouterr()
    assert main([*fit, "--model.task.lr=0.5", *last]) == 2
    assert "config: model.task.lr is 0.5 here and 0.02 there; make" in capsys.readouterr().err
    assert main([*fit, "--model.sampler.between=2", *last]) == 2
    assert "config: model.sampler.between is 2 here and 1 there; make" in capsys.readouterr().err
    assert main(["validate", *fit[1:], *last]) == 0
    assert "val/largest/error" in capsys.readouterr().out


def test_a_checkpoint_is_loaded_without_the_task_that_wrote_it(folder):
    assert main(["fit", "--config", "toy.yaml"]) == 0
    loaded = SupernetTask.load_from_checkpoint("checkpoints/last.ckpt")
    kept = torch.load("checkpoints/last.ckpt", weights_only=True)["random_state"]["torch"]
    assert not torch.equal(torch.get_rng_state(), kept)  # which only a fit goes on with
    assert isinstance(loaded.task, Regression) and loaded.task.hparams.lr == 0.02
    assert isinstance(loaded.sampler, SandwichSampler)


def test_resumed_it_ends_as_if_never_stopped(tmp_path):
    def run(folder, epochs, checkpoint=None):
        torch.manual_seed(0)
        task = Regression(schedule="step")
        task.net.register_forward_pre_hook(lambda net, images: images[0] * torch.rand(()))
        trainer = _trainer(folder, max_epochs=epochs, enable_checkpointing=True)
        trainer.fit(SupernetTask(task, UniformSampler(2)), Data(), ckpt_path=checkpoint)
        trainer.save_checkpoint(os.path.join(folder, "end.ckpt"))
        return _weights(task)

    whole = run(tmp_path / "a", 4)
    run(tmp_path / "b", 2)
    assert torch.equal(whole, run(tmp_path / "b", 4, tmp_path / "b" / "end.ckpt"))


@pytest.mark.usefixtures("distributed_ends")
def test_a_strategy_that_wants_all_parameters_used_is_refused(tmp_path):
    with pytest.raises(ValueError, match="strategy to ddp_find_unused_parameters_true$"):
        _trainer(tmp_path, strategy="ddp", devices=1).fit(SupernetTask(Regression()), Data())
    for strategy, sampler in (
        ("ddp", LargestSampler()),  # which uses all
        ("ddp_find_unused_parameters_true", UniformSampler()),
        (HookDDPStrategy("subnet", process_group_backend="gloo"), UniformSampler()),
    ):
        trainer = _trainer(tmp_path, strategy=strategy, devices=1, limit_val_batches=0)
        trainer.fit(SupernetTask(Regression(), sampler), Data())
        assert trainer.global_step == 4
