"""What commands that work for minutes share: progress, warnings in one line, the folder."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["check_folder", "collect_warnings", "progress", "warn"]

_INTERVAL = 30.0  # seconds between lines where there is no bar


def check_folder(name: str) -> Path:
    """Return the folder that results go to, which need not exist yet.

    Raises:
        ValueError: it could not be made or written to.
    """
    if not name:
        raise ValueError("--out is empty; name a folder (`.` for this one)")
    out = Path(name)
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise ValueError(f"--out {out}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--out {out}: {there} is not writable; name another folder")
    return out


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of a block that are for the user, each once."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    found = [str(warning.message) for warning in caught if warning.category is UserWarning]
    notes += dict.fromkeys(found)


def warn(message: str) -> None:
    """Print a warning as one line on stderr."""
    print(f"vizoo: warning: {message}", file=sys.stderr)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield ``report(what, done, total)``, which moves a bar on stderr where that is a terminal.

    Each ``what`` has a bar of its own. Elsewhere it prints a line every half minute.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_interactive:
        yield _lines()
        return
    tasks = {}
    with Progress(*columns, console=console) as bars:

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def _lines() -> Callable[[str, int, int], None]:
    begin = said = time.monotonic()

    def report(what: str, done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if done < total and now - said >= _INTERVAL:
            said = now
            print(f"vizoo: {what}: {done} of {total}, {now - begin:.0f} s", file=sys.stderr)

    return report
