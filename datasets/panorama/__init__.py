"""Panorama data: readers of the published layouts, generated rooms, the data module."""

from __future__ import annotations

import importlib

# Loaded on first use: readers need no Lightning.
_HOMES = {
    "GeneratedRooms": "generated",
    "Matterport3D": "matterport3d",
    "PanoramaDataModule": "datamodule",
    "PanoramaDataset": "base",
    "PanoramaRecord": "base",
    "Room": "rooms",
    "Stanford2D3D": "stanford2d3d",
    "ThreeD60": "threed60",
    "furnished_room": "rooms",
    "write_panoramas": "writers",
    "write_rooms": "writers",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
