"""Warnings as values: what a call has to say beside its result."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["collect_warnings"]


@contextmanager
def collect_warnings(own_thread: bool = False) -> Iterator[list[str]]:
    """Collect the warnings of a block that are for the user, each once.

    Warnings are the process's: no two threads may be in such blocks at once.

    Args:
        own_thread: leave those of other threads to whom they would go without the block.
    """
    notes: list[str] = []
    thread = threading.get_ident() if own_thread else None
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def collect(
            message: Warning | str, category: type[Warning], *place: Any, **how: Any
        ) -> None:
            if thread not in (None, threading.get_ident()):
                show(message, category, *place, **how)
            elif category is UserWarning and str(message) not in notes:
                notes.append(str(message))

        warnings.showwarning = collect
        yield notes
