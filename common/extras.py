"""Packages that only some commands need: each is brought by an extra of vizoo."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["from_extra", "installs"]


def installs(extra: str) -> str:
    """The command that brings an extra, as all messages and documents spell it."""
    return f"pip install 'vizoo[{extra}]'"


def from_extra(extra: str, module: str, what: str) -> ModuleType:
    """Import a module of a package that comes with an extra.

    Args:
        extra: its name in pyproject.toml.
        module: dotted name.
        what: who needs it, for the message.

    Raises:
        ImportError: the package is not installed; the message says how to get it.

    Example:
        >>> from_extra("no", "no_such_package", "this example")
        Traceback (most recent call last):
        ImportError: this example needs no_such_package: pip install 'vizoo[no]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package}: {installs(extra)}") from error
