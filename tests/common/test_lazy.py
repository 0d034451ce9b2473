"""Names of a package that are imported when they are first asked for."""

import importlib
import py_compile
import sys

import pytest

DOOR = """
import sys
from typing import TYPE_CHECKING
from vizoo.common.lazy import lazy
__all__, __getattr__, __dir__ = lazy(__name__)
if TYPE_CHECKING:
    from .inner import one, two as deux
if sys.platform:
    from math import pi
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder on the path with a package of lazy names, forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "vizoo_lazy_door"
    folder.mkdir()
    (folder / "__init__.py").write_text(DOOR)
    (folder / "inner.py").write_text("one, two = 1, 2")
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def test_names_are_those_for_type_checkers(package):
    door = importlib.import_module(package.name)
    assert door.__all__ == ["deux", "one"] and "one" not in vars(door)
    assert (door.one, door.deux) == (1, 2) and {"one", "deux", "pi"} <= set(dir(door))
    with pytest.raises(AttributeError, match="has no attribute 'two'"):
        _ = door.two


def test_without_source_one_line_says_so(package):
    door = package / "__init__.py"
    py_compile.compile(str(door), cfile=str(package / "__init__.pyc"))
    door.unlink()
    with pytest.raises(ImportError, match="vizoo_lazy_door needs the source of its __init__.py"):
        importlib.import_module(package.name)
