"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["lazy"]


def lazy(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """What a package's ``__all__``, ``__getattr__`` and ``__dir__`` shall be.

    The names and their modules are those that its ``__init__.py`` imports for type checkers, in
    ``if TYPE_CHECKING:``.

    Args:
        package: its ``__name__``.

    Example:
        >>> from vizoo.nas import search
        >>> search.__all__[:2]
        ['Agreement', 'Constraint']
    """
    modules = {
        name.name: "." * node.level + (node.module or "")
        for block in ast.parse(inspect.getsource(sys.modules[package])).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return sorted(modules), get, names
