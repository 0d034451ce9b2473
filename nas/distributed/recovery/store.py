"""Where the processes of a run keep its snapshots, and how they find the newest together.

Those on a disk are written by PyTorch's distributed checkpoints while training goes on.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ....common.ranks import gathered, rank_and_size
from .buffers import Buffers, Header, checksum
from .parity import Parity, parity_groups
from .payload import Shared, aligned

__all__ = ["SnapshotStore"]


class SnapshotStore:
    """Snapshots of a run in memory, parity over its processes, and copies on a disk.

    All methods are called by every process.

    Args:
        memory: folder of the run in a memory file system.
        disk: folder of the run on a disk that all processes reach.
        machines: number of machines, with equally many processes.
        parity_group: see `parity_groups`; 1 to do without.
        persist_every: every how many snapshots one goes to the disk; 0 for none.
    """

    def __init__(
        self,
        memory: Path,
        disk: Path,
        machines: int = 1,
        parity_group: int = 1,
        persist_every: int = 0,
    ) -> None:
        self.rank, self.processes = rank_and_size()
        self.bytes = 0  #: size of this process's last snapshot, with its parity
        self.folders = [memory, disk] if persist_every else [memory]  #: where snapshots lie
        self._local = self.processes // machines
        self._group = self._new_group()
        self._parity = self._new_parity(machines, parity_group)
        self._every = persist_every
        self._disk = _DiskSnapshots(disk, self.rank, self._new_group()) if persist_every else None
        self._buffers = Buffers(memory, self.rank)
        self._generation = 0
        self._committed: int | None = None

    def take(self, step: int, own: Tensor, shared: Shared) -> None:
        """Keep a snapshot: bytes of what is this process's alone (N,), its share of what all hold.

        Raises:
            ValueError: memory is too small, or the processes do not hold the same tensors.
        """
        low, high = shared.bounds(self.rank, self.processes)
        room = aligned(len(own))
        length = room + high - low
        chunk = self._agree(length, shared.digest)
        self._generation += 1
        memory = self._buffers.begin(length + chunk, self._committed)
        payload, parity = memory[:length], memory[length:]
        payload[: len(own)] = own
        shared.write(payload[room:], low)
        mine = length, room, checksum(payload)
        header = Header(self._generation, step, *mine)
        if self._parity is not None:
            parity.copy_(self._parity.encode(payload, chunk))
            members = tuple(gathered(mine, self._parity.group))
            header = Header(self._generation, step, *mine, chunk, checksum(parity), members)
        self._buffers.seal(header)
        gathered(None, self._group)  # before anyone overwrites the one that all have
        self._committed, self.bytes = self._generation, length + chunk
        if self._disk is not None and self._generation % self._every == 0:
            self._disk.write(payload, header)

    def newest(self) -> tuple[int, Tensor, Tensor, str] | None:
        """The newest snapshot that all processes can have: held by all, rebuilt, or on the disk.

        Returns:
            Its step, the bytes of `own` and of all that is shared, and where it was; None if there
            is none.
        """
        newest = self._newest_of_all()
        if newest is None:
            return None
        header, payload, where = newest
        own, share = payload[: header.own], payload[header.own :]
        if self._group is None:
            return header.step, own, share, where
        sizes = gathered(len(share), self._group)
        # Only behind the last byte of all are shares shorter than the first.
        shares = torch.empty(self.processes, sizes[0], dtype=torch.uint8)
        padded = F.pad(share, (0, sizes[0] - len(share)))
        dist.all_gather(list(shares), padded, group=self._group)
        return header.step, own, shares.flatten()[: sum(sizes)], where

    def forget(self) -> None:
        """Delete all of them, once every process has come so far."""
        if self._disk is not None:
            self._disk.wait()
        gathered(None, self._group)
        self._remove(others=False)

    def discard(self) -> None:
        """Delete them without asking the others, which may be killed before they do it."""
        self._remove(others=self.rank % self._local == 0)

    def _remove(self, others: bool) -> None:
        self._buffers.remove(others)
        if self._disk is not None:
            self._disk.remove()

    def _agree(self, length: int, kinds: int) -> int:
        """Bytes of parity, if all processes can take a snapshot."""
        size = length if self._parity is None else length + self._parity.size(length)
        mine = length, kinds, self._buffers.has_room(size, self._local)
        lengths, digests, fits = zip(*gathered(mine, self._group), strict=True)
        if not all(fits):
            raise ValueError(
                f"{self._buffers.folder.parent}: too small for snapshots of {size / 1e6:.1f} MB of "
                f"{self._local} processes, of which 2.4 times as much has to be free"
            )
        if len(set(digests)) > 1:
            raise ValueError(
                "the processes hold different parameters or states of optimisers: snapshots need "
                "replicas, so an optimiser that is not divided among them"
            )
        return 0 if self._parity is None else self._parity.size(max(lengths))

    def _newest_of_all(self) -> tuple[Header, Tensor, str] | None:
        """This process's header and payload of it, and where they were."""
        held = self._buffers.held()
        everyone = gathered(set(held), self._group)
        known = set().union(*everyone)
        self._generation = max(known, default=0)
        if whole := known.intersection(*everyone):
            self._committed = newest = max(whole)
            return held[newest], self._buffers.read(newest)[0], str(self._buffers.folder)
        for number in sorted(known, reverse=True):
            lost = {rank for rank, theirs in enumerate(everyone) if number not in theirs}
            near = set() if self._parity is None else lost & set(self._parity.ranks)
            losses = gathered(len(near), self._group)  # of each process's parity group
            if all(losses[rank] == 1 for rank in lost):
                self._committed = number
                return *self._rebuilt(number, held.get(number), near), "parity"
        on_disk = gathered(self._disk.whole() if self._disk else [], self._group)[0]
        if self._disk is None or not on_disk:
            return None
        return *self._disk.read(on_disk[-1]), str(on_disk[-1])

    def _rebuilt(self, number: int, header: Header | None, lost: set[int]) -> tuple[Header, Tensor]:
        """This process's payload, after the one process of its group that lost its own has it."""
        payload = parity = torch.empty(0, dtype=torch.uint8)
        if header is not None:
            payload, parity = self._buffers.read(number)
        if not lost:
            return cast("Header", header), payload
        coder = cast("Parity", self._parity)
        known = next(filter(None, gathered(header, coder.group)))
        index = coder.ranks.index(next(iter(lost)))
        rebuilt = coder.rebuild(index, payload, parity, known.parity)
        if rebuilt is None:
            return cast("Header", header), payload
        length, own, crc32 = known.members[index]
        if checksum(rebuilt[:length]) != crc32:
            raise ValueError("a lost snapshot cannot be rebuilt: its parity does not fit it")
        return Header(number, known.step, length, own, crc32), rebuilt[:length]

    def _new_group(self) -> dist.ProcessGroup | None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return cast("dist.ProcessGroup", dist.new_group(backend="gloo"))

    def _new_parity(self, machines: int, size: int) -> Parity | None:
        mine = None
        if self.processes > 1 and size > 1:
            for ranks in parity_groups(self.processes, machines, size):
                group = cast("dist.ProcessGroup", dist.new_group(ranks, backend="gloo"))
                if self.rank in ranks and len(ranks) > 1:
                    mine = Parity(ranks, self.rank, group)
        return mine


class _DiskSnapshots:
    """The latest snapshots of a run in a folder of its own that all its processes reach.

    `group` is of all processes, with a backend for the CPU, used for nothing else; None for one.
    """

    def __init__(self, folder: Path, rank: int, group: dist.ProcessGroup | None) -> None:
        self.folder = folder
        self.rank = rank
        self.group = group
        self._writing: Future | None = None

    def write(self, payload: Tensor, header: Header) -> None:
        """Begin to write a payload (N,), which may change as soon as this returns.

        Every process has to call it. Where the one before is not done yet, it is waited for.
        """
        self.wait()
        facts = [header.generation, header.step, header.length, header.own, header.crc32]
        state = {f"payload{self.rank}": payload, f"header{self.rank}": torch.tensor(facts)}
        path = self.folder / f"step{header.step:010d}"
        writing = dcp.async_save(state, checkpoint_id=path, process_group=self.group)
        self._writing = cast("Future", writing)

    def wait(self) -> None:
        """Let what is being written end; of older ones only the one before it stays."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None
        if self.rank == 0:
            for path in self.whole()[:-2]:
                shutil.rmtree(path, ignore_errors=True)

    def whole(self) -> list[Path]:
        """Those that were written to their end, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if (path / ".metadata").is_file())

    def read(self, path: Path) -> tuple[Header, Tensor]:
        """This process's payload; every process has to call it.

        Raises:
            ValueError: it is damaged.
        """
        metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        written = cast("TensorStorageMetadata", metadata[f"payload{self.rank}"])
        payload = torch.empty(written.size, dtype=torch.uint8)
        state = {f"payload{self.rank}": payload, f"header{self.rank}": torch.zeros(5).long()}
        dcp.load(state, checkpoint_id=path, process_group=self.group)
        header = Header(*state[f"header{self.rank}"].tolist())
        if checksum(payload) != header.crc32:
            raise ValueError(f"{path}: this snapshot is damaged")
        return header, payload

    def remove(self) -> None:
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
