"""Chest CT: readers of scans and published layouts, generated scans, the data module."""

from __future__ import annotations

import importlib

# Loaded on first use: readers need no Lightning, and pydicom and nibabel are optional.
_HOMES = {
    "CCCCII": "layouts",
    "COVIDCTset": "layouts",
    "CTDataModule": "datamodule",
    "CTDataset": "dataset",
    "CTPreset": "preparation",
    "CTVolume": "volume",
    "Chest": "chest",
    "GeneratedCT": "generated",
    "ListedScans": "layouts",
    "MosMed": "layouts",
    "ScanRecord": "dataset",
    "VolumeAugmentation": "transforms",
    "list_series": "dicom",
    "prepare": "preparation",
    "read_dicom": "dicom",
    "read_nifti": "nifti",
    "read_scan": "reading",
    "read_slices": "pictures",
    "to_scan": "preparation",
    "to_slices": "preparation",
    "write_dicom": "dicom_writer",
    "write_nifti": "nifti",
    "write_scans": "writers",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
