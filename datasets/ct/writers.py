"""Writing generated scans to disk in the layouts that the readers know, with lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ...common.files import atomic_write
from ...vision.io.images import write_image
from ..files import check_choice, expand_path
from .dicom_writer import write_dicom
from .generated import GeneratedCT
from .lists import ListedScan, write_scan_list
from .nifti import write_nifti
from .preparation import CTPreset

__all__ = ["LAYOUTS", "write_scans"]

_LOW, _HIGH = -1350, 150  # the lung window, Hounsfield units
_OFFSET = 1024  # of COVID-CTset's stored values


def write_scans(
    folder: str | os.PathLike,
    layout: str,
    counts: Sequence[int] = (8, 2, 2),
    shape: tuple[int, int, int] = (40, 128, 128),
    seed: int = 0,
    report: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Write generated scans with ``train.json``, ``val.json`` and ``test.json``.

    The lesions of every scan lie in ``lesions/<patient>_lesion.nii.gz``, on the scan's own voxels.

    Args:
        folder: where to; made if need be.
        layout: ``cc-ccii`` (PNG slices of the lung window, three classes), ``mosmed`` (NIfTI, two),
            ``covid-ctset`` (16-bit TIFF slices, two), or ``dicom`` (series, three, classes and
            folders as CC-CCII).
        counts: scans of each of the three lists, of one patient each.
        shape: slices, rows, columns of a scan.
        seed: names the scans.
        report: called as ``report("scans", done, all)``.

    Returns:
        The folder.

    Raises:
        ImportError: nibabel is not installed, or pydicom for ``dicom``.
        ValueError: an unknown layout, or not three counts of at least one.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    if len(counts) != 3 or min(counts) < 1:
        raise ValueError(f"scans {list(counts)}: want three numbers, for train, val and test")
    root = expand_path(folder)
    classes, names, write = LAYOUTS[layout]
    scans = GeneratedCT(sum(counts), classes, CTPreset(), seed=seed)
    number = 0
    for name, count in zip(("train", "val", "test"), counts, strict=True):
        listed = []
        for _ in range(count):
            kind, patient = names[scans.labels[number]], f"{seed}{number:04d}"
            values, mask, affine = scans.chest(number).scan(shape)
            scan, files = write(root / kind, patient, values, affine)
            listed.append(ListedScan(kind, patient, scan, files))
            write_nifti(root / "lesions" / f"{patient}_lesion.nii.gz", mask, affine)
            number += 1
            if report is not None:
                report("scans", number, len(scans))
        write_scan_list(root / f"{name}.json", listed)
    return root


_Entry = tuple[str, tuple[str, ...]]
"""What a list calls a scan, and its files."""


def _write_png(folder: Path, patient: str, values: np.ndarray, affine: np.ndarray) -> _Entry:
    files = tuple(f"{number:04d}.png" for number in range(len(values)))
    share = (values.astype(np.float32) - _LOW) / (_HIGH - _LOW)
    pixels = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
    for file, plane in zip(files, pixels, strict=True):
        write_image(folder / patient / "1" / file, plane)
    return "1", files


def _write_tiff(folder: Path, patient: str, values: np.ndarray, affine: np.ndarray) -> _Entry:
    files = tuple(f"{number:04d}.tif" for number in range(len(values)))
    pixels = (values.astype(np.int32) + _OFFSET).clip(0, 65535).astype(np.uint16)
    for file, plane in zip(files, pixels, strict=True):
        with atomic_write(folder / patient / "SR_1" / file) as temporary:
            Image.fromarray(plane).save(temporary)
    return "SR_1", files


def _write_nifti(folder: Path, patient: str, values: np.ndarray, affine: np.ndarray) -> _Entry:
    file = f"study_{patient}.nii.gz"
    write_nifti(folder / file, values, affine)
    return patient, (file,)


def _write_dicom(folder: Path, patient: str, values: np.ndarray, affine: np.ndarray) -> _Entry:
    series = write_dicom(folder / patient / "1", values, affine, patient)
    return "1", tuple(sorted(file.name for file in series.iterdir()))


#: Number of classes, their names by label, and what writes a scan into its class's folder.
LAYOUTS: dict[str, tuple[int, tuple[str, ...], Callable[..., _Entry]]] = {
    "cc-ccii": (3, ("CP", "NCP", "Normal"), _write_png),
    "mosmed": (2, ("CT-0", "CT-1"), _write_nifti),
    "covid-ctset": (2, ("normal", "covid"), _write_tiff),
    "dicom": (3, ("CP", "NCP", "Normal"), _write_dicom),
}
