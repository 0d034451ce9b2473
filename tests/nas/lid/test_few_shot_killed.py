"""Few-shot training whose processes are killed, in any node, and started again."""

from __future__ import annotations

import os
import re
import signal

import pytest
from few_shot_nodes import read, same_nodes
from trainers import fit_process

from vizoo.nas.lid import SplitTree

CONFIG = """
model:
  class_path: vizoo.nas.lid.FewShotTraining
  init_args:
    task:
      class_path: toy_regression.Regression
      init_args: {lr: 0.02}
    epochs: [2, 1, 1]
    splitter:
      class_path: vizoo.nas.lid.Splitter
      init_args: {k: 4, batches: 2, batch_size: 8}
    folder: leaves
data:
  class_path: toy_regression.Data
  init_args: {shuffle: true}
trainer:
  max_epochs: -1
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
"""


def command(folder, *words, **environment):
    """`vizoo fit` as a process; its exit code and the nodes that it began."""
    done = fit_process(folder, CONFIG, *words, **environment)
    return done.returncode, began(done.stderr)


def began(log):
    return re.findall(r"^node (\w+) \(", log, re.M)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The nodes of a fit that nothing disturbed."""
    folder = tmp_path_factory.mktemp("few_shot") / "whole"
    assert command(folder) == (0, ["root", "0", "1", "00", "01", "10", "11"])
    return folder / "leaves"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize(("how", "code"), [("KILL_AT", -signal.SIGKILL), ("TERM_AT", 143)])
def test_killed_and_resumed_it_ends_the_same(tmp_path, whole, how, code):
    killed, resume = tmp_path / "killed", ["--ckpt_path", "checkpoints/last.ckpt"]
    # Four steps an epoch: in the root's second epoch, in node 1, in a leaf.
    assert command(killed, **{how: "6"}) == (code, ["root"])
    assert command(killed, *resume, **{how: "14"}) == (code, ["0", "1"])
    assert command(killed, *resume, **{how: "26"}) == (code, ["1", "00", "01", "10"])
    assert command(killed, *resume) == (0, ["10", "11"])
    same_nodes(whole, killed / "leaves")
    steps = [read(at, "11")["global_step"] for at in (whole, killed / "leaves")]
    assert steps == [32, 32]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_several_processes_killed_and_started_again_end_the_same(tmp_path, whole):
    folder, log = tmp_path / "several", tmp_path / "several/leaves/process1.log"
    two = ["--model.processes", "2"]
    # The first waits in node 0 until the second trains node 1, and ends; the second with it soon.
    code, first = command(folder, *two, MEET_AT="8", KILL_AT="9")
    assert code == -signal.SIGKILL and first == ["root", "0"]
    assert began(log.read_text())[0] == "1"
    tree = SplitTree.load(folder / "leaves/tree.json")
    assert "root" in tree.checkpoints and "0" not in tree.checkpoints
    code, first = command(folder, *two, MEET_AT="0")
    assert code == 0 and first[0] == "0" and began(log.read_text())
    same_nodes(whole, folder / "leaves")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_two_devices_train_each_node_together_killed_or_not(tmp_path):
    """Each takes half of the batches; what is told and written is of the first alone."""
    together = ["--trainer.devices", "2", "--trainer.strategy", "ddp_find_unused_parameters_true"]
    nodes = ["root", "0", "1", "00", "01", "10", "11"]
    assert command(tmp_path / "whole", *together) == (0, nodes)
    killed, resume = tmp_path / "killed", ["--ckpt_path", "checkpoints/last.ckpt"]
    # Two steps an epoch: in node 1.
    code, first = command(killed, *together, KILL_AT="7")
    assert code and first == ["root", "0", "1"]  # one may meet the other's end before its own
    assert command(killed, *together, *resume) == (0, ["1", "00", "01", "10", "11"])
    same_nodes(tmp_path / "whole/leaves", killed / "leaves")
    assert read(killed / "leaves", "11")["global_step"] == 16
