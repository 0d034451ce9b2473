"""What the processes of the tests of snapshots do; plain values come back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from toy_snapshots import Numbered, Task, state

from vizoo.__main__ import main
from vizoo.nas.distributed import HookDDPStrategy, InMemorySnapshot, TopK
from vizoo.nas.distributed.recovery.payload import Shared
from vizoo.nas.distributed.recovery.store import SnapshotStore


class Crash(Exception):
    """What ends a training of these tests."""


class CrashAt(Callback):
    """Ends a training before the step of this number."""

    def __init__(self, step, kind=Crash):
        self.step = step
        self.kind = kind

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            raise self.kind


def fit(folder, snapshot=None, crash=None, seed=1, ckpt_path=None, task=None, **settings):
    """Train.

    Returns:
        The network to the last bit, None where the training crashed, and what the task saw.
    """
    torch.manual_seed(seed)
    task = task or Task()
    data = Numbered(workers=settings.pop("workers", 0))
    trainer = Trainer(
        **{"max_epochs": 2, "devices": 1, **settings},
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        callbacks=[callback for callback in (snapshot, crash) if callback],
        enable_checkpointing=snapshot is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(task, data, ckpt_path=ckpt_path)
    except (Crash, SystemExit):  # which Lightning turns an interrupt into
        return None, task.seen
    return state(task.net), task.seen


def fit_until_killed(folder, memory, step):
    os.environ["KILL_AT"] = str(step)
    fit(folder, InMemorySnapshot(3, memory=memory))


def stored(rank, folder):
    """A store of three processes: what it finds when parts of it are lost or torn."""
    memory, disk = Path(folder) / "memory", Path(folder) / "disk"
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(8, 4, generator=generator), torch.randint(9, (6,), generator=generator)]
    shared = Shared(tensors)
    whole = torch.zeros(shared.length, dtype=torch.uint8)
    shared.write(whole, 0)

    def own(step):
        return torch.arange(10 * step + 37 * rank).to(torch.uint8)

    def store(**more):
        return SnapshotStore(memory, disk, parity_group=3, persist_every=2, **more)

    def found():
        dist.barrier()
        newest = store().newest()
        dist.barrier()
        if newest is None:
            return None
        step, mine, stream, where = newest
        same = torch.equal(mine[: len(own(step))], own(step)) and torch.equal(stream, whole)
        return step if same else -step, Path(where).name

    def damage(ranks, path, position):
        if rank in ranks:
            with open(path, "r+b") as file:
                file.seek(position)
                byte = file.read(1)
                file.seek(position)
                file.write(bytes([byte[0] ^ 1]))

    facts = {"none": found()}
    first = store()
    assert first.newest() is None
    for step in (1, 2, 3):  # generation 3 is where 1 was, in the first file
        first.take(step, own(step), shared)
    first._disk.wait()
    dist.barrier()
    facts["sizes"] = first.bytes, shared.length, len(own(3))
    facts["all"] = found()
    kept = Path(folder) / f"kept{rank}"
    shutil.copytree(memory, kept)

    def again():
        dist.barrier()
        if rank == 0:
            shutil.rmtree(memory)
            shutil.copytree(kept, memory)
        dist.barrier()

    damage([1], memory / "rank1.0", 4096 + 5)
    facts["torn payload"] = found()
    again()
    damage([2], memory / "rank2.0", 30)
    facts["torn header"] = found()
    again()
    for number in (0, 1):
        if rank == 1:
            (memory / f"rank1.{number}").unlink()
    facts["one lost"] = found()
    damage([0], memory / "rank0.0", 4096 + first.bytes - 1)  # its parity
    facts["one lost, another torn"] = found()
    if rank == 2:
        (memory / "rank2.1").unlink()
    facts["two lost"] = found()
    again()
    second = store()  # goes on where the first was
    second.newest()
    second.take(4, own(4), shared)
    facts["next"] = found()
    second.forget()
    dist.barrier()
    facts["gone"] = memory.exists(), disk.exists(), found()
    return facts


def different_replicas(rank, folder):
    store = SnapshotStore(Path(folder) / "memory", Path(folder) / "disk")
    try:
        store.take(1, torch.zeros(3, dtype=torch.uint8), Shared([torch.zeros(4 + rank)]))
    except ValueError as error:
        return str(error)


def compressed_training(rank, folder, memory):
    """Weights after a training with a hook that keeps residuals: in one go, and after crashes."""

    def once(name, crash=None, seed=1):
        strategy = HookDDPStrategy(TopK(0.2, warmup=[0.5]), process_group_backend="gloo")
        snapshot = InMemorySnapshot(2, parity_group=2, memory=memory, run=name)
        settings = {"strategy": strategy, "devices": 2, "max_epochs": 3}
        return fit(folder, snapshot, crash and CrashAt(crash), seed, **settings)

    whole, seen = once("whole")
    results = []
    for step in (3, 9, 13):
        assert once("crash", step)[0] is None
        dist.barrier()
        if step == 9 and rank == 1:  # its machine is a new one
            for path in Path(memory).glob("vizoo-*/rank1.*"):
                path.unlink()
        dist.barrier()
        again, then = once("crash", seed=9)
        results.append((again == whole, then == seen[then[0][0] :], step - then[0][0]))
        dist.barrier()
    return whole, results, [path.name for path in Path(memory).iterdir()]


def command(rank, folder, words):
    """`vizoo` as one of several processes."""
    os.chdir(folder)
    return main(words)
