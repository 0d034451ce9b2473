"""Multi-view-stereo data: scenes of the published layouts, generated scenes, the data module."""

from __future__ import annotations

import importlib

# Loaded on first use: readers need no Lightning.
_HOMES = {
    "BlendedMVS": "blendedmvs",
    "DTU": "dtu",
    "GeneratedMVS": "generated",
    "MVSDataModule": "datamodule",
    "MVSDataset": "dataset",
    "Scene": "scene",
    "SceneFolders": "scenes",
    "View": "scene",
    "derive_range": "ranges",
    "generate_scene": "generator",
    "mesh_scene": "meshes",
    "open_scene": "layouts",
    "truth_points": "sparse",
    "write_scene": "writers",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
