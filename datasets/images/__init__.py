"""Images with labels: folders, lists, box files, generated lesions, the data module."""

from __future__ import annotations

import importlib

# Loaded on first use: readers need no Lightning.
_HOMES = {
    "CocoImages": "boxes",
    "GeneratedLesions": "generated",
    "ImageAugmentation": "transforms",
    "ImageDataModule": "datamodule",
    "ImageDataset": "dataset",
    "ImageFolders": "layouts",
    "ImagePreset": "preparation",
    "ImageRecord": "dataset",
    "ListedImages": "layouts",
    "VocImages": "boxes",
    "split_groups": "splits",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
