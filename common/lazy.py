"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["lazy"]


def lazy(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """What a package's ``__all__``, ``__getattr__`` and ``__dir__`` shall be.

    Args:
        package: its ``__name__``.
        homes: module, relative to the package, to the public names that it has.

    Example:
        >>> __all__, __getattr__, __dir__ = lazy("vizoo.common", {".files": ["atomic_write"]})
        >>> __all__
        ['atomic_write']
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return sorted(modules), get, names
