"""A tiny family of networks, registered for one test."""

import sys
import types

import pytest
from loopback import Hub, Plain, closed_port, serving
from torch import nn

from vizoo.vision.hub import _http, registry


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


@pytest.fixture
def theirs(family):
    """A network, and its weights as its authors called them, which the family converts."""

    def convert_published(state):
        if "theirs.weight" not in state:
            raise ValueError("no theirs.weight")
        return "dummy_small", {"width": 3}, {k.replace("theirs", "first"): state[k] for k in state}

    family.convert_published = convert_published
    net = registry.build_model("dummy_small", {"width": 3})
    return net, {key.replace("first", "theirs"): value for key, value in net.state_dict().items()}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Empty caches, no token, nothing that forbids or redirects the network."""
    forbids = ("VIZOO_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    for name in (*forbids, "HF_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(_http, "_PAUSE", 0.001)
    return tmp_path / "home"


@pytest.fixture
def server(home):
    """A plain server on the loopback."""
    with serving(Plain()) as running:
        yield running


@pytest.fixture
def hub(home, tmp_path, monkeypatch):
    """A Hub on the loopback, which `huggingface_hub` takes for the real one."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serving(Hub()) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url(""))
        yield running


@pytest.fixture
def closed(home):
    """A port on which nobody listens."""
    with closed_port() as port:
        yield port
