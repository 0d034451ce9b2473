"""Progress of work that takes longer than two seconds, and less of what others tell."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

__all__ = ["progress", "progress_bar", "quiet"]

_INTERVAL = 30.0  # seconds between lines where there is no bar


@contextmanager
def progress() -> Iterator[Callable[..., None]]:
    """Yield ``report(what, done, total, note="")``, which moves a bar on stderr.

    ``total`` is None as long as it is not known. Each ``what`` has a bar of its own, with its note
    behind it, such as a speed. Where stderr is no terminal, a line is printed every half minute.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar, note = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()), "{task.fields[note]}"
    columns = ("{task.description}", *bar, note)
    console = Console(stderr=True)
    if not console.is_interactive:
        yield _lines()
        return
    tasks = {}
    with Progress(
        *columns,
        console=console,
        # A slow step now and then would make the estimate jump.
        speed_estimate_period=120,
        # What is printed meanwhile stays on stdout where that is a file.
        redirect_stdout=sys.stdout.isatty(),
    ) as bars:

        def report(what: str, done: int, total: int | None, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, note=note)
            bars.update(tasks[what], completed=done, total=total, note=note)

        yield report


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield ``tell(done, total)``: `progress` of one thing.

    Example:
        >>> with progress_bar("subnets") as tell:
        ...     tell(3, 100)
    """
    with progress() as report:
        report(what, 0, None)  # a bar at once, before anything is done
        yield partial(report, what)


def _lines() -> Callable[..., None]:
    begin = said = time.monotonic()

    def report(what: str, done: int, total: int | None, note: str = "") -> None:
        nonlocal said
        if total is None and not note:
            return
        now = time.monotonic()
        if (total is None or done < total) and now - said >= _INTERVAL:
            said = now
            count = f"{done}" if total is None else f"{done} of {total}"
            told = f", {note}" if note else ""
            sys.stderr.write(f"vizoo: {what}: {count}, {now - begin:.0f} s{told}\n")

    return report


@contextmanager
def quiet(names: Iterable[str]) -> Iterator[None]:
    """Let loggers of these names tell of errors alone."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
