"""Reading and writing scans and maps as NIfTI (nibabel does the format)."""

from __future__ import annotations

import gzip
import os
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np

from ...common.extras import from_extra
from ...common.files import existing, write_bytes
from .volume import CTVolume, check_axial

__all__ = ["SUFFIXES", "is_nifti", "read_nifti", "write_nifti"]

#: Endings of NIfTI files, in small letters.
SUFFIXES = (".nii.gz", ".nii")
_NOTE = 79  # letters that a header has room for


def is_nifti(path: str | os.PathLike) -> bool:
    """Whether a path ends as those of NIfTI files do, in small or capital letters."""
    return os.fspath(path).lower().endswith(SUFFIXES)


def read_nifti(path: str | os.PathLike) -> CTVolume:
    """Read a CT scan.

    Args:
        path: the file, ``.nii`` or ``.nii.gz``.

    Returns:
        The scan, int16 where its units are whole numbers, else float32.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: nibabel is not installed.
        ValueError: the file is damaged, no NIfTI, or holds no axial scan of several slices.
    """
    path = existing(path)
    nibabel = _nibabel()
    try:
        image = nibabel.load(path)
        stored = np.asanyarray(image.dataobj.get_unscaled())
    except Exception as error:  # damage: ImageFileError, EOFError, zlib.error, HeaderDataError ...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged or no NIfTI file: {reason}") from error
    if not isinstance(image, nibabel.Nifti1Pair):
        raise ValueError(f"{path}: {type(image).__name__}, wants NIfTI (.nii or .nii.gz)")
    if stored.ndim > 3 and set(stored.shape[3:]) == {1}:
        stored = stored.reshape(stored.shape[:3])
    if stored.ndim != 3 or stored.dtype.kind not in "iuf":
        shape = "x".join(map(str, stored.shape))
        raise ValueError(f"{path}: {shape} of {stored.dtype}; a scan is one grey volume")
    affine = np.asarray(image.affine, np.float64)
    codes = int(image.header["sform_code"]), int(image.header["qform_code"])
    if codes == (0, 0):
        warnings.warn(
            f"{path}: its header does not say how the patient lies; taken as nibabel does, columns "
            "to the left, rows to the front, slices to the head",
            stacklevel=2,
        )
    check_axial(affine, str(path))
    values = _hounsfield(stored, float(image.dataobj.slope), float(image.dataobj.inter))
    if lost := values.size - np.count_nonzero(np.isfinite(values)):
        raise ValueError(
            f"{path}: {lost} of {values.size} values are not finite: where nothing was scanned, "
            "set them to -1000, which is air"
        )
    volume = CTVolume(values.transpose(2, 1, 0), affine, source=str(path))
    if len(volume.oriented()[0]) < 2:
        raise ValueError(f"{path}: one slice; a scan has several")
    return volume


def write_nifti(
    path: str | os.PathLike,
    values: np.ndarray,
    affine: np.ndarray,
    step: float | None = None,
    note: str = "",
) -> None:
    """Write a volume in a scan's own space, atomically.

    Args:
        path: the file, ``.nii`` or ``.nii.gz``.
        values: (D, H, W): slices, rows, columns; bool becomes bytes, float64 float32.
        affine: (4, 4), from (column, row, slice) to mm, RAS+.
        step: values from 0 to 255 steps are kept as bytes, in whole steps, which a reader
            multiplies again; None keeps them as they are.
        note: what the header says of it (``descrip``), cut after 79 letters.

    Raises:
        ImportError: nibabel is not installed.
        ValueError: another suffix or shape, or values beyond 255 steps.
    """
    path = Path(path)
    if not is_nifti(path):
        raise ValueError(f"{path}: a NIfTI file ends in .nii or .nii.gz")
    values = np.asarray(values)
    if values.ndim != 3:
        raise ValueError(f"{path}: a volume is (D, H, W), got {values.shape}")
    if step is not None:
        if not 0 <= values.min() <= values.max() < 255.5 * step:
            raise ValueError(f"{path}: values beyond 0 to {255 * step:g} do not fit 255 steps")
        whole, values = values, np.empty(values.shape, np.uint8)
        for kept, plane in zip(values, whole, strict=True):  # one at a time, to bound the memory
            kept[:] = np.rint(plane / np.float32(step))
    kinds = {"bool": np.uint8, "int64": np.int32, "float64": np.float32, "float16": np.float32}
    values = values.astype(kinds.get(values.dtype.name, values.dtype), copy=False)
    image = _nibabel().Nifti1Image(values.transpose(2, 1, 0), affine)
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1, strip_shears=True)
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = note.encode("ascii", "replace")[:_NOTE]
    if step is not None:
        image.header.set_slope_inter(step, 0)
    content = image.to_bytes()
    if path.suffix.lower() == ".gz":
        content = gzip.compress(content, 1, mtime=0)
    write_bytes(path, content)


def _hounsfield(stored: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    limits = np.iinfo(np.int16)
    if stored.dtype.kind in "iu" and slope == 1 and intercept.is_integer():
        low, high = (int(edge) + int(intercept) for edge in (stored.min(), stored.max()))
        if limits.min <= low and high <= limits.max:
            if stored.dtype == np.int16 and intercept == 0:
                return stored
            return (stored.astype(np.int32) + int(intercept)).astype(np.int16)
    return stored.astype(np.float32) * np.float32(slope) + np.float32(intercept)


def _nibabel() -> ModuleType:
    return from_extra("ct", "nibabel", "reading or writing NIfTI")
