"""Snapshots of a training in memory: a process that is killed costs a few steps, not an epoch."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from .buffers import Buffers, Header, checksum
from .parity import Parity, parity_groups
from .payload import Shared, divide, join, pack, random_state, set_random_state, unpack
from .persist import DiskSnapshots

__all__ = ["InMemorySnapshot"]

_UNUSED = ("hyper_parameters", "hparams_name", "hparams_type", "datamodule_hyper_parameters")


class InMemorySnapshot(Checkpoint):
    """Keeps the state of a training in a memory file system, and goes on from it after a crash.

    Every process keeps an equal share of parameters and optimiser state, and all that is its own:
    random states, buffers, progress, what a hook of `HookDDPStrategy` leaves out. A run that is
    started again, by `torchrun --max-restarts` for one, finds its newest snapshot by itself and
    goes on to the same weights, bit for bit, as if it had not stopped. That holds within an epoch
    too, for the data modules of `vizoo.datasets` and others whose loaders have a `state_dict`;
    metrics averaged over the epoch begin anew. A share that was lost with its machine is rebuilt
    from parity, as long as each process comes back on its own machine or an empty one.

    A run is known by its config and number of processes, and by the job that torchrun or SLURM has
    started. At the end, and when the user stops it, its snapshots are deleted.

    Snapshots are copied through pinned memory in a stream of its own from a GPU, which has not
    been run on one yet. They are taken behind an optimiser step, or behind the epoch with its
    validation where that is its last; where a validation within the epoch follows, a step later.

    Args:
        every_n_steps: optimiser steps between snapshots.
        parity_group: number of machines, or of processes where there is one machine, of which one
            may be lost; 1 to do without parity.
        persist_every: every how many snapshots one is written to the disk as well; 0 for none.
        memory: folder of a memory file system; needs 2.4 times the size of a snapshot.
        disk: folder for snapshots on the disk, which all processes reach; by default `snapshots`
            in the trainer's folder.
        run: a name that tells this run from others with the same config at the same time.

    Attributes:
        seconds: how long training stood still for the last snapshot, logged as
            `snapshot/seconds`.
        bytes: size of this process's last one, with its parity.

    Raises:
        ValueError: a setting is out of range.
    """

    def __init__(
        self,
        every_n_steps: int = 50,
        parity_group: int = 4,
        persist_every: int = 0,
        memory: str = "/dev/shm",
        disk: str | None = None,
        run: str = "",
    ) -> None:
        if every_n_steps < 1 or parity_group < 1 or persist_every < 0:
            raise ValueError(
                f"every_n_steps {every_n_steps}, parity_group {parity_group} and persist_every "
                f"{persist_every} must be at least 1, 1 and 0"
            )
        self.every_n_steps = every_n_steps
        self.parity_group = parity_group
        self.persist_every = persist_every
        self.memory = memory
        self.disk = disk
        self.run = run
        self.seconds, self.bytes = 0.0, 0
        self._generation, self._committed, self._step = 0, None, 0
        self._buffers: Buffers | None = None
        self._random: dict[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find a snapshot of this run, and let the trainer go on from it.

        Raises:
            ValueError: the strategy does not keep replicas, there is no such folder, or another
                process uses it.
        """
        if stage != "fit" or trainer.fast_dev_run:
            return
        if not isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy)):
            raise ValueError(
                f"snapshots need all of the model in every process, so a strategy like ddp; "
                f"{type(trainer.strategy).__name__} divides it"
            )
        if not Path(self.memory).is_dir():
            raise ValueError(f"{self.memory}: no such folder; name one of a memory file system")
        self._rank, self._processes = trainer.global_rank, trainer.world_size
        several = self._processes > 1
        self._group = dist.new_group(backend="gloo") if several else None
        self._parity = self._grouped(trainer)
        name = _identity(trainer, pl_module, self.run)
        self._buffers = Buffers(Path(self.memory) / f"vizoo-{os.getuid()}-{name}", self._rank)
        self._disk = None
        if self.persist_every:
            group = dist.new_group(backend="gloo") if several else None
            folder = Path(self.disk or Path(trainer.default_root_dir) / "snapshots") / name
            self._disk = DiskSnapshots(folder, self._rank, group)
        self._local = trainer.num_devices
        found = self._found()
        if found is not None:
            self._resume(trainer, *found)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with the random numbers of the snapshot."""
        vars(trainer._checkpoint_connector).pop("resume_start", None)
        self._step = trainer.global_step
        if self._random is not None:
            set_random_state(self._random)
            self._random = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take a snapshot where one is due."""
        validates = trainer.enable_validation and trainer.val_check_batch
        if trainer.is_last_batch or (validates and (batch_idx + 1) % trainer.val_check_batch == 0):
            return
        self._take_if_due(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot where one is due; Lightning calls checkpoint callbacks last."""
        self._take_if_due(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """A run that the user stops is not to go on by itself."""
        if isinstance(exception, KeyboardInterrupt) and self._buffers is not None:
            self._buffers.remove()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete the snapshots of a run that has come to its end in all processes."""
        if self._buffers is None:
            return
        if self._disk is not None:
            self._disk.wait()
        self._together(0, dist.ReduceOp.MIN)
        self._buffers.remove()
        if self._disk is not None:
            self._disk.remove()
        self._buffers = None

    def _take_if_due(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = trainer.global_step
        if self._buffers is None or step // self.every_n_steps <= self._step // self.every_n_steps:
            return
        start = time.perf_counter()
        self._take(trainer, pl_module, step)
        self.seconds = time.perf_counter() - start
        self._step = step
        pl_module.log("snapshot/seconds", self.seconds)

    def _take(self, trainer: Trainer, pl_module: LightningModule, step: int) -> None:
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        checkpoint = {key: value for key, value in checkpoint.items() if key not in _UNUSED}
        names = {name for name, _ in pl_module.named_parameters()}
        divided, tensors = divide(checkpoint, names)
        hook = getattr(trainer.strategy, "hook", None)
        own = pack(
            {
                "checkpoint": divided,
                "random": random_state(),
                "hook": None if hook is None else hook.state_dict(),
            },
            check=self._committed is None,
        )
        shared = Shared(tensors)
        low, high = shared.bounds(self._rank, self._processes)
        room = -(-len(own) // 16) * 16
        length = room + high - low
        chunk, size = self._agree(length, shared.digest)
        self._generation += 1
        memory = self._buffers.begin(size, self._committed)
        payload, parity = memory[:length], memory[length : length + chunk]
        payload[: len(own)] = own
        self._copy(shared, payload[room:], low, pl_module.device)
        header = Header(self._generation, step, length, room, checksum(payload))
        if self._parity is not None:
            parity.copy_(self._parity.encode(payload, chunk))
            header = Header(
                *(header.generation, header.step, length, room, header.crc32),
                *(chunk, checksum(parity), self._members(header)),
            )
        self._buffers.seal(header)
        self._together(self._generation, dist.ReduceOp.MIN)  # no one overwrites the one before
        self._committed, self.bytes = self._generation, size
        if self._disk is not None and self._generation % self.persist_every == 0:
            self._disk.write(payload, header)

    def _agree(self, length: int, kinds: int) -> tuple[int, int]:
        """Bytes of parity and of a snapshot, if all processes can take one.

        Raises:
            ValueError: memory is too small, or the processes do not hold replicas.
        """
        most = length if self._parity is None else length + self._parity.size(length)
        fits = self._buffers.has_room(most, self._local)
        numbers = torch.tensor([length, kinds, -kinds, 0 if fits else 1])
        if self._group is not None:
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._group)
        longest, largest, smallest, full = numbers.tolist()
        if full:
            raise ValueError(
                f"{self.memory} is too small: a snapshot has {most / 1e6:.0f} MB a process, and "
                f"2.4 times as much for each of {self._local} has to be free"
            )
        if largest != -smallest:
            raise ValueError(
                "the processes hold different parameters or states of optimisers: snapshots need "
                "replicas, so an optimiser that is not divided among them"
            )
        chunk = 0 if self._parity is None else self._parity.size(longest)
        return chunk, length + chunk

    def _copy(self, shared: Shared, out: Tensor, start: int, device: torch.device) -> None:
        if device.type != "cuda":
            shared.write(out, start)
            return
        pinned = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            shared.write(pinned, start)
        stream.synchronize()
        out.copy_(pinned)

    def _members(self, header: Header) -> tuple[tuple[int, int, int], ...]:
        found: list[Any] = [None] * len(self._parity.ranks)
        mine = header.length, header.own, header.crc32
        dist.all_gather_object(found, mine, group=self._parity.group)
        return tuple(found)

    def _grouped(self, trainer: Trainer) -> Parity | None:
        mine = None
        if self._processes > 1 and self.parity_group > 1:
            for ranks in parity_groups(self._processes, trainer.num_nodes, self.parity_group):
                group = dist.new_group(ranks, backend="gloo")
                if self._rank in ranks and len(ranks) > 1:
                    mine = Parity(ranks, self._rank, group)
        return mine

    def _together(self, number: int, operation: Any) -> int:
        """A number of all processes; every one of them has to ask."""
        found = torch.tensor(number)
        if self._group is not None:
            dist.all_reduce(found, operation, group=self._group)
        return int(found)

    def _gathered(self, value: Any) -> list[Any]:
        found = [value] * self._processes
        if self._group is not None:
            dist.all_gather_object(found, value, group=self._group)
        return found

    def _found(self) -> tuple[Header, Tensor, str] | None:
        """The newest snapshot that can be had: its header, this process's payload, from where."""
        held = self._buffers.held()
        everyone = self._gathered(set(held))
        known = set().union(*everyone)
        self._generation = max(known, default=0)
        whole = set(known).intersection(*everyone)
        if whole:
            newest = max(whole)
            self._committed = newest
            return held[newest], self._buffers.read(newest)[0], f"{self._buffers.folder}"
        for number in sorted(known, reverse=True):
            lost = [rank for rank, theirs in enumerate(everyone) if number not in theirs]
            losses = self._gathered(
                None if self._parity is None else len(set(lost) & set(self._parity.ranks))
            )
            if all(losses[rank] == 1 for rank in lost):
                self._committed = number
                return *self._rebuilt(number, held.get(number), set(lost)), "parity"
        on_disk = self._gathered(None if self._disk is None else self._disk.whole())[0]
        if on_disk:
            return *self._disk.read(on_disk[-1]), f"{on_disk[-1]}"
        return None

    def _rebuilt(self, number: int, header: Header | None, lost: set[int]) -> tuple[Header, Tensor]:
        payload = parity = torch.empty(0, dtype=torch.uint8)
        if header is not None:
            payload, parity = self._buffers.read(number)
        if self._parity is None or not lost & set(self._parity.ranks):
            return header, payload
        ranks = self._parity.ranks
        facts: list[Any] = [None] * len(ranks)
        dist.all_gather_object(facts, header, group=self._parity.group)
        one = next(fact for fact in facts if fact is not None)
        index = next(index for index, rank in enumerate(ranks) if rank in lost)
        found = self._parity.rebuild(index, payload, parity, one.parity)
        if found is None:
            return header, payload
        length, own, crc32 = one.members[index]
        payload = found[:length]
        if checksum(payload) != crc32:
            raise ValueError("a lost snapshot could not be rebuilt: parity does not fit it")
        return Header(number, one.step, length, own, crc32), payload

    def _resume(self, trainer: Trainer, header: Header, payload: Tensor, where: str) -> None:
        own = unpack(payload[: header.own])
        part = payload[header.own :]
        sizes = self._gathered(len(part))
        longest = torch.zeros(max(sizes), dtype=torch.uint8)
        longest[: len(part)] = part
        parts = [torch.empty_like(longest) for _ in sizes]
        if self._group is not None:
            dist.all_gather(parts, longest, group=self._group)
        else:
            parts = [longest]
        stream = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        self._random = own["random"]
        if own["hook"] is not None and hasattr(trainer.strategy, "resume_hook"):
            trainer.strategy.resume_hook(own["hook"])
        rank_zero_info(f"going on from step {header.step}, the snapshot of {where}")
        _go_on_from(trainer, join(own["checkpoint"], stream))


def _go_on_from(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Let the fit that begins restore all states from a checkpoint in memory.

    Lightning has no public way but a file. A file that the user named is older, and left out.
    """
    connector = trainer._checkpoint_connector
    connector._loaded_checkpoint = checkpoint
    connector.resume_start = lambda *_, **__: None


def _identity(trainer: Trainer, pl_module: LightningModule, run: str) -> str:
    """What tells a run from others: its job, its processes and its config."""
    job = os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("SLURM_JOB_ID") or ""
    parts = [run, job, str(trainer.world_size), type(pl_module).__qualname__]
    configs = [c for c in trainer.callbacks if hasattr(c, "config") and hasattr(c, "parser")]
    if configs:  # LightningCLI's, which writes it beside the checkpoints
        parts += [c.parser.dump(c.config, skip_none=False) for c in configs]
    else:
        parts += [*sys.argv, str(trainer.default_root_dir)]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
