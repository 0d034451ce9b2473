"""Work that ends in its own time when it is asked to end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["ended_by_sigterm", "noted_signals"]

_ASKING = ("SIGINT", "SIGTERM", "SIGHUP")
_INSISTING = 3  # signals


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM ends the process, with 143; where it is ignored it stays so.

    Lightning's loops would end with 0, or in a last batch go on. For the main thread.
    """
    before = signal.getsignal(signal.SIGTERM)
    heard = before not in (signal.SIG_IGN, None)
    if heard:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        if heard:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yield a list that Ctrl+C, SIGTERM and SIGHUP are noted in, instead of what they do else.

    The third one raises KeyboardInterrupt. Signals that are ignored, as under nohup, stay so. For
    the main thread.
    """
    noted: list[int] = []
    shown = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if number != signal.SIGINT and number != signal.SIGTERM:
            for terminal in shown:  # is gone, and whatever is printed would fail
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
        if len(noted) >= _INSISTING:
            raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in _ASKING if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]
    try:
        for number in heard:
            signal.signal(number, note)
        yield noted
    finally:
        for number in heard:
            signal.signal(number, before[number])
