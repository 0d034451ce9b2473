"""A progress bar on stderr; where that is no terminal, a line every half minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]

_INTERVAL = 30.0  # seconds between lines


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to be told how many of how many are done.

    Example:
        >>> with progress_bar("subnets") as tell:
        ...     tell(3, 100)
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_interactive:
        yield _lines(what)
        return
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # A slow step now and then would make the estimate jump.
    progress = Progress(*columns, console=console, speed_estimate_period=120)
    task = progress.add_task(what, total=None)
    with progress:
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _lines(what: str) -> Callable[[int, int], None]:
    begin = said = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if done < total and now - said >= _INTERVAL:
            said = now
            print(f"vizoo: {what}: {done} of {total}, {now - begin:.0f} s", file=sys.stderr)

    return tell
