"""Few-shot training: levels of one fit, parts on disk, resumed and shared."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import nullcontext

import pytest
import torch
from few_shot_nodes import read, same_nodes
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch.nn import functional as F
from toy_regression import Data, Regression
from trainers import quiet_trainer

from vizoo.nas.distributed import InMemorySnapshot
from vizoo.nas.lid import FewShotTraining, Split, Splitter, SplitTree
from vizoo.nas.lid.folder import TreeFolder
from vizoo.nas.lid.helpers import _devices
from vizoo.nas.space import SearchSpace
from vizoo.nas.supernet import active
from vizoo.nas.training import UniformSampler
from vizoo.vision.callbacks import KeepLast

SPLITTER = Splitter(k=4, batches=2, batch_size=8)


def fit(
    where, *, epochs=(1, 1, 1), data=Data, seed=0, lr=0.05, resume=None, trainer=None, **settings
):
    made = quiet_trainer(where, **{"max_epochs": -1, **(trainer or {})})
    torch.manual_seed(seed)
    task = FewShotTraining(Regression(lr), list(epochs), **{"splitter": SPLITTER, **settings})
    made.fit(task, data(), ckpt_path=resume)
    return made, task


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


class Fixed(Regression):
    """Its network has a fixed part, of the type that training makes tensors of."""

    def outputs(self, batch):
        return F.conv2d(super().outputs(batch), torch.eye(4)[..., None, None])


@pytest.mark.parametrize("criterion", ["lid", "gradient"])
@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_splits_are_found_in_the_precision_of_training(tmp_path, precision, criterion):
    splitter = Splitter(criterion=criterion, k=4, batches=2, batch_size=8)
    trainer = quiet_trainer(tmp_path, max_epochs=-1, precision=precision)
    task = FewShotTraining(Fixed(), [1, 1], splitter=splitter)
    trainer.fit(task, Data())
    assert task.tree.leaves == ("0", "1")


def test_epochs_are_told_of_as_many_as_there_are(tmp_path):
    told = []

    class Telling(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            told.append((trainer.current_epoch, trainer.max_epochs))

    fit(tmp_path, epochs=(1, 1), trainer={"callbacks": [Telling()]})
    assert told == [(0, 3), (1, 3), (2, 3)]


def test_the_log_says_what_decided(tmp_path, caplog):
    """Mean similarities, not sums of pairs; of a choice of two values none is inside."""
    _, task = fit(tmp_path, epochs=(1, 1))
    split = task.tree.splits["root"]
    lines = caplog.messages[caplog.messages.index(f"node root is split by {split}") + 1 :][:3]
    found = {}
    for line in lines:
        name, numbers = re.fullmatch(r"  (\S+): .+ \| .+: mean (.*)", line).groups()
        found[name] = {k: float(v) for k, v in (pair.split() for pair in numbers.split(", "))}
    assert found.keys() == split.scores.keys()
    assert list(found) == sorted(found, key=lambda name: -split.scores[name]["gap"])
    for name, means in found.items():
        wanted = {k: split.scores[name][k] for k in ("gap", "inside", "across")}
        assert means == pytest.approx({k: v for k, v in wanted.items() if v is not None}, abs=1e-4)
    assert "inside" in found["blocks.0.width"] and "inside" not in found["depth"]


@pytest.mark.usefixtures("distributed_ends")
def test_a_strategy_that_wants_all_parameters_used_is_refused(tmp_path):
    refused = "ddp_find_unused_parameters_true, or .* by trainer.devices 1 and processes 1$"
    with pytest.raises(ValueError, match=refused):
        fit(tmp_path, trainer={"strategy": "ddp", "devices": 1})


class Failing(Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 6:
            raise RuntimeError("lost")


def test_from_a_snapshot_in_memory_it_ends_the_same(tmp_path):
    """Within an epoch none is taken, as what is random there cannot be restored."""
    for name, failing in (("whole", []), ("lost", [Failing()]), ("lost", [])):
        (tmp_path / name / "memory").mkdir(parents=True, exist_ok=True)
        snapshot = InMemorySnapshot(1, memory=str(tmp_path / name / "memory"))
        with pytest.raises(RuntimeError, match="lost") if failing else nullcontext():
            fit(tmp_path / name, epochs=(2, 1), trainer={"callbacks": [snapshot, *failing]})
    same_nodes(tmp_path / "whole/leaves", tmp_path / "lost/leaves")


def test_weights_are_not_averaged_over_nodes(tmp_path):
    with pytest.raises(ValueError, match="^EMAWeightAveraging averages weights over the nodes of"):
        fit(tmp_path, epochs=(1, 1), trainer={"callbacks": [EMAWeightAveraging()]})


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

    trainer = quiet_trainer(tmp_path, max_epochs=-1)
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

    trainer = quiet_trainer(tmp_path, max_epochs=-1)
    trainer.fit(Noting(Regression(), [1, 1], SPLITTER, inherit=False), Data())
    assert torch.equal(seen["root"], seen["0"]) and torch.equal(seen["root"], seen["1"])


@pytest.mark.parametrize("inherit", [True, False])
def test_it_does_not_matter_who_trains_what(tmp_path, monkeypatch, inherit):
    """One after the other here: each trains what it finds neither trained nor held."""
    monkeypatch.setattr("vizoo.nas.lid.folder._PAUSE", 0.01)
    settings = {"epochs": (2, 2), "inherit": inherit, "patience": 0.1}
    settings["data"] = lambda: Data(shuffle=True)
    fit(tmp_path / "alone", **settings)
    shared = tmp_path / "shared"
    fit(tmp_path / "a", folder=str(shared), trainer={"max_epochs": 2}, **settings)
    other = TreeFolder(shared, SplitTree.load(shared / "tree.json").space)
    assert other.take("0")
    awaited = f"waited 0.1 s for node 0 without a sign of life of process {os.getpid()} on "
    with pytest.raises(TimeoutError, match=awaited):
        fit(tmp_path / "b", folder=str(shared), **settings)
    assert SplitTree.load(shared / "tree.json").checkpoints.keys() == {"root", "1"}
    other.release()
    trainer, _ = fit(tmp_path / "c", folder=str(shared), **settings)
    assert trainer.global_step == 2 * 4  # of node 0 alone
    same_nodes(tmp_path / "alone/leaves", shared)
    trainer, _ = fit(tmp_path / "d", folder=str(shared), **settings)
    assert trainer.global_step == 0


def test_a_node_that_another_process_lets_go_of_is_trained_last(tmp_path, monkeypatch):
    monkeypatch.setattr("vizoo.nas.lid.folder._PAUSE", 0.01)
    shared = tmp_path / "shared"
    fit(tmp_path / "a", epochs=(1, 1), folder=str(shared), trainer={"max_epochs": 1})
    other = TreeFolder(shared, SplitTree.load(shared / "tree.json").space)
    assert other.take("0")

    def let_go():
        while "1" not in other.read().checkpoints:
            time.sleep(0.01)
        other.release()

    thread = threading.Thread(target=let_go, daemon=True)
    thread.start()
    trainer, _ = fit(tmp_path / "b", epochs=(1, 1), folder=str(shared), patience=1800)
    thread.join()
    assert trainer.global_step == 2 * 4
    fit(tmp_path / "alone", epochs=(1, 1))
    same_nodes(tmp_path / "alone/leaves", shared)


def interrupted(where, call, patch, **settings):
    """A fit that ends in this call of `TreeFolder.finish` or of the splitter; its last.ckpt."""
    owner, name, number = call
    calls, own = [], getattr(owner, name)

    def failing(*args, **arguments):
        calls.append(args)
        if len(calls) == number:
            raise MemoryError("no memory left")
        return own(*args, **arguments)

    with patch.context() as within, pytest.raises(MemoryError):
        within.setattr(owner, name, failing)
        fit(where, trainer={"callbacks": [KeepLast()]}, **settings)
    return where / "checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    fit(folder, epochs=(2, 1), data=lambda: Data(shuffle=True))
    return folder / "leaves"


@pytest.mark.parametrize(
    "call", [(Splitter, "split", 1), (TreeFolder, "finish", 2), (TreeFolder, "finish", 3)]
)
def test_what_failed_at_the_end_of_a_node_goes_on_there(tmp_path, monkeypatch, undisturbed, call):
    settings = {"epochs": (2, 1), "data": lambda: Data(shuffle=True)}
    last = interrupted(tmp_path, call, monkeypatch, **settings)
    trainer, _ = fit(tmp_path, resume=last, **settings)
    assert trainer.global_step == 4 * 4
    same_nodes(undisturbed, tmp_path / "leaves")


def test_how_to_split_may_change_until_there_is_a_split(tmp_path, monkeypatch):
    last = interrupted(tmp_path, (Splitter, "split", 1), monkeypatch, epochs=(1, 1))
    other = Splitter(k=5, batches=2, batch_size=8)
    fit(tmp_path, epochs=(1, 1), splitter=other, resume=last)
    tree = SplitTree.load(tmp_path / "leaves/tree.json")
    assert set(tree.checkpoints) == {"root", "0", "1"} and tree.about["splitter.k"] == 5
    with pytest.raises(ValueError, match="splitter.k is 5 there and 4 here; name another folder"):
        fit(tmp_path, epochs=(1, 1), folder=str(tmp_path / "leaves"))


def test_a_checkpoint_of_the_middle_of_an_epoch_is_refused(tmp_path):
    middle = ModelCheckpoint(tmp_path, "middle", every_n_train_steps=2)
    fit(tmp_path, epochs=(1,), trainer={"callbacks": [middle], "limit_train_batches": 3})
    refused = "middle.ckpt was written within an epoch: resume from one of an epoch's end, or leave"
    with pytest.raises(ValueError, match=refused):
        fit(tmp_path, epochs=(1,), resume=tmp_path / "middle.ckpt")


class Stop(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = True


def test_a_fit_that_something_else_stops_is_no_success(tmp_path):
    with pytest.raises(
        ValueError, match="leaves: the fit was stopped before node 0, 1 was trained"
    ):
        fit(tmp_path, epochs=(1, 1), trainer={"callbacks": [Stop()]})


def test_limits(tmp_path, caplog):
    trainer, task = fit(tmp_path, epochs=(2, 1), trainer={"max_epochs": 1})
    assert trainer.current_epoch == trainer.max_epochs == 1 and not task.tree.checkpoints
    fit(tmp_path / "more", epochs=(1,), trainer={"max_epochs": 9})
    assert "max_epochs 9: the levels have 1, which is all" in caplog.text
    with pytest.raises(ValueError, match="max_steps 3: limit few-shot training by max_epochs"):
        fit(tmp_path, trainer={"max_steps": 3})


def test_processes_that_wait_see_training_validation_and_splits(tmp_path, monkeypatch):
    signs = []
    monkeypatch.setattr(TreeFolder, "sign", lambda self: signs.append(self._held))
    fit(tmp_path, epochs=(1, 1))
    assert len(signs) == 3 * (4 + 2) + SPLITTER.batches and None not in signs


def test_a_wait_can_be_ended(tmp_path):
    space = FewShotTraining(Regression(), [1]).full_space
    folder, other = TreeFolder(tmp_path, space), TreeFolder(tmp_path, space)
    folder.open({})
    assert other.take("root")

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.claim(["root"], stop)
    other.release()
    assert folder.claim(["root"], stop) == "root"


@pytest.mark.skipif(os.name != "posix", reason="needs fork and SIGKILL")
def test_what_a_killed_process_held_is_free(tmp_path):
    folder = TreeFolder(tmp_path, FewShotTraining(Regression(), [1]).full_space)
    folder.open({})
    arrived, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            own = TreeFolder(tmp_path, folder.space)
            os.write(tell, b"1" if own.take("root") else b"0")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(arrived, 1) == b"1"
        assert not folder.take("root") and folder.holder("root").startswith(f"process {child} on ")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert folder.claim(["root"]) == "root"


def test_a_quick_try_neither_waits_nor_writes(tmp_path):
    shared = tmp_path / "shared"
    folder = TreeFolder(shared, FewShotTraining(Regression(), [1]).full_space)
    folder.open({})
    assert folder.take("root")
    fit(tmp_path, folder=str(shared), trainer={"fast_dev_run": True})
    assert not folder.read().checkpoints


def test_weights_that_parts_start_from_are_kept(tmp_path):
    settings = {"epochs": (1, 1), "inherit": False, "folder": str(tmp_path / "leaves")}
    fit(tmp_path, trainer={"max_epochs": 1}, **settings)
    before = (tmp_path / "leaves/start.pt").read_bytes()
    trained = read(tmp_path / "leaves", "root")["state_dict"]
    _, task = fit(tmp_path, **settings)
    start = torch.load(tmp_path / "leaves/start.pt", weights_only=True)
    assert (tmp_path / "leaves/start.pt").read_bytes() == before
    assert not torch.equal(start["task.net.blocks.0.norm.weight"], torch.zeros(8))
    assert any(not torch.equal(value, trained[key]) for key, value in start.items())


def test_what_parts_start_from_has_to_be_there(tmp_path):
    settings = {"epochs": (1, 1), "folder": str(tmp_path / "leaves")}
    fit(tmp_path, trainer={"max_epochs": 1}, **settings)
    path = tmp_path / "leaves/root.ckpt"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"leaves/root.ckpt: a damaged checkpoint \(.*; name ano"):
        fit(tmp_path, **settings)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="root.ckpt: no such file, from whose weights"):
        fit(tmp_path, **settings)
    path.write_bytes(content)
    fit(tmp_path, **settings)
    assert SplitTree.load(tmp_path / "leaves/tree.json").checkpoints.keys() == {"root", "0", "1"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": []}, "need one positive number a level"),
        ({"epochs": [1, 0]}, "need one positive number a level"),
        ({"processes": 0}, "processes 0 and patience 1800.0 must be positive"),
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


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epochs": (1, 1)}, r"epochs is \[1\] there and \[1, 1\] here"),
        ({"seed": 1}, "seed is 0 there and 1 here; weights is '[0-9a-f]+' there"),
        ({"lr": 0.1}, "task.lr is 0.05 there and 0.1 here; name another folder"),
        ({"sampler": UniformSampler(seed=3)}, "sampler is .*'seed': 0.* there and .*'seed': 3"),
        ({"data": lambda: Data(batch_size=8)}, "steps_per_epoch is 4 there and 2 here; data is"),
        ({"trainer": {"gradient_clip_val": 1.0}}, "gradient_clip_val is None there and 1.0 here"),
    ],
)
def test_the_folder_of_another_training_is_refused(tmp_path, one_level, changes, named):
    with pytest.raises(ValueError, match=f"tree.json: a tree of another training: .*{named}"):
        fit(tmp_path, **{"epochs": (1,), "folder": str(one_level), **changes})


@pytest.fixture(scope="module")
def one_level(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "leaves"
    fit(folder.parent, epochs=(1,), folder=str(folder))
    return folder


def test_only_fit_starts_processes(tmp_path):
    with pytest.raises(ValueError, match="processes are started by `vizoo fit`; otherwise start"):
        fit(tmp_path, epochs=(1,), processes=2)
    fit(tmp_path, epochs=(1,))  # what the failed one had begun is free


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    places = _devices(torch.device("cuda", 0))
    names = [next(places)["CUDA_VISIBLE_DEVICES"] for _ in range(4)]
    assert names == ["5", "7", "2", "5"]
    assert next(_devices(torch.device("cpu"))) == {}
