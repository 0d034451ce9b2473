"""The folder of a few-shot training: the tree, checkpoints, and who trains which node."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from filelock import FileLock, Timeout
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from ...common.files import atomic_write
from ..space import SearchSpace
from .tree import ROOT, Split, SplitTree, parent_name

__all__ = ["TreeFolder"]

_PAUSE = 0.5
_SIGN_EVERY = 5.0
_OF_SPLITS = ("tree", "splitter.")


class TreeFolder:
    """A tree of splits and the checkpoints of its nodes, made by one process or by several.

    What a process trains it holds by a lock of the operating system, which ends with the process
    however that ends; whoever comes next takes the node over. Others wait `patience` seconds
    without a sign of life of the process that trains a node.
    """

    def __init__(
        self, path: str | os.PathLike[str], space: SearchSpace, patience: float = 1800.0
    ) -> None:
        self.path = Path(path)
        self.space = space
        self.patience = patience
        self._about: dict[str, Any] | None = None
        self._held: tuple[FileLock, Path] | None = None
        self._signed = 0.0

    def open(self, about: Mapping[str, Any], resumed: bool = False) -> None:
        """Begin a training here, or go on with the one that the folder holds.

        All on which its results depend has to be as `about` says; how splits are found may change
        until there is one.

        Raises:
            FileNotFoundError: it is resumed, and not there.
            ValueError: the folder holds a training with other settings; they are named.
        """
        own = json.loads(json.dumps(dict(about), default=lambda value: type(value).__name__))
        self._about = own
        (self.path / ".locks").mkdir(parents=True, exist_ok=True)
        with self._lock("tree"):
            if resumed or self._tree.exists():
                self._compare(self.read(), own)
            else:
                tree = SplitTree(self.space)
                tree.about = own
                tree.save(self._tree)

    def read(self) -> SplitTree:
        """The tree as it is now."""
        return SplitTree.load(self._tree, self.space)

    def left(self, names: Sequence[str]) -> list[str]:
        """Those of these nodes that are not trained yet."""
        trained = self.read().checkpoints
        return [name for name in names if name not in trained]

    def checkpoint(self, name: str) -> Path:
        """The file of a node's weights."""
        return self.path / f"{name}.ckpt"

    def start(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The weights that the root started from: the first ones ever given."""
        path = self.path / "start.pt"
        with self._lock("tree"):
            if not path.exists():
                with atomic_write(path) as temporary:
                    torch.save(dict(state or {}), temporary)
        return _read(path)

    def weights(self, name: str) -> dict[str, Any]:
        """The checkpoint of a trained node.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it is damaged.
        """
        return _read(self.checkpoint(name))

    def claim(self, names: Sequence[str], check: Callable[[], object] | None = None) -> str | None:
        """Take a node whose parent is trained; wait where other processes have all of these.

        In a wait `check` is called again and again, which ends it by an exception.

        Returns:
            Its name, or None where all are trained.

        Raises:
            TimeoutError: what others train makes no progress; who trains it is named.
        """
        seen, since = None, 0.0
        while left := self.left(names):
            ready = [name for name in left if name == ROOT or parent_name(name) not in left]
            for name in ready:
                if self.take(name):
                    return name
            signs, now = (len(left), *map(self._sign, ready)), time.monotonic()
            if seen is None:
                rank_zero_info(f"waiting for node {ready[0]}, which {self.holder(ready[0])} trains")
            if signs != seen:
                seen, since = signs, now
            elif now - since > self.patience:
                raise TimeoutError(
                    f"{self.path}: waited {self.patience:g} s for node {ready[0]} without a sign "
                    f"of life of {self.holder(ready[0])}, which trains it: end that process, and "
                    "start this one again to take the node over"
                )
            if check is not None:
                check()
            time.sleep(_PAUSE)
        return None

    def take(self, name: str) -> bool:
        """Hold a node, unless it is trained or another process holds it.

        Raises:
            ValueError: the splits were found with other settings, see `open`.
        """
        lock, holder = self._lock(name), self._holder(name)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        tree = self.read()
        if name in tree.checkpoints:
            lock.release()
            return False
        if self._about is not None:
            self._compare(tree, self._about)
        if holder.exists():
            rank_zero_info(f"node {name} was left by {self.holder(name)}")
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        self._held = (lock, holder)
        return True

    def holder(self, name: str) -> str:
        """Who holds a node."""
        try:
            return self._holder(name).read_text() or "another process"
        except OSError:
            return "another process"

    def sign(self) -> None:
        """Tell waiting processes that training goes on; to be called often."""
        now = time.monotonic()
        if self._held is not None and now - self._signed > _SIGN_EVERY:
            os.utime(self._held[1])
            self._signed = now

    def finish(self, name: str, split: Split | None) -> None:
        """Enter a node whose checkpoint is written, with its split unless it is a leaf; let go."""
        with self._lock("tree"):
            tree = self.read()
            if split is not None:
                if self._about is not None and not tree.splits:
                    tree.about = self._about
                tree.split(name, split)
            tree.checkpoints[name] = self.checkpoint(name).name
            tree.save(self._tree)
        self.release()

    def release(self) -> None:
        """Let go of the node that is held, if there is one."""
        if self._held is not None:
            lock, holder = self._held
            holder.unlink(missing_ok=True)
            lock.release()
            self._held = None

    @property
    def _tree(self) -> Path:
        return self.path / "tree.json"

    def _holder(self, name: str) -> Path:
        return self.path / ".locks" / f"{name}.held"

    def _lock(self, name: str) -> FileLock:
        return FileLock(self.path / ".locks" / f"{name}.lock", thread_local=False)

    def _sign(self, name: str) -> float:
        try:
            return self._holder(name).stat().st_mtime
        except OSError:
            return 0.0

    def _compare(self, tree: SplitTree, own: Mapping[str, Any]) -> None:
        there = tree.about
        differing = [
            f"{key} is {there.get(key)!r} there and {own.get(key)!r} here"
            for key in {**own, **there}
            if there.get(key) != own.get(key) and (tree.splits or not key.startswith(_OF_SPLITS))
        ]
        if differing:
            raise ValueError(
                f"{self._tree}: a tree of another training: {'; '.join(differing)}; name another "
                "folder"
            )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, from whose weights nodes start")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, UnpicklingError) as error:
        reason = str(error).partition(". ")[0] or type(error).__name__
        raise ValueError(f"{path}: a damaged checkpoint ({reason}); name another folder") from error
