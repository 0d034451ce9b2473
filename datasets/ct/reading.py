"""Reading a scan of any kind: a DICOM series, a NIfTI file, a folder of pictures."""

from __future__ import annotations

import os
from pathlib import Path

from ...vision.io.images import SUFFIXES
from .dicom import is_dicom, read_dicom, series_of
from .nifti import is_nifti, read_nifti
from .pictures import in_order, read_slices
from .volume import CTVolume

__all__ = ["read_scan"]


def read_scan(
    path: str | os.PathLike,
    series: str | None = None,
    value_range: tuple[float, float] | None = None,
    threads: int = 2,
) -> CTVolume:
    """Read a CT scan.

    Args:
        path: a NIfTI file; the folder of a DICOM series, or one of its files; or a folder of PNG or
            TIFF slices, taken in the order of the numbers in their names.
        series: SeriesInstanceUID, where a folder holds several DICOM series; of those alone.
        value_range: of PNG and TIFF slices alone, see `read_slices`.
        threads: files decoded at a time.

    Raises:
        FileNotFoundError: nothing is there.
        ImportError: pydicom or nibabel is needed and not installed.
        ValueError: it is no scan that can be used; one line says why.
    """
    path = Path(path)
    if path.is_file():
        if is_nifti(path):
            _check_unused(path, "NIfTI", series=series, value_range=value_range)
            return read_nifti(path)
        if is_dicom(path):
            _check_unused(path, "DICOM", value_range=value_range)
            return read_dicom(path.parent, series or series_of(path), threads)
        raise ValueError(
            f"{path}: not a scan; give a NIfTI file (.nii, .nii.gz), or the folder of a DICOM "
            "series or of PNG or TIFF slices"
        )
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    files = [file for file in path.iterdir() if file.is_file() and file.name[0] != "."]
    pictures = [file for file in files if file.suffix.lower() in SUFFIXES]
    # A series often lies beside a preview or a report's page.
    series_there = any(is_dicom(file) for file in files if file not in pictures)
    if pictures and not series_there:
        _check_unused(path, "pictures", series=series)
        return read_slices(in_order(pictures), value_range, threads)
    nifti = [file for file in files if is_nifti(file)]
    if nifti:
        raise ValueError(f"{path}: {len(nifti)} NIfTI files, first {nifti[0].name}: name one")
    _check_unused(path, "DICOM", value_range=value_range)
    return read_dicom(path, series, threads)


def _check_unused(path: Path, kind: str, **arguments: object) -> None:
    """Refuse what says nothing about scans of this kind."""
    for name, value in arguments.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{path}: {kind}, which takes no {name} ({option}): leave it out")
