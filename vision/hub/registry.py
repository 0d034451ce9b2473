"""The registry of networks: names are strings until somebody asks for one.

A model file registers its variants with :func:`register_model`; ``FAMILIES`` says which file a
name lives in (the family is the name's first word), so that nothing but that file is imported.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "FAMILIES",
    "ModelEntry",
    "create_model",
    "family_modules",
    "list_models",
    "model_info",
    "register_model",
]

PACKAGE = __name__.rpartition(".vision.")[0]
ROOT = Path(__file__).resolve().parents[2]

FAMILIES: dict[str, str] = {"easnet": "stereo.easnet", "fadnet": "stereo.fadnet"}
"""Family (first word of a model's name) to the module that registers it, inside the package."""

_ENTRIES: dict[str, ModelEntry] = {}
_FILE_SUFFIXES = (".safetensors", ".ckpt", ".pth", ".pt", ".tar", ".bin")


@dataclass(frozen=True)
class ModelEntry:
    """One registered network.

    Attributes:
        name: what `create_model` takes.
        task: for example ``"stereo"``.
        function: builds the network from its architecture arguments.
        weights: safetensors file of trained weights, relative to the package folder, or None.
    """

    name: str
    task: str
    function: Callable[..., nn.Module]
    weights: str | None = None

    @property
    def module(self) -> str:
        """The module that registered it."""
        return self.function.__module__

    @property
    def weights_path(self) -> Path | None:
        """Where its trained weights lie, or None where there are none on this machine."""
        path = ROOT / self.weights if self.weights else None
        return path if path is not None and path.is_file() else None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the architecture arguments."""
        return tuple(inspect.signature(self.function).parameters)


def register_model(
    *, task: str, weights: str | None = None
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Register the decorated function as the model of its own name.

    Args:
        task: the task's name, such as ``"stereo"``.
        weights: safetensors file with trained weights, relative to the package folder.

    Raises:
        ValueError: another function holds the name, or the name's first word is no family.
    """

    def register(function: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        name = function.__name__
        if name.split("_")[0] not in FAMILIES:
            raise ValueError(f"model {name!r}: its first word is not a family in FAMILIES")
        held = _ENTRIES.get(name)
        if held is not None and held.module != function.__module__:
            raise ValueError(f"model {name!r} is registered by {held.module} already")
        _ENTRIES[name] = ModelEntry(name, task, function, weights)
        return function

    return register


def create_model(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    **architecture: Any,
) -> nn.Module:
    """Build a network by name.

    Args:
        name: one of `list_models()`.
        pretrained: load the trained weights that come with the package.
        weights: load this file instead (``save_weights`` or a Lightning checkpoint). Its
            architecture arguments hold where ``architecture`` does not say otherwise.
        **architecture: the network's own arguments.

    Returns:
        The network, with ``model.architecture = {"name": name, **architecture}``.

    Raises:
        ValueError: unknown name or argument, no trained weights, or weights that do not fit.
        FileNotFoundError: ``weights`` does not exist.

    Example:
        >>> net = create_model("fadnet_plus_tiny", maxdisp=256)
    """
    entry = model_info(name)
    if pretrained and weights is not None:
        raise ValueError(f"{name}: give either pretrained=True or weights=FILE, not both")
    if pretrained:
        weights = entry.weights_path
        if weights is None:
            have = ", ".join(list_models(pretrained=True)) or "none"
            raise ValueError(
                f"{name} has no pretrained weights (models that have: {have}); "
                "train it or pass weights=FILE"
            )
    if weights is None:
        return _build(entry, architecture)

    from .weights import load_state, read_weights

    stored = read_weights(weights)
    if stored.name != name:
        raise ValueError(
            f"{os.fspath(weights)}: holds weights of {stored.name}, not of {name}; "
            f"use create_model({stored.name!r}, weights=…) or load_weights(…)"
        )
    model = _build(entry, {**stored.architecture, **architecture})
    load_state(model, stored.state, os.fspath(weights))
    return model


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Names of the registered models, sorted.

    Args:
        pattern: shell pattern on the name (``"fadnet_plus_*"``) or on ``task/name``
            (``"stereo/*"``).
        pretrained: only models whose trained weights are here.
    """
    for module in family_modules():
        importlib.import_module(module)
    return sorted(
        entry.name
        for entry in _ENTRIES.values()
        if fnmatchcase(f"{entry.task}/{entry.name}" if "/" in pattern else entry.name, pattern)
        and (not pretrained or entry.weights_path is not None)
    )


def model_info(name: str) -> ModelEntry:
    """The entry of one model; imports its family's module and no other.

    Raises:
        ValueError: no such model; the message names the nearest, or how a file is loaded.
    """
    if not isinstance(name, str):
        raise TypeError(f"a model's name is a string, got {type(name).__name__}")
    family = name.split("_")[0]
    if family in FAMILIES:
        importlib.import_module(f"{PACKAGE}.{FAMILIES[family]}")
    if name in _ENTRIES:
        return _ENTRIES[name]
    names = list_models()
    bare = name.rsplit("/", 1)[-1]
    if bare not in names and (name.endswith(_FILE_SUFFIXES) or os.sep in name):
        raise ValueError(
            f"{name!r} is a path, not a model's name; a file is loaded with "
            f"load_weights({name!r}) or create_model(NAME, weights={name!r})"
        )
    near = difflib.get_close_matches(bare.lower().replace("-", "_"), names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names)}"
    raise ValueError(f"no model is called {name!r}; {hint}")


def family_modules() -> list[str]:
    """Full names of the modules that register models."""
    return [f"{PACKAGE}.{module}" for module in dict.fromkeys(FAMILIES.values())]


def _build(entry: ModelEntry, architecture: dict[str, Any]) -> nn.Module:
    unknown = [key for key in architecture if key not in entry.arguments]
    if unknown:
        takes = ", ".join(entry.arguments) or "none"
        raise ValueError(
            f"{entry.name} has no architecture argument {', '.join(map(repr, unknown))}; "
            f"it takes {takes}"
        )
    model = entry.function(**architecture)
    model.architecture = {"name": entry.name, **architecture}
    return model
