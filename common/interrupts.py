"""Work that ends in its own time when it is asked to end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["ended_by_sigterm", "noted_signals", "raised_interrupts"]

_ASKING = ("SIGINT", "SIGTERM", "SIGHUP")
_INSISTING = 3  # signals
_AGAIN = 0.1  # seconds


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM ends the process, with 143; where it is ignored it stays so.

    Lightning's loops would end with 0, or in a last batch go on. For the main thread.
    """
    heard: list[int] = []

    def end(number: int, frame: Any) -> None:
        heard.append(number)
        sys.exit(128 + number)

    with _heard(end, "SIGTERM"):
        try:
            yield
        except RuntimeError:
            if not heard:
                raise
            # A loader's: a signal to the whole group kills its processes, too.
            raise SystemExit(128 + heard[0]) from None


@contextmanager
def raised_interrupts() -> Iterator[None]:
    """Within the block Ctrl+C raises KeyboardInterrupt out of a Lightning trainer too.

    A trainer would end the program with exit code 1, and leave the signal ignored. One that falls
    where Python can raise nothing, as while a loader's process is forked, comes again.
    """
    before = signal.getsignal(signal.SIGINT)
    process, hook = os.getpid(), sys.unraisablehook

    def come_again(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            hook(lost)
        elif os.getpid() == process:  # not in what was forked
            threading.Timer(_AGAIN, os.kill, (process, signal.SIGINT)).start()

    sys.unraisablehook = come_again
    try:
        yield
    except SystemExit as stop:
        if not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, before)
        raise stop.__context__ from None
    finally:
        sys.unraisablehook = hook


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yield a list that Ctrl+C, SIGTERM and SIGHUP are noted in, instead of what they do else.

    The third one raises KeyboardInterrupt. Signals that are ignored, as under nohup, stay so. For
    the main thread.
    """
    noted: list[int] = []
    shown = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        if number != signal.SIGINT and number != signal.SIGTERM:
            for terminal in shown:  # is gone, and whatever is printed would fail
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
        if len(noted) >= _INSISTING:
            raise KeyboardInterrupt

    with _heard(note, *_ASKING):
        yield noted


@contextmanager
def _heard(handler: Callable[[int, Any], Any], *names: str) -> Iterator[None]:
    """Within the block signals are handled so, but for those that are ignored."""
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {n: old for n in known if (old := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
