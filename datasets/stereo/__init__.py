"""Stereo data: readers of the published layouts, own pairs, generated scenes, the data module."""

from __future__ import annotations

import importlib

# Loaded on first use: readers need no Lightning.
_HOMES = {
    "ETH3D": "eth3d",
    "GeneratedStereo": "generated",
    "KITTI2012": "kitti",
    "KITTI2015": "kitti",
    "Middlebury2014": "middlebury",
    "MiddleburyV3": "middlebury",
    "Mixture": ".mixture",
    "PairFolders": "folders",
    "PairList": "pairs",
    "SceneFlow": "sceneflow",
    "Sintel": "sintel",
    "StereoDataModule": "datamodule",
    "StereoDataset": "base",
    "StereoPairs": "pairs",
    "StereoRecord": "base",
    "generate_scenes": "scenes",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
