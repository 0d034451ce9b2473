"""Fixtures of the data tests."""

from __future__ import annotations

from types import ModuleType

import pytest
import trees as _trees


@pytest.fixture(scope="session")
def trees() -> ModuleType:
    """The writers of miniature data sets."""
    return _trees
