"""Fixtures of the data tests."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import trees as _trees


@pytest.fixture(scope="session")
def trees() -> ModuleType:
    """The writers of miniature data sets."""
    return _trees


@pytest.fixture
def line() -> Callable:
    """Calls what has to fail, and returns its message, which has to be one line."""

    def said(make: Callable, kind: type = ValueError) -> str:
        with pytest.raises(kind) as error:
            make()
        assert "\n" not in str(error.value)
        return str(error.value)

    return said
