"""A tiny family of networks, registered for one test."""

import sys
import types

import pytest
from torch import nn

from vizoo.vision.hub import registry


class Dummy(nn.Module):
    """Two convolutions."""

    def __init__(self, depth: int, width: int = 2):
        super().__init__()
        if width < 1:
            raise ValueError("width must be positive")
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.rest = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))

    def forward(self, left, right):
        x = self.first(left - right)
        for layer in self.rest:
            x = layer(x)
        return x.mean(1, keepdim=True)


@pytest.fixture
def family(monkeypatch):
    """Register the family `dummy` as the only one; yields its module."""
    module = types.ModuleType("vizoo.dummies")
    monkeypatch.setitem(sys.modules, "vizoo.dummies", module)
    monkeypatch.setattr(registry, "FAMILIES", {"dummy": "dummies"})
    monkeypatch.setattr(registry, "_ENTRIES", {})

    def dummy_small(width: int = 2) -> nn.Module:
        """A small network."""
        return Dummy(1, width)

    def dummy_deep(*, width: int = 4) -> nn.Module:
        """A deep network."""
        return Dummy(3, width)

    for function in (dummy_small, dummy_deep):
        function.__module__ = module.__name__
        registry.register_model(task="toy")(function)
    return module
