"""Snapshots on a disk, written by PyTorch's distributed checkpoints while training goes on."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from .buffers import Header, checksum

__all__ = ["DiskSnapshots"]


class DiskSnapshots:
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
        """Delete them."""
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
