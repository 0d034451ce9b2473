"""A progress bar on stderr; none where stderr is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


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
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # A slow step now and then would make the estimate jump.
    progress = Progress(
        *columns, console=console, disable=not console.is_interactive, speed_estimate_period=120
    )
    task = progress.add_task(what, total=None)
    with progress:
        yield lambda done, total: progress.update(task, completed=done, total=total)
