"""Folders that keep what data sets have read or made: bounded, shared, on disk or in memory."""

from __future__ import annotations

import atexit
import math
import os
import shutil
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Literal, cast

from filelock import FileLock

from ..common.files import write_bytes
from ..common.memory import available_memory
from ..vision.hub.download import cache_folder

if sys.platform != "win32":
    import fcntl

__all__ = ["Shelf", "open_shelf"]

_FREE = 0.1  # share of a disk that is left
_ROOM = 0.9  # of the limit, down to which old files go at once
_BLOCK = 4096  # bytes in which files take room
_PORTION = 16_000_000  # bytes that a process counts in at once
_SHARE = 1 / 256  # of the limit, which is the most for that
_DISK = 20_000_000_000
_MEMORY = 0.25  # of what is available
_SHARED = Path("/dev/shm")
_held: dict[Path, int] = {}


class Shelf:
    """A folder of files, which any number of processes may read and write at once.

    Beyond the limit those go that were not used for longest, but none that was used since the
    shelf was opened: then no more are kept. What is larger than its cache would otherwise throw
    each sample out shortly before it comes round again.

    Args:
        folder: made when something is kept.
        limit: bytes, kept to within 16 MB a process; None for nine tenths of the disk, which no
            shelf goes beyond.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: float | None = None) -> None:
        self.folder, self.limit = Path(folder), limit
        self.full = False  #: whether this process keeps no more
        self._opened = time.time()
        self._reserved = 0

    def read(self, name: str) -> bytes | None:
        """The file of a name, from now on the last one used; None if there is none."""
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if self.limit is not None:
            with suppress(OSError):  # of a folder that others keep
                os.utime(path)
        return data

    def write(self, name: str, data: bytes) -> None:
        """Keep a file where there is room.

        A folder that is full, or cannot be written to, gives a warning.
        """
        if self.full:
            return
        try:
            self.full = not self._room(_taken(len(data)))
            if not self.full:
                write_bytes(self.folder / name, data)
        except OSError as error:
            warnings.warn(f"cache {self.folder}: {error}; samples are not kept", stacklevel=3)
            self.full = True

    def drop(self, name: str) -> None:
        """Remove a file that is damaged."""
        with suppress(OSError):
            (self.folder / name).unlink()

    def _room(self, wanted: int) -> bool:
        if self._reserved < wanted:
            least = wanted - self._reserved
            portion = max(least, int(min(_PORTION, _SHARE * (self.limit or math.inf))))
            if not self._reserve(portion):
                return False
            self._reserved += portion
        self._reserved -= wanted
        return True

    def _reserve(self, wanted: int) -> bool:
        there = next(f for f in (self.folder, *self.folder.parents) if f.is_dir())
        disk = shutil.disk_usage(there)
        free = disk.free > _FREE * disk.total
        if free and self.limit is None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            known = self.folder / ".full"  # to this process or others that have this shelf
            if known.is_file() and known.read_text() == str(self._opened):
                return False
            if free and self._count_in(wanted, cast("float", self.limit)):
                return True
            known.write_text(str(self._opened))
        why = f"its {self.limit or 0:,.0f} bytes are taken; raise cache_size"
        if not free:
            docker = " (Docker's by --shm-size), or take cache: disk"
            why = f"nine tenths of its disk's {disk.total:,} bytes are taken; make room there"
            why += docker if self.folder.is_relative_to(_SHARED) else ""
        from lightning.pytorch.utilities.rank_zero import rank_zero_warn  # takes seconds

        rank_zero_warn(f"cache {self.folder}: full, so that other samples are read anew: {why}")
        return False

    def _count_in(self, wanted: int, limit: float) -> bool:
        """Add `wanted` bytes to the count beside the files, having made room for them."""
        counted = self.folder / ".bytes"
        try:
            total = int(counted.read_text())
        except (OSError, ValueError):
            total = self._tidy(limit)
        if total + wanted > limit:
            total = self._tidy(_ROOM * limit - wanted)
        fits = total + wanted <= limit
        counted.write_text(str(total + wanted * fits))
        return fits

    def _tidy(self, limit: float) -> int:
        """Remove files until no more than `limit` bytes or recent ones are left; return bytes."""
        files = []
        for path in self.folder.rglob("*"):
            if path.name not in (".lock", ".bytes", ".full"):
                try:
                    state = path.stat()
                except FileNotFoundError:  # it was written, and has its name by now
                    continue
                if not path.is_dir():
                    files.append((state.st_mtime, _taken(state.st_size), path))
        total = sum(size for _, size, _ in files)
        for used, size, path in sorted(files):
            if total <= limit or used >= self._opened:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total


def open_shelf(kind: Literal["memory", "disk"], limit: float | None = None) -> Shelf:
    """The shelf of this user in memory, or on disk.

    In memory it is shared by the processes that have it open, and gone with the last of them; one
    that was killed leaves it to whoever opens it next. On disk it is ``samples`` beside downloaded
    weights, in ``$VIZOO_HOME`` or the platform's folder for caches.

    Args:
        kind: where samples are kept, as said above.
        limit: bytes; by default a quarter of the memory that is available, or 20 GB of disk.

    Raises:
        ValueError: an unknown kind, or memory where the system has no ``/dev/shm``.
        OSError: there is no folder for caches, or another user has taken the one in memory.
    """
    if kind == "disk":
        return Shelf(cache_folder().with_name("samples"), _DISK if limit is None else limit)
    if kind != "memory":
        raise ValueError(f"cache {kind!r}: choose memory or disk")
    if sys.platform == "win32" or not _SHARED.is_dir():
        raise ValueError(f"cache memory: {_SHARED} is missing, as on all but Linux; choose disk")
    if limit is None:
        limit = _MEMORY * (available_memory() or 0)
    folder = _SHARED / f"vizoo-samples-{os.getuid()}"
    _hold(folder)
    return Shelf(folder, limit)


def _taken(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _hold(folder: Path) -> None:
    """Keep a folder until the last process ends that holds it."""
    if folder in _held:
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"cache memory: {folder} belongs to another user; choose disk")
    handle = os.open(folder, os.O_RDONLY)
    _empty(folder, handle)  # of one who was killed
    fcntl.flock(handle, fcntl.LOCK_SH)
    _held[folder] = handle
    atexit.register(_release, folder, os.getpid())


def _release(folder: Path, process: int) -> None:
    handle = _held.pop(folder, None)
    if handle is None or process != os.getpid():
        return
    _empty(folder, handle)
    os.close(handle)


def _empty(folder: Path, handle: int) -> None:
    """Remove what is in a folder, unless other processes hold it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
