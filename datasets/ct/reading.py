"""Reading a scan of any kind: a DICOM series, a NIfTI file, a folder of pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ...vision.io.images import read_pixels
from ...vision.io.pairing import images_in
from ..files import by_numbers
from .dicom import is_dicom, read_dicom, series_of
from .nifti import is_nifti, read_nifti
from .volume import CTVolume, check_units

__all__ = ["read_scan", "read_slices", "scan_kind"]

_ORDERS = {"feet-first": 1.0, "head-first": -1.0, None: 1.0}


def read_slices(
    files: Sequence[str | os.PathLike],
    value_range: tuple[float, float] | None = None,
    threads: int = 1,
    order: str | None = None,
) -> CTVolume:
    """Read pictures as the slices of one scan, in the order given.

    Of a colour picture the first channel counts. A picture says no size of a voxel. Columns are
    taken to run to the patient's left and rows to the back, as scans are shown.

    Args:
        files: the pictures.
        value_range: the stored values that become 0 and 1; None: 0 and 255, for 8 bits only.
        threads: files decoded at a time.
        order: ``feet-first`` or ``head-first``; None: unknown, and taken to be the first.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: fewer than two, a damaged one, different sizes or depths, 16 bits without a
            range, or another order.
    """
    if order not in _ORDERS:
        raise ValueError(f"order {order!r}: feet-first or head-first")
    if len(files) < 2:
        where = files[0] if files else "no picture"
        raise ValueError(f"{where}: {len(files)} slices; a scan has several")
    first = _plane(files[0])
    if first.dtype != np.uint8 and value_range is None:
        raise ValueError(
            f"{files[0]}: 16 bits; say which values become 0 and 1 (value_range, or "
            "--value-range): the file does not"
        )
    values = np.empty((len(files), *first.shape), first.dtype)

    def load(place: int) -> None:
        plane = first if place == 0 else _plane(files[place])
        if plane.shape != first.shape or plane.dtype != first.dtype:
            here, there = (
                f"{pixels.shape[0]}x{pixels.shape[1]} pixels of {8 * pixels.itemsize} bits"
                for pixels in (plane, first)
            )
            raise ValueError(
                f"{files[place]}: {here}, but {Path(files[0]).name} has {there}: the slices of one "
                "scan are alike"
            )
        values[place] = plane

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(load, range(len(files))))
    low, high = map(float, (0, 255) if value_range is None else value_range)
    if not low < high:
        raise ValueError(f"value_range {low, high}: the first must be the smaller")
    affine, where = np.diag([-1.0, -1.0, _ORDERS[order], 1.0]), str(Path(files[0]).parent)
    ends = order is not None
    return CTVolume(values, affine, (low, high), spaced=False, source=where, ends=ends)


def _plane(path: str | os.PathLike) -> np.ndarray:
    pixels = read_pixels(path)
    return pixels if pixels.ndim == 2 else pixels[:, :, 0]


def read_scan(
    path: str | os.PathLike,
    series: str | None = None,
    value_range: tuple[float, float] | None = None,
    threads: int = 2,
    order: str | None = None,
    resample: bool = True,
) -> CTVolume:
    """Read a CT scan.

    Args:
        path: a NIfTI file; the folder of a DICOM series, or one of its files; or a folder of PNG or
            TIFF slices, taken in the order of the numbers in their names.
        series: SeriesInstanceUID, where a folder holds several DICOM series; of those alone.
        value_range: of PNG and TIFF slices alone, see `read_slices`.
        threads: files decoded at a time.
        order: of PNG and TIFF slices alone, see `read_slices`.
        resample: of DICOM series, see `read_dicom`.

    Raises:
        FileNotFoundError: nothing is there.
        ImportError: pydicom or nibabel is needed and not installed.
        ValueError: it is no scan that can be used, or its values are no Hounsfield units; one line
            says why.
    """
    path = Path(path)
    kind = scan_kind(path)
    if kind != "DICOM":
        _check_unused(path, kind, series=series)
    if kind != "pictures":
        _check_unused(path, kind, value_range=value_range, order=order)
    if kind == "NIfTI":
        volume = read_nifti(path)
    elif kind == "pictures":
        slices = sorted(images_in(path), key=lambda file: by_numbers(file.name))
        volume = read_slices(slices, value_range, threads, order)
    elif path.is_file():
        volume = read_dicom(path.parent, series or series_of(path), threads, resample)
    else:
        volume = read_dicom(path, series, threads, resample)
    check_units(volume)
    return volume


def scan_kind(path: Path) -> str:
    """Return what a scan is kept as: ``DICOM``, ``NIfTI`` or ``pictures``.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a file of another kind, or a folder of several NIfTI files.
    """
    if path.is_file():
        if is_nifti(path):
            return "NIfTI"
        if is_dicom(path):
            return "DICOM"
        raise ValueError(
            f"{path}: not a scan; give a NIfTI file (.nii, .nii.gz), or the folder of a DICOM "
            "series or of PNG or TIFF slices"
        )
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    files = [file for file in path.iterdir() if file.is_file() and file.name[0] != "."]
    pictures = images_in(path)
    # A series often lies beside a preview or a report's page.
    if pictures and not any(is_dicom(file) for file in files if file not in pictures):
        return "pictures"
    nifti = [file for file in files if is_nifti(file)]
    if nifti:
        raise ValueError(f"{path}: {len(nifti)} NIfTI files, first {nifti[0].name}: name one")
    return "DICOM"


def _check_unused(path: Path, kind: str, **arguments: object) -> None:
    """Refuse what says nothing about scans of this kind."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"{path}: {kind}, which takes no {name}: leave it out")
