"""Fixtures of the tests of distribution."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture
def benchmark(root, monkeypatch):
    """A module of the benchmarks by name; they are no part of the package."""
    monkeypatch.syspath_prepend(str(root))
    return lambda name: importlib.import_module(f"benchmarks.{name}")
