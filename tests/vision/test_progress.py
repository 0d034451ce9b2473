"""What a run tells of itself: lines where there is no terminal, epochs from one, a table first."""

import re

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from terminal import run_code_in_terminal
from torch.utils.data import DataLoader, IterableDataset

from vizoo.vision import progress
from vizoo.vision.progress import EpochProgressBar, ParameterTable, ProgressLines


class Task(LightningModule):
    """Counts the batches; the first layer is frozen."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Linear(3, 1))
        self.net[0].requires_grad_(False)

    def training_step(self, batch, index):
        self.log("loss", float(index), prog_bar=True)
        return self.net(batch).mean()

    def validation_step(self, batch, index, dataloader_idx=0):
        self.log("val", float(index))

    test_step = validation_step

    def predict_step(self, batch, index):
        return batch

    def configure_optimizers(self):
        return torch.optim.SGD(self.net[1].parameters(), 0.1)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(1)


@pytest.fixture
def said(monkeypatch):
    """The lines, by a clock that every look moves on by ten seconds."""
    lines, looks = [], iter(range(0, 10**6, 10))
    monkeypatch.setattr(progress, "rank_zero_info", lines.append)
    monkeypatch.setattr(progress, "perf_counter", lambda: next(looks))
    return lines


def trainer(*callbacks, **options):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary"), False)
    options = {"max_epochs": 2, "accelerator": "cpu", "num_sanity_val_steps": 0, **options}
    return Trainer(callbacks=list(callbacks), **quiet, **options)


def batches(count=3):
    return DataLoader(torch.ones(count, 1))


def test_lines_of_a_fit(said):
    trainer(ProgressLines(interval=0)).fit(Task(), batches(), batches(2))
    assert said[:6] == [
        "epoch 1/2, batch 1/3: loss 0",
        "epoch 1/2, batch 2/3: loss 1, 10 s/batch, 0:00:10 to go",
        "epoch 1/2, batch 3/3: loss 2, 10 s/batch, 0:00:00 to go",
        "validation, batch 1/2",
        "validation, batch 2/2: 10 s/batch, 0:00:00 to go",
        "epoch 1/2, step 3: loss 2, 60 s",
    ]
    assert len(said) == 12 and said[6] == "epoch 2/2, batch 1/3: loss 0"


def test_a_line_every_half_minute(said):
    trainer(ProgressLines()).fit(Task(), batches(9))
    numbers = [re.findall(r"batch (\d)", line) for line in said]
    assert numbers == [["2"], ["5"], ["8"], [], ["3"], ["6"], ["9"], []]


def test_lines_of_other_loops(said):
    runs = trainer(ProgressLines(interval=0))
    runs.validate(Task(), batches(2), verbose=False)
    runs.test(Task(), [batches(1), batches(1)], verbose=False)
    runs.predict(Task(), batches(1))
    assert [line.partition(":")[0] for line in said] == [
        "validation, batch 1/2",
        "validation, batch 2/2",
        "test 1/2, batch 1/1",
        "test 2/2, batch 1/1",
        "prediction, batch 1/1",
    ]
    trainer(ProgressLines(interval=0), num_sanity_val_steps=1, max_epochs=1).fit(
        Task(), batches(1), batches(1)
    )
    assert said[5] == "sanity check, batch 1/1"


def test_fast_and_endless(said, monkeypatch):
    looks = iter(range(10**6))
    monkeypatch.setattr(progress, "perf_counter", lambda: next(looks) / 64)
    trainer(ProgressLines(interval=0), max_epochs=-1, max_steps=2).fit(
        Task(), DataLoader(Endless())
    )
    assert said[:2] == ["epoch 1, batch 1: loss 0", "epoch 1, batch 2: loss 1, 64 batches/s"]


def test_no_lines_where_the_bar_is_off(said):
    trainer(ProgressLines(interval=0), enable_progress_bar=False).fit(Task(), batches())
    assert said == []


def test_the_table_has_no_flops(capsys):
    ParameterTable().on_fit_start(trainer(), Task())
    text = capsys.readouterr().out
    assert "Sequential" in text and "10 params, 6 frozen, 0.0 MB" in text
    assert "flops" not in text.lower()


def test_the_bar_of_a_pipe_is_off():
    bar = EpochProgressBar()
    trainer(bar).fit(Task(), batches())
    assert bar.is_disabled and bar.progress is None


def test_epochs_count_from_one():
    code = f"""
import sys
sys.path.append({__file__.rpartition("/")[0]!r})
from test_progress import Task, batches, trainer
from vizoo.vision.progress import EpochProgressBar, ProgressLines
for last in (2, -1):
    print("last", last)
    trainer(EpochProgressBar(), ProgressLines(0), max_epochs=last, max_steps=6).fit(
        Task(), batches()
    )
"""
    done, text = run_code_in_terminal(code)
    assert done == 0, text
    known, unknown = (
        set(re.findall(r"[Ee]poch ([-\d/]+)", part)) for part in text.split("last -1")
    )
    assert known == {"1/2", "2/2"} and unknown == {"1", "2"}
    assert "batch 1" not in text


def test_an_epoch_without_a_validation_shows_none_of_an_earlier_one(said):
    class Measured(Task):
        def validation_step(self, batch, index):
            self.log("val", float(self.current_epoch), prog_bar=True)
            self.log("loss", 1.0, prog_bar=True)  # which training shows, too

    every = {"max_epochs": 4, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 1}
    trainer(ProgressLines(1000), **every).fit(Measured(), batches(), batches())
    shown = [re.findall(r"(\w+) \S+, ", line.partition(": ")[2]) for line in said]
    assert shown == [["loss"], ["loss", "val"]] * 2
