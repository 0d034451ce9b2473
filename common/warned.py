"""Warnings as values: what a call has to say beside its result."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collect_warnings"]


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of a block that are for the user, each once."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    messages = [str(warning.message) for warning in caught if warning.category is UserWarning]
    notes += dict.fromkeys(messages)
