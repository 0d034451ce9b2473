"""Snapshots in memory: what is written is read, what is torn is not, and training goes on."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import yaml
from distributed_snapshots import Crash, CrashAt, fit, fit_until_killed
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from ranks import context
from toy_regression import Data, Regression
from toy_snapshots import Numbered, Task
from trainers import quiet_trainer

from vizoo.__main__ import main
from vizoo.nas.distributed import InMemorySnapshot
from vizoo.nas.distributed.recovery.buffers import Buffers, Header, checksum
from vizoo.nas.distributed.recovery.parity import parity_groups
from vizoo.nas.distributed.recovery.payload import Shared, divide, join
from vizoo.nas.distributed.recovery.store import SnapshotStore

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def memory(tmp_path):
    """A folder that stands for a memory file system."""
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Trainings that nothing has stopped, by their settings."""
    return {}, tmp_path_factory.mktemp("whole")


def checkpoint():
    weights = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return {
        "state_dict": {"weight": weights, "mean": torch.randn(3), "empty": torch.zeros(0, 2)},
        "optimizer_states": [
            {
                "state": {0: {"step": torch.tensor(3.0), "average": weights.double()}},
                "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
            }
        ],
        "loops": {"batches": 3},
    }


@pytest.mark.parametrize("processes", [1, 2, 3, 7, 300])
def test_a_checkpoint_comes_back_from_any_number_of_shares(processes):
    given = checkpoint()
    divided, tensors = divide(given, {"weight", "empty"})
    shared = Shared(tensors)
    parts = []
    for rank in range(processes):
        low, high = shared.bounds(rank, processes)
        parts.append(torch.zeros(high - low, dtype=torch.uint8))
        shared.write(parts[-1], low)
    assert max(map(len, parts)) == -(-shared.length // processes)
    found = join(divided, torch.cat(parts))
    weight, state = found["state_dict"]["weight"], found["optimizer_states"][0]["state"][0]
    assert torch.equal(weight, given["state_dict"]["weight"])
    assert weight.stride() == given["state_dict"]["weight"].stride()
    assert state["average"].dtype == torch.float64 and state["average"].stride() == weight.stride()
    assert torch.equal(state["average"], weight.double()) and state["step"] == 3
    assert found["state_dict"]["mean"] is given["state_dict"]["mean"]  # of this process alone
    assert found["state_dict"]["empty"].shape == (0, 2) and found["loops"] == {"batches": 3}
    groups = found["optimizer_states"][0]["param_groups"]
    assert groups == given["optimizer_states"][0]["param_groups"]


def write(buffers, generation, keep=None, size=1000):
    content = torch.randint(256, (size,), dtype=torch.uint8)
    buffers.begin(size, keep).copy_(content)
    buffers.seal(Header(generation, 5 * generation, size, 0, checksum(content)))
    return content


def test_two_snapshots_are_held_and_the_older_one_is_overwritten(memory):
    folder = memory / "run"
    buffers = Buffers(folder, 3)
    contents = {number: write(buffers, number, number - 1) for number in (1, 2, 3)}
    assert set(buffers.held()) == {2, 3} and buffers.held()[3].step == 15
    contents[4] = write(buffers, 4, 3, size=9000)  # in a file that has to grow
    again = Buffers(folder, 3)
    assert set(again.held()) == {3, 4}
    for number in (3, 4):
        assert torch.equal(again.read(number)[0], contents[number])
    with pytest.raises(KeyError):
        again.read(2)
    assert Buffers(folder, 0).held() == {}
    again.remove()
    assert again.held() == {} and folder.exists()  # another process is there
    assert folder.stat().st_mode & 0o777 == 0o700
    write(Buffers(folder, 1), 1)
    Buffers(folder, 0).remove(others=True)
    assert not folder.exists()


@pytest.mark.parametrize("position", [0, 9, 14, 40, 4096, 5000])
def test_a_changed_byte_is_seen(memory, position):
    buffers = Buffers(memory / "run", 0)
    write(buffers, 1)
    content = bytearray(buffers.paths[0].read_bytes())
    content[position] ^= 4
    buffers.paths[0].write_bytes(content)
    assert buffers.held() == {}


def test_buffers_of_all_processes_count_as_room(memory, monkeypatch):
    folder, size = memory / "run", 100_000

    def usage(_):
        return SimpleNamespace(free=10 * size - sum(f.stat().st_size for f in folder.iterdir()))

    monkeypatch.setattr("vizoo.nas.distributed.recovery.buffers.shutil.disk_usage", usage)
    buffers = [Buffers(folder, rank) for rank in range(4)]
    for number in (1, 2, 3):
        assert all(each.has_room(size, 4) for each in buffers)
        for each in buffers:
            write(each, number, number - 1, size)
    assert not buffers[0].has_room(2 * size, 4)


def test_a_snapshot_that_was_begun_is_none(memory):
    buffers = Buffers(memory / "run", 0)
    write(buffers, 1)
    write(buffers, 2, keep=1)
    buffers.begin(1000, keep=2)[:500] = 7
    assert set(buffers.held()) == {2}
    buffers.paths[1].write_bytes(b"short")
    assert buffers.held() == {}


HOLD = "import fcntl; f = open({!r}, 'w'); fcntl.lockf(f, 2); print(1, flush=True); input()"


def test_what_others_may_write_or_use_is_refused(memory, monkeypatch):
    monkeypatch.setattr("vizoo.nas.distributed.recovery.buffers._WAIT", 0.0)
    (memory / "open").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="open: not a folder of this user alone; remove it$"):
        Buffers(memory / "open", 0)
    (memory / "run").mkdir(mode=0o700)
    words = [sys.executable, "-c", HOLD.format(str(memory / "run" / "rank0.lock"))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        with pytest.raises(ValueError, match="another process keeps snapshots of this very run"):
            Buffers(memory / "run", 0)
        process.communicate(b"\n")
    Buffers(memory / "run", 0)


@pytest.mark.parametrize(
    ("facts", "groups"),
    [
        ((4, 1, 4), [[0, 1, 2, 3]]),
        ((4, 1, 2), [[0, 1], [2, 3]]),
        ((5, 1, 2), [[0, 1], [2, 3, 4]]),
        ((3, 1, 4), [[0, 1, 2]]),
        ((6, 3, 3), [[0, 2, 4], [1, 3, 5]]),
        ((8, 4, 2), [[0, 2], [4, 6], [1, 3], [5, 7]]),
    ],
)
def test_groups_of_parity_are_on_different_machines(facts, groups):
    assert parity_groups(*facts) == groups


CASES = {
    "epochs": {},
    "steps": {"max_steps": 14},
    "validation": {"val_check_interval": 4},
    "accumulation": {"accumulate_grad_batches": 2},
    "workers": {"workers": 1},
    "shorter epochs": {"max_steps": 14, "limit_train_batches": 5},
}


@pytest.mark.parametrize(
    ("case", "every", "step"),
    [
        *(("epochs", 3, step) for step in (4, 12, 17)),
        *(("epochs", 1, step) for step in (10, 11, 12)),  # behind an epoch of 11 steps, for one
        *(("steps", 3, step) for step in (8, 13)),
        *(("steps", 1, step) for step in (11, 12)),  # no snapshot behind such an epoch
        *(("validation", 3, step) for step in (5, 9)),
        ("accumulation", 3, 4),
        ("accumulation", 1, 6),
        ("workers", 3, 12),
        ("shorter epochs", 1, 6),
    ],
)
def test_a_training_that_crashed_ends_with_the_same_bits(
    tmp_path, memory, whole, case, every, step
):
    def snapshot():
        return InMemorySnapshot(every, memory=str(memory))

    known, folder = whole
    if case not in known:
        known[case] = fit(folder, snapshot(), **CASES[case])
    assert not list(memory.iterdir())
    crashed, _ = fit(tmp_path, snapshot(), CrashAt(step), **CASES[case])
    assert crashed is None and len(list(memory.iterdir())) == 1
    again, seen = fit(tmp_path, snapshot(), seed=99, **CASES[case])
    assert again == known[case][0]
    assert seen == known[case][1][-len(seen) :]  # the same samples in the same order
    assert 0 <= step - seen[0][0] <= every + ("max_steps" in CASES[case])
    assert not list(memory.iterdir())  # all was deleted at the end


class Noisy(Regression):
    def outputs(self, batch):
        return super().outputs((batch[0] + 0.1 * torch.randn_like(batch[0]),))


@pytest.mark.parametrize("workers", [0, 1])
def test_behind_an_epoch_it_goes_on_with_any_loader(tmp_path, memory, workers):
    """Also where the order of samples is drawn from the numbers that the network draws from."""
    found = []
    for seed, crash in ((0, []), (0, [CrashAt(4)]), (1, [])):
        callbacks = [InMemorySnapshot(4, memory=str(memory)), *crash]
        trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=callbacks)
        torch.manual_seed(seed)
        task = Noisy()
        with pytest.raises(Crash) if crash else nullcontext():
            trainer.fit(task, Data(shuffle=True, workers=workers))
            found.append({name: value.tolist() for name, value in task.state_dict().items()})
    assert found[0] == found[1]


def test_a_killed_training_goes_on(tmp_path, memory):
    expected, _ = fit(tmp_path, InMemorySnapshot(3, memory=str(memory)))
    process = context.Process(target=fit_until_killed, args=(tmp_path, str(memory), 10))
    process.start()
    process.join()
    assert process.exitcode == -9 and len(list(memory.iterdir())) == 1
    again, seen = fit(tmp_path, InMemorySnapshot(3, memory=str(memory)), seed=99)
    assert again == expected and seen[0][0] == 9


def test_how_long_training_stands_still_is_that_of_all_processes(tmp_path, memory, monkeypatch):
    """Lightning warns of what is logged behind an epoch and is one process's."""
    logged = []
    monkeypatch.setattr(Task, "log", lambda self, name, value, **how: logged.append((name, how)))
    fit(tmp_path, InMemorySnapshot(11, memory=str(memory)))
    ways = [how for name, how in logged if name == "snapshot/seconds"]
    assert ways == [{"sync_dist": True, "reduce_fx": "max"}] * 2


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_restart_without_a_snapshot_is_said(tmp_path, memory, monkeypatch, restarts):
    said = []
    monkeypatch.setattr("vizoo.nas.distributed.recovery.snapshot.rank_zero_info", said.append)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    assert fit(tmp_path, InMemorySnapshot(3, memory=str(memory)), CrashAt(0))[0] is None
    assert [text.partition(":")[0] for text in said] == ["no snapshot yet"] * int(restarts)


def test_a_launcher_that_keeps_what_lost_processes_wrote_is_warned_of(
    tmp_path, memory, monkeypatch
):
    """Also where the variable is set: torchrun with a master port does not heed it."""
    said = []
    monkeypatch.setattr("vizoo.nas.distributed.recovery.snapshot.rank_zero_warn", said.append)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    fit(tmp_path, InMemorySnapshot(3, memory=str(memory)), CrashAt(0))
    assert len(said) == 1
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in said[0] and "no --master-port" in said[0]


def test_snapshots_of_the_disk_serve_where_memory_is_lost(tmp_path, memory):
    def snapshot():
        return InMemorySnapshot(3, persist_every=2, memory=str(memory), disk=f"{tmp_path}/disk")

    expected, _ = fit(tmp_path, InMemorySnapshot(3, memory=str(memory)))
    assert fit(tmp_path, snapshot(), CrashAt(17))[0] is None
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("disk/*/step*12/.metadata")):  # a thread still writes it
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shutil.rmtree(next(memory.iterdir()))
    again, seen = fit(tmp_path, snapshot(), seed=9)
    assert again == expected and seen[0][0] == 12
    assert not list(memory.iterdir()) and not list((tmp_path / "disk").iterdir())


def test_another_run_does_not_go_on_from_it(tmp_path, memory):
    assert fit(tmp_path, InMemorySnapshot(3, memory=str(memory)), CrashAt(8))[0] is None
    _, seen = fit(tmp_path, InMemorySnapshot(3, memory=str(memory), run="another"))
    assert seen[0][0] == 0 and len(list(memory.iterdir())) == 1
    _, seen = fit(tmp_path / "elsewhere", InMemorySnapshot(3, memory=str(memory)))
    assert seen[0][0] == 0


@pytest.mark.parametrize("persist_every", [0, 1])
def test_a_snapshot_that_does_not_fit_is_told_with_its_folder(
    tmp_path, memory, monkeypatch, persist_every
):
    def snapshot():
        disk = f"{tmp_path}/disk"
        return InMemorySnapshot(3, persist_every=persist_every, memory=str(memory), disk=disk)

    said = []
    monkeypatch.setattr("vizoo.nas.distributed.recovery.snapshot.rank_zero_info", said.append)
    assert fit(tmp_path, snapshot(), CrashAt(8))[0] is None
    folders = [*memory.iterdir(), *(tmp_path / "disk").glob("*")]
    assert len(folders) == 1 + persist_every
    with pytest.raises(ValueError, match="code may have changed.*size mismatch") as error:
        fit(tmp_path, snapshot(), task=Task(width=6))
    for text in (said[-1], str(error.value)):
        assert f"to begin anew delete {' and '.join(map(str, folders))}" in text
        assert "after step 6" in text and "\n" not in text
    task = Task()
    task.configure_optimizers = lambda: torch.optim.Adam(task.net[3].parameters())
    with pytest.raises(ValueError, match="code may have changed.*parameter group"):
        fit(tmp_path, snapshot(), task=task)
    for folder in folders:
        shutil.rmtree(folder)
    assert fit(tmp_path, snapshot(), task=Task(width=6))[1][0][0] == 0


def test_the_best_checkpoint_is_refused_in_words(tmp_path, memory):
    trainer = Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        callbacks=[InMemorySnapshot(memory=str(memory)), ModelCheckpoint()],
        logger=False,
    )
    with pytest.raises(ValueError, match="not configured to save the best model"):
        trainer.validate(Task(), Numbered(), ckpt_path="best")


def test_a_run_that_the_user_stops_does_not_go_on_by_itself(tmp_path, memory):
    stop = CrashAt(8, KeyboardInterrupt)
    assert fit(tmp_path, InMemorySnapshot(3, memory=str(memory)), stop)[0] is None
    assert not list(memory.iterdir())


def test_a_snapshot_is_newer_than_the_checkpoint_that_was_named(tmp_path, memory):
    class Save(Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 2:
                trainer.save_checkpoint(tmp_path / "two.ckpt")

    _, whole = fit(tmp_path, Save())
    named = {"ckpt_path": tmp_path / "two.ckpt"}
    _, seen = fit(tmp_path, **named)
    assert seen == whole[2:]  # a checkpoint too goes on with the samples that are left
    assert fit(tmp_path, InMemorySnapshot(3, memory=str(memory)), CrashAt(8), **named)[0] is None
    _, seen = fit(tmp_path, InMemorySnapshot(3, memory=str(memory)), **named)
    assert seen[0][0] == 6


def test_a_config_adds_snapshots_and_tells_runs_apart(tmp_path, monkeypatch):
    taken, folders = [], []

    class Told(SnapshotStore):
        def __init__(self, memory, *arguments):
            folders.append(memory.name)
            super().__init__(tmp_path / "memory" / memory.name, *arguments)

        def take(self, step, *arguments):
            taken.append(step)
            super().take(step, *arguments)

    monkeypatch.setattr("vizoo.nas.distributed.recovery.snapshot.SnapshotStore", Told)
    monkeypatch.chdir(tmp_path)
    config = {
        "model": {"class_path": "toy_snapshots.Task"},
        "data": {"class_path": "toy_snapshots.Numbered"},
        "trainer": {"max_epochs": 5, "accelerator": "cpu", "logger": False},
    }
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(config))
    words = ["fit", "--config", "toy.yaml", "--config", "distributed/snapshots.yaml"]
    for more in ([], [], ["--model.width", "6"]):
        assert main([*words, *more]) == 0
    assert taken == [50, 50, 50] and not list((tmp_path / "memory").iterdir())
    assert folders[0] == folders[1] != folders[2]


class Strange(Callback):
    def state_dict(self):
        return {"made": itertools.count()}


def test_what_cannot_be_kept_is_one_line(tmp_path, memory, monkeypatch):
    def says(snapshot, crash=None, **settings):
        with pytest.raises(ValueError) as error:
            fit(tmp_path, snapshot, crash, **settings)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "every_n_steps 0, parity_group 4" in says_of_settings(every_n_steps=0)
    assert "no such folder" in says(InMemorySnapshot(memory=f"{tmp_path}/none"))
    strange = says(InMemorySnapshot(3, memory=str(memory)), Strange())
    assert strange.startswith("a snapshot keeps tensors and plain values, and the state of a")
    few = SimpleNamespace(free=1000)
    monkeypatch.setattr("vizoo.nas.distributed.recovery.buffers.shutil.disk_usage", lambda _: few)
    assert "memory: too small for snapshots of 0.0 MB" in says(
        InMemorySnapshot(3, memory=str(memory), run="full")
    )
    snapshot, trainer = InMemorySnapshot(), SimpleNamespace(fast_dev_run=False)
    trainer.strategy = FSDPStrategy()
    with pytest.raises(ValueError, match="FSDPStrategy divides it$"):
        snapshot.setup(trainer, Task(), "fit")


def says_of_settings(**settings):
    with pytest.raises(ValueError) as error:
        InMemorySnapshot(**settings)
    return str(error.value)
