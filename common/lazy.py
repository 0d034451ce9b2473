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
    ``if TYPE_CHECKING:``; so its source has to be there.

    Args:
        package: its ``__name__``.

    Raises:
        ImportError: its source cannot be read.

    Example:
        >>> from vizoo.nas import search
        >>> search.__all__[:2]
        ['Agreement', 'Constraint']
    """
    try:
        source = inspect.getsource(sys.modules[package])
    except OSError as error:
        raise ImportError(f"{package} needs the source of its __init__.py: {error}") from error
    places = {
        alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, inner = places[name]
        value = getattr(importlib.import_module(module, package), inner)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(places), get, lambda: sorted({*vars(sys.modules[package]), *places})
