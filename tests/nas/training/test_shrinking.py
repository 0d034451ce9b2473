"""Progressive shrinking: stages of one fit, named, resumable."""

from __future__ import annotations

import copy
import os
import re
import signal

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from torch.nn import functional as F
from toy_regression import Data, Regression
from trainers import fit_forked, quiet_trainer

from vizoo.nas import elastic
from vizoo.nas.conversion.importance import taylor_scores
from vizoo.nas.distributed import ACPSGD, HookDDPStrategy
from vizoo.nas.sorting import sort_channels
from vizoo.nas.space import Choice, SearchSpace
from vizoo.nas.supernet import search_space
from vizoo.nas.training import ProgressiveShrinking, SandwichSampler, Stage, UniformSampler

STAGES = [
    Stage("large", 2),
    Stage("kernel", 1, ["*.kernel"], lr=0.02),
    Stage("width", 2, ["*.width"], lr=0.02, sampler=UniformSampler(2), sort_channels=True),
    Stage("depth", 1, ["depth"], lr=0.01, sampler=SandwichSampler(1)),
]


class Diary(Callback):
    """Notes what each step finds."""

    def __init__(self):
        self.rates, self.moments, self.open = [], [], []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.open.append({c.name for c in pl_module.space if len(c.values) > 1})

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.moments.append(len(optimizer.state) > 0)


def _fit(folder, task=None, data=None, *, stages=STAGES, callbacks=(), resume=None, **settings):
    settings = {"max_epochs": -1, "callbacks": list(callbacks), **settings}
    trainer = quiet_trainer(folder, **settings)
    wrapped = ProgressiveShrinking(task or Regression(), stages)
    trainer.fit(wrapped, data or Data(), ckpt_path=resume)
    return trainer, wrapped


def test_stages_follow_each_other(tmp_path):
    diary = Diary()
    trainer, wrapped = _fit(tmp_path, callbacks=[diary], limit_val_batches=0)
    assert trainer.current_epoch == 6 and trainer.global_step == 24
    kernels, widths = ({f"blocks.{i}.{what}" for i in (0, 1)} for what in ("kernel", "width"))
    opened = [set(), kernels, kernels | widths, kernels | widths | {"depth"}]
    lengths = [8, 4, 8, 4]
    assert diary.open == [s for s, n in zip(opened, lengths, strict=True) for _ in range(n)]
    # The optimiser forgets at the start of each stage.
    forgotten = [step for step, moments in enumerate(diary.moments) if not moments]
    assert forgotten == [0, 8, 12, 20]
    # The rate noted after a step is the next one's: each stage ends where the next one starts.
    assert [diary.rates[step - 1] for step in forgotten[1:]] == pytest.approx([0.02, 0.02, 0.01])
    assert diary.rates[3] == pytest.approx(0.05 / 2) and diary.rates[-1] == pytest.approx(0)
    written = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    names = {"stage1_large.ckpt", "stage2_kernel.ckpt", "stage3_width.ckpt", "stage4_depth.ckpt"}
    assert names <= written
    # Searches keep to the part of the space that has been trained, if there is more to it.
    parts = {
        name: torch.load(tmp_path / "checkpoints" / name, weights_only=True).get("subspace")
        for name in sorted(names)
    }
    trained = [
        {c.name for c in SearchSpace.from_json(part) if len(c.values) > 1}
        for part in (parts["stage2_kernel.ckpt"], parts["stage3_width.ckpt"])
    ]
    assert trained == [kernels, kernels | widths]
    assert parts["stage1_large.ckpt"] is None and parts["stage4_depth.ckpt"] is None
    wrapped.task.net.subspace = parts["stage2_kernel.ckpt"]  # of weights to start from
    ProgressiveShrinking(wrapped.task, STAGES)
    assert not hasattr(wrapped.task.net, "subspace")  # from now on all of it is trained
    assert {*wrapped.spaces[-1].names} == {*search_space(wrapped.task.net).names}


def test_layers_keep_their_shares_of_a_stages_rate(tmp_path):
    class Decayed(Regression):
        def configure_optimizers(self):
            first, second = (block.parameters() for block in self.net.blocks)
            return torch.optim.SGD([{"params": first, "lr": 0.01}, {"params": second, "lr": 0.05}])

    class Rates(Callback):
        def on_train_batch_start(self, trainer, *_):
            rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    rates = []
    stages = [Stage("large", 1), Stage("kernel", 1, ["*.kernel"], lr=0.02)]
    _fit(tmp_path, Decayed(), stages=stages, callbacks=[Rates()], limit_val_batches=0)
    assert rates[0] == pytest.approx([0.01, 0.05]) and rates[4] == pytest.approx([0.004, 0.02])


def test_warm_up():
    stage = Stage("a", 5, warmup_epochs=2, warmup_start=0.5)
    rates = [stage.rate(epoch) for epoch in (0, 1, 2, 3.5, 5)]
    assert rates == pytest.approx([0.5, 0.75, 1, 0.5, 0])
    assert Stage("a", 5, warmup_epochs=2, warmup_start=1).rate(1) == 1


def test_part_of_a_choice_for_one_stage():
    stages = [Stage("a", 1, ["*.width"], {"*.width": [4, 8]}), Stage("b", 1)]
    first, second = ProgressiveShrinking(Regression(), stages).spaces
    assert first.choices["blocks.0.width"].values == (4, 8)
    assert second.choices["blocks.0.width"].values == (2, 4, 8)
    assert first.choices["depth"].values == second.choices["depth"].values == (2,)


def test_sorting_keeps_the_largest_network(tmp_path):
    task = Regression(lr=1e-12)
    kept = tmp_path / "checkpoints" / "stage1_large.ckpt"
    stages = [Stage("large", 1), Stage("width", 1, ["*.width"], sort_channels=True)]
    _, wrapped = _fit(tmp_path, task, stages=stages, limit_val_batches=0)
    before = torch.load(kept, weights_only=True)["state_dict"]
    weight = task.net.blocks[0].project.weight
    importance = weight.abs().sum((0, 2, 3))
    old = before["task.net.blocks.0.project.weight"]
    assert not torch.allclose(old, weight)
    assert importance.tolist() == sorted(importance.tolist(), reverse=True)
    torch.testing.assert_close(importance.sum(), old.abs().sum())


def test_sorting_by_the_loss_of_training_batches(tmp_path):
    task, before = Regression(lr=1e-12), Regression()
    stages = [Stage("large", 1), Stage("width", 1, ["*.width"], sort_channels="taylor")]
    _fit(tmp_path, task, stages=stages, limit_val_batches=0)
    kept = torch.load(tmp_path / "checkpoints" / "stage1_large.ckpt", weights_only=True)
    weights = kept["state_dict"].items()
    before.net.load_state_dict({name.removeprefix("task.net."): value for name, value in weights})
    scores = taylor_scores(
        before.net.eval(),
        Data().train_dataloader(),
        lambda net, batch: F.mse_loss(net(batch[0]), batch[1]),
    )
    magnitude = copy.deepcopy(before.net)
    sort_channels(magnitude)
    sort_channels(before.net, scores)
    for name, value in before.net.named_parameters():
        torch.testing.assert_close(task.net.get_parameter(name), value)
    assert not torch.equal(
        magnitude.blocks[0].expand.weight, before.net.blocks[0].expand.weight
    )  # which would be another order


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_the_largest_of_the_first_stage_teaches(tmp_path, precision):
    seen = []

    class Spy(Regression):
        def training_step(self, batch, batch_idx):
            loss = self.loss(self.outputs(batch), batch)
            self.log("train/loss", loss, on_epoch=True)  # otherwise than a step that distils
            return loss

        def distillation_loss(self, outputs, teacher_outputs, batch):
            seen.append((self.global_step, teacher_outputs))
            loss = super().distillation_loss(outputs, teacher_outputs, batch)
            return loss * torch.rand(())  # as dropout draws

    def fit(folder, epochs, resume=None):
        torch.manual_seed(0)
        settings = {"limit_val_batches": 0, "precision": precision}
        trainer = quiet_trainer(folder, max_epochs=epochs, **settings)
        wrapped = ProgressiveShrinking(Spy(), STAGES[:3], distillation="largest")
        trainer.fit(wrapped, Data(), ckpt_path=resume)
        trainer.save_checkpoint(folder / "end.ckpt")
        return torch.load(folder / "end.ckpt", weights_only=True)["state_dict"]

    whole = fit(tmp_path / "whole", 5)
    assert [step for step, _ in seen] == [*range(8, 12)] + [
        s for s in range(12, 20) for _ in (0, 1)
    ]
    assert torch.equal(seen[0][1], seen[4][1])  # the same batch, taught alike later
    fit(tmp_path / "parts", 3)
    again = fit(tmp_path / "parts", 5, tmp_path / "parts" / "end.ckpt")
    assert all(torch.equal(whole[name], value) for name, value in again.items())


@pytest.mark.usefixtures("distributed_ends")
def test_what_compressors_left_out_of_other_channels_is_dropped(tmp_path):
    kept = []

    class Noting(ACPSGD):
        def begin_anew(self):
            kept.append((len(self.residuals), len(self.factors)))
            super().begin_anew()
            kept.append((len(self.residuals), len(self.factors)))

    hook = Noting(1, start_step=0)
    strategy = HookDDPStrategy(hook, process_group_backend="gloo")
    trainer = quiet_trainer(tmp_path, max_epochs=-1, strategy=strategy, devices=1)
    stages = [Stage("all", 1), Stage("open", 1, ["*"], sort_channels=True)]
    trainer.fit(ProgressiveShrinking(Regression(), stages), Data())
    before, after = kept
    assert min(before) > 0 and after == (0, 0) and hook.residuals


def test_weights_are_not_averaged_where_their_channels_change_places(tmp_path):
    trainer = {"max_epochs": -1, "callbacks": [EMAWeightAveraging()]}
    stages = [Stage("all", 1, sort_channels=True), Stage("open", 1, ["*"])]
    quiet_trainer(tmp_path, **trainer).fit(ProgressiveShrinking(Regression(), stages), Data())
    stages[1] = Stage("open", 1, ["*"], sort_channels=True)
    message = "EMAWeightAveraging averages channels that a later stage sorts anew: take it out of"
    with pytest.raises(ValueError, match=message):
        quiet_trainer(tmp_path, **trainer).fit(ProgressiveShrinking(Regression(), stages), Data())


def test_fewer_epochs_and_a_trial_run(tmp_path):
    trainer, wrapped = _fit(tmp_path, max_epochs=3, limit_val_batches=0)
    assert trainer.current_epoch == 3 and wrapped.stage == 1
    trainer, _ = _fit(tmp_path / "trial", fast_dev_run=True)
    assert trainer.global_step == 1 and not (tmp_path / "trial" / "checkpoints").exists()
    _fit(tmp_path / "none", enable_checkpointing=False, max_epochs=2)
    assert not (tmp_path / "none" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "needs stages of different names"),
        (
            [{"name": "a", "epochs": 1}],
            r"^stage \{'name': 'a', 'epochs': 1\}: give a vizoo.nas.tra",
        ),
        ([Stage("a", 1), Stage("a", 1)], r"different names, not \['a', 'a'\]"),
        ([Stage("a", 1, ["*.widht"])], r"stage 'a' opens '\*.widht', but no choice is called so"),
        ([Stage("a", 1, [], {"depth": [3]})], "stage 'a': 'depth' cannot be 3"),
    ],
)
def test_stages_that_do_not_fit(stages, message):
    with pytest.raises(ValueError, match=message):
        ProgressiveShrinking(Regression(), stages)


def test_a_choice_whose_name_reads_as_a_pattern():
    task = Regression()
    task.net = torch.nn.Sequential(elastic.Conv2d(3, Choice("width[0]", (2, 4)), 1))
    assert ProgressiveShrinking(task, [Stage("a", 1, ["width[0]"])]).space.count() == 2


def test_numbers_that_do_not_fit():
    with pytest.raises(ValueError, match="stage 'a': 0 epochs"):
        Stage("a", 0)
    with pytest.raises(ValueError, match="stage 'a': 2 epochs with 2 of warm-up"):
        Stage("a", 2, warmup_epochs=2)
    with pytest.raises(ValueError, match="lr -1 has to be positive"):
        Stage("a", 2, lr=-1)
    with pytest.raises(ValueError, match="'a': sort_channels 'tailor': choose true, false, mag"):
        Stage("a", 2, sort_channels="tailor")
    with pytest.raises(ValueError, match="^stage 'a': epochs must be of type int, not '1'$"):
        Stage("a", "1")


CONFIG = """
model:
  class_path: vizoo.nas.training.ProgressiveShrinking
  init_args:
    task:
      class_path: toy_regression.Regression
      init_args: {lr: 0.02}
    stages:
      - {name: large, epochs: 2}
      - {name: kernel, epochs: 2, opens: ["*.kernel"], lr: 0.01}
      - name: width
        epochs: 2
        opens: ["*.width"]
        sort_channels: taylor
        sampler: {class_path: vizoo.nas.training.UniformSampler, init_args: {count: 3}}
      - {name: depth, epochs: 1, opens: [depth]}
data:
  class_path: toy_regression.Data
trainer:
  max_epochs: -1
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
"""


def _command(folder, *words, **environment):
    """`vizoo fit` as a process; its exit code and the stages that it named."""
    done = fit_forked(folder, CONFIG, *words, **environment)
    return done.returncode, re.findall(
        r"^(?:resuming in )?stage (\d) of 4, (\w+)", done.stderr, re.M
    )


def test_a_mistyped_word_is_told_in_one_line(tmp_path):
    done = fit_forked(tmp_path, CONFIG.replace("taylor", "tailor"))
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("vizoo: error: "))
    assert done.returncode == 2
    assert line.endswith("\"sort_channels\": expected bool or one of 'magnitude', 'taylor'")


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_and_resumed_it_ends_the_same(tmp_path):
    stages = [("1", "large"), ("2", "kernel"), ("3", "width"), ("4", "depth")]
    code, named = _command(tmp_path / "whole")
    assert code == 0 and named == stages
    killed = tmp_path / "killed"
    # In the middle of a stage's first epoch, whose channels have been sorted; then once more.
    code, named = _command(killed, KILL_AT="17")
    assert code == -signal.SIGKILL and named == stages[:3]
    resume = ["--ckpt_path", "checkpoints/last.ckpt"]
    code, named = _command(killed, *resume, KILL_AT="22")
    assert code == -signal.SIGKILL and named == stages[1:3]
    code, named = _command(killed, *resume)
    assert code == 0 and named == stages[2:]

    def end(folder, name):
        return torch.load(folder / "checkpoints" / name, weights_only=True)

    for name in ("last.ckpt", *(f"stage{number}_{name}.ckpt" for number, name in stages)):
        whole, parts = end(tmp_path / "whole", name), end(killed, name)
        assert whole["global_step"] == parts["global_step"]
        for key, value in whole["state_dict"].items():
            assert torch.equal(value, parts["state_dict"][key]), (name, key)
