"""Few-shot training: levels of one fit, parts on disk, resumed and shared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from toy_regression import Data, Regression

from vizoo.nas.lid import FewShotTraining, Split, Splitter, SplitTree
from vizoo.nas.space import SearchSpace
from vizoo.nas.supernet import active

SPLITTER = Splitter(k=4, batches=2, batch_size=8)


def fit(where, *, epochs=(1, 1, 1), splitter=SPLITTER, resume=None, trainer=None, **settings):
    made = Trainer(
        default_root_dir=where,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **{"max_epochs": -1, **(trainer or {})},
    )
    torch.manual_seed(0)
    task = FewShotTraining(Regression(), list(epochs), splitter, **settings)
    made.fit(task, Data(), ckpt_path=resume)
    return made, task


def read(folder, name):
    return torch.load(folder / f"{name}.ckpt", weights_only=True)


@pytest.mark.parametrize("criterion", ["lid", "gradient", "random"])
def test_levels_follow_each_other(tmp_path, criterion):
    splitter = Splitter(criterion=criterion, k=4, batches=2, batch_size=8)
    trainer, task = fit(tmp_path, splitter=splitter)
    assert trainer.current_epoch == 1 + 2 + 4
    tree = SplitTree.load(tmp_path / "leaves/tree.json", task.full_space)
    assert tree.names == ("root", "0", "1", "00", "01", "10", "11")
    assert tree.leaves == ("00", "01", "10", "11")
    assert sum(tree.space_of(leaf).count() for leaf in tree.leaves) == task.full_space.count()
    for name in tree.names:
        mask = SearchSpace.from_json(read(tmp_path / "leaves", name)["subspace"])
        assert mask == tree.space_of(name)
    used = {tree.splits["root"].choice, tree.splits["0"].choice}
    assert len(used) == 2  # none is split twice on one path while others are left
    scores = tree.splits["root"].scores
    assert set(scores) == (
        set() if criterion == "random" else {"depth", "blocks.0.width", "blocks.0.kernel"}
    )
    assert active(task.task.net) == task.full_space.largest()


def test_parts_start_from_their_parent(tmp_path):
    """Weights that a part does not run stay as its parent left them, and its moments go on."""
    fit(tmp_path, epochs=(2, 1), tree=given(tmp_path, "depth", ((1,), (2,))))
    root, first, second = (read(tmp_path / "leaves", name) for name in ("root", "0", "1"))
    key = "task.net.blocks.1.project.bias"
    assert torch.equal(root["state_dict"][key], first["state_dict"][key])
    assert not torch.equal(root["state_dict"][key], second["state_dict"][key])
    rates = [c["optimizer_states"][0]["param_groups"][0]["lr"] for c in (root, first, second)]
    assert rates[1] < 0.05


def given(folder, choice, groups):
    tree = SplitTree(FewShotTraining(Regression(), [1]).full_space)
    tree.split("root", Split(choice, groups))
    return str(tree.save(folder / "given.json"))


def test_rates_fall_along_each_path(tmp_path):
    rates = []

    class Noting(FewShotTraining):
        def on_before_optimizer_step(self, optimizer):
            super().on_before_optimizer_step(optimizer)
            rates.append((self.node, optimizer.param_groups[0]["lr"]))

    trainer = Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        max_epochs=-1,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Noting(Regression(), [1, 1], SPLITTER, final_lr=0.2), Data())
    by_node = {node: [rate for name, rate in rates if name == node] for node in ("root", "0", "1")}
    assert by_node["0"] == by_node["1"]
    path = [*by_node["root"], *by_node["0"]]
    assert path[0] == 0.05 and path == sorted(path, reverse=True) and 0.01 < path[-1] < 0.015


def test_without_inheritance_parts_start_alike(tmp_path):
    seen = {}

    class Noting(FewShotTraining):
        def on_before_optimizer_step(self, optimizer):
            weights = self.task.net.blocks[0].norm.weight.detach().clone()
            seen.setdefault(self.node, weights)
            super().on_before_optimizer_step(optimizer)

    trainer = Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        max_epochs=-1,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Noting(Regression(), [1, 1], SPLITTER, inherit=False), Data())
    assert torch.equal(seen["root"], seen["0"]) and torch.equal(seen["root"], seen["1"])


def test_processes_share_the_nodes(tmp_path):
    """One after the other here: the second finds all its parents on disk."""
    folder = str(tmp_path / "shared")
    epochs = (1, 1)
    fit(tmp_path / "a", epochs=epochs, share=[0, 2], folder=folder)
    partial = SplitTree.load(tmp_path / "shared/tree.json")
    assert set(partial.checkpoints) == {"root", "0"}
    fit(tmp_path / "a", epochs=epochs, share=[0, 2], folder=folder)  # started anew, it goes on
    fit(tmp_path / "b", epochs=epochs, share=[1, 2], folder=folder)
    shared = SplitTree.load(tmp_path / "shared/tree.json")
    fit(tmp_path / "c", epochs=epochs)
    alone = SplitTree.load(tmp_path / "c/leaves/tree.json")
    assert shared.to_json() == alone.to_json()
    for name in ("root", "0"):
        for key, value in read(tmp_path / "c/leaves", name)["state_dict"].items():
            assert torch.equal(value, read(tmp_path / "shared", name)["state_dict"][key])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": []}, "need one positive number a level"),
        ({"epochs": [1, 0]}, "need one positive number a level"),
        ({"share": [2, 2], "folder": "x"}, r"share \[2, 2\]: give \[i, n\]"),
        ({"share": [0, 2]}, "processes that share the work need one folder"),
        ({"splitter": Splitter(choices=["dept"])}, "no choice is called 'dept'; did you mean"),
        ({"splitter": Splitter(layers=["block.*"])}, r"no layer is called 'block.\*'"),
        ({"splitter": Splitter(choices=["blocks.1.*"])}, "nothing to split: no choice of blocks.1"),
        ({"epochs": [1] * 5}, "ask for 4 levels of splits, but .* can be split 3 times"),
        (
            {"epochs": [1] * 3, "splitter": Splitter(min_group=1, choices=["blocks.0.width"])},
            "ask for 2 levels of splits, but blocks.0.width can be split 1 times",
        ),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        FewShotTraining(Regression(), **{"epochs": [1, 1], **settings})


def test_a_run_is_resumed_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    epochs, folder = (1, 1), "leaves"
    trainer, _ = fit(tmp_path, epochs=epochs, folder=folder, trainer={"max_epochs": 2})
    trainer.save_checkpoint("last.ckpt")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    fit(tmp_path, epochs=epochs, folder=folder, resume="../last.ckpt")
    assert SplitTree.load(tmp_path / "leaves/tree.json").checkpoints.keys() == {"root", "0", "1"}
    assert not (tmp_path / "other/leaves").exists()


def test_the_folder_of_another_training_is_refused(tmp_path):
    fit(tmp_path, epochs=(1,), folder=str(tmp_path / "leaves"))
    with pytest.raises(ValueError, match="tree.json: a tree of another training; name another"):
        fit(tmp_path, epochs=(1, 1), folder=str(tmp_path / "leaves"))


CONFIG = """
model:
  class_path: vizoo.nas.lid.FewShotTraining
  init_args:
    task:
      class_path: toy_regression.Regression
      init_args: {lr: 0.02}
    epochs: [2, 1]
    splitter:
      class_path: vizoo.nas.lid.Splitter
      init_args: {k: 4, batches: 2, batch_size: 8}
    folder: leaves
data:
  class_path: toy_regression.Data
trainer:
  max_epochs: -1
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
"""


def command(folder, *words, **environment):
    """`vizoo fit` as a process; its exit code and the nodes that it began."""
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(CONFIG)
    support = str(Path(__file__).resolve().parents[1] / "support")
    done = subprocess.run(
        [sys.executable, "-m", "vizoo", "fit", "--config", "toy.yaml", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": support, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    return done.returncode, re.findall(r"^node (\w+) \(", done.stderr, re.M)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_and_resumed_it_ends_the_same(tmp_path):
    nodes = ["root", "0", "1"]
    code, began = command(tmp_path / "whole")
    assert code == 0 and began == nodes
    killed, resume = tmp_path / "killed", ["--ckpt_path", "checkpoints/last.ckpt"]
    # Four steps an epoch: in the root's second epoch, then in the last node.
    code, began = command(killed, KILL_AT="6")
    assert code == -signal.SIGKILL and began == ["root"]
    code, began = command(killed, *resume, KILL_AT="14")
    assert code == -signal.SIGKILL and began == ["0", "1"]
    code, began = command(killed, *resume)
    assert code == 0 and began == ["1"]
    assert (killed / "leaves/tree.json").read_text() == (
        tmp_path / "whole/leaves/tree.json"
    ).read_text()
    for name in nodes:
        whole, parts = (read(tmp_path / at / "leaves", name) for at in ("whole", "killed"))
        assert whole["global_step"] == parts["global_step"]
        for key, value in whole["state_dict"].items():
            assert torch.equal(value, parts["state_dict"][key]), (name, key)
