"""Snapshots in memory that outlive their process: two files in turns, each with a checked header.

A file begins with a page for the header, which is written last and emptied first: a copy that a
killed process left half done has no valid header, and the other file still has the one before.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import time
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

__all__ = ["Buffers", "Header", "checksum"]

_PAGE = 4096
_MAGIC = b"vizoo-1\n"
_NEEDED = 2.4
"""Two buffers and room to grow: memory must have so many times the size of a snapshot."""

_GROWTH = 1.1
_WAIT = 5.0


@dataclass(frozen=True)
class Header:
    """What a buffer holds."""

    generation: int  #: number of the snapshot, the same in all processes
    step: int  #: optimiser steps before it
    length: int  #: bytes of the payload
    own: int  #: bytes of the payload that belong to this process alone; they come first
    crc32: int  #: of the payload
    parity: int = 0  #: bytes of parity behind the payload
    parity_crc32: int = 0  #: of these
    #: for each process of the parity group length, `own` and checksum of its payload
    members: tuple[tuple[int, int, int], ...] = ()


def checksum(content: Tensor) -> int:
    """CRC-32 of bytes (N,)."""
    return zlib.crc32(content.numpy().data)


class Buffers:
    """The two buffers of one process in a memory file system, in a folder for this user alone.

    Raises:
        ValueError: the folder belongs to someone else, or another process uses the buffers.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
            raise ValueError(f"{folder}: not a folder of this user alone; remove it")
        self.folder = folder
        self.paths = [folder / f"rank{rank}.{number}" for number in (0, 1)]
        self._lock = open(folder / f"rank{rank}.lock", "w")  # noqa: SIM115 - held to the end
        end = time.monotonic() + _WAIT
        while True:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise ValueError(
                        f"{folder}: another process keeps snapshots of this very run there; end "
                        "it, or give this run a name of its own (run)"
                    ) from error
                time.sleep(0.1)
        self._open: Tensor | None = None

    def held(self) -> dict[int, Header]:
        """The whole snapshots that are there, by generation."""
        headers = [_header(path) for path in self.paths]
        return {header.generation: header for header in headers if header is not None}

    def read(self, generation: int) -> tuple[Tensor, Tensor]:
        """Payload and parity of a snapshot that is held, as copies.

        Raises:
            KeyError: it is not held.
        """
        for path in self.paths:
            header = _header(path)
            if header is not None and header.generation == generation:
                content = _mapped(path)[_PAGE:].clone()
                return content[: header.length], content[header.length :][: header.parity]
        raise KeyError(generation)

    def has_room(self, size: int, processes: int) -> bool:
        """Whether memory has room for two snapshots of `size` bytes of each local process."""
        own = [path.stat().st_size for path in self.paths if path.exists()]
        if len(own) == 2 and min(own) >= _PAGE + size:
            return True
        taken = sum(path.stat().st_size for path in self.folder.glob("rank*.[01]"))
        return shutil.disk_usage(self.folder).free + taken >= _NEEDED * size * processes

    def begin(self, size: int, keep: int | None) -> Tensor:
        """Room for a payload and its parity (size,), in the buffer that does not hold `keep`.

        Raises:
            OSError: memory is full.
        """
        first = _header(self.paths[0], whole=False)
        path = self.paths[first is not None and first.generation == keep]
        if not path.exists() or path.stat().st_size < _PAGE + size:
            path.unlink(missing_ok=True)
            with open(path, "xb") as file:  # reserved now: later a full memory ends the process
                os.posix_fallocate(file.fileno(), 0, _PAGE + int(size * _GROWTH))
        content = _mapped(path)
        content[:_PAGE] = 0
        self._open = content
        return content[_PAGE : _PAGE + size]

    def seal(self, header: Header) -> None:
        """Make what was written since `begin` a snapshot."""
        text = json.dumps(asdict(header)).encode()
        page = _MAGIC + zlib.crc32(text).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text
        if len(page) > _PAGE:
            raise ValueError(
                f"{len(header.members)} processes share parity: make parity_group less"
            )
        content = cast("Tensor", self._open)
        content[: len(page)] = torch.frombuffer(bytearray(page), dtype=torch.uint8)
        self._open = None

    def remove(self, others: bool = False) -> None:
        """Delete the snapshots of this process, or with `others` those of all on this machine."""
        for path in self.folder.iterdir() if others else (*self.paths, Path(self._lock.name)):
            path.unlink(missing_ok=True)
        self._lock.close()
        with suppress(OSError):  # other processes' are still there
            self.folder.rmdir()


def _mapped(path: Path) -> Tensor:
    size = path.stat().st_size
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def _header(path: Path, whole: bool = True) -> Header | None:
    """The header of a buffer; None where there is none, or, with `whole`, nothing that fits it."""
    if not path.exists() or path.stat().st_size < _PAGE:
        return None
    content = _mapped(path)
    page = content[:_PAGE].numpy().tobytes()
    length = int.from_bytes(page[12:16], "big")
    text = page[16 : 16 + length]
    if page[:8] != _MAGIC or zlib.crc32(text) != int.from_bytes(page[8:12], "big"):
        return None
    header = Header(**json.loads(text))
    payload, rest = content[_PAGE:][: header.length], content[_PAGE + header.length :]
    if whole and (
        checksum(payload) != header.crc32 or checksum(rest[: header.parity]) != header.parity_crc32
    ):
        return None
    return header
