"""Writing scans: generated ones in the layouts that the readers know, with lists; DICOM series."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ...common.extras import from_extra
from ...common.files import atomic_write
from ...vision.io.images import write_image
from ..files import check_choice, expand_path
from .chest import GeneratedCT
from .layouts import ListedScan, write_scan_list
from .nifti import write_nifti
from .preparation import CTPreset
from .volume import axis_codes

__all__ = ["LAYOUTS", "write_dicom", "write_scans"]

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
        ValueError: an unknown layout, a folder with scans in another, or not three counts of at
            least one.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    if len(counts) != 3 or min(counts) < 1:
        raise ValueError(
            f"scans {list(counts)}: want three numbers of at least 1, for train, val and test"
        )
    root = expand_path(folder)
    for other, (*_, pattern) in LAYOUTS.items():
        if other != layout and any(root.glob(pattern)):
            raise ValueError(
                f"{root}: scans in the layout {other} are there; remove them, or name another "
                "folder"
            )
    classes, names, write, _ = LAYOUTS[layout]
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
    _cut(folder / patient / "1", len(files), "png")
    return "1", files


def _write_tiff(folder: Path, patient: str, values: np.ndarray, affine: np.ndarray) -> _Entry:
    files = tuple(f"{number:04d}.tif" for number in range(len(values)))
    pixels = (values.astype(np.int32) + _OFFSET).clip(0, 65535).astype(np.uint16)
    for file, plane in zip(files, pixels, strict=True):
        with atomic_write(folder / patient / "SR_1" / file) as temporary:
            Image.fromarray(plane).save(temporary)
    _cut(folder / patient / "SR_1", len(files), "tif")
    return "SR_1", files


def _cut(folder: Path, first: int, ending: str) -> None:
    """Delete the slices from a number on, of a longer scan that was written there before."""
    for number in itertools.count(first):
        try:
            (folder / f"{number:04d}.{ending}").unlink()
        except FileNotFoundError:
            break


def _write_nifti(folder: Path, patient: str, values: np.ndarray, affine: np.ndarray) -> _Entry:
    file = f"study_{patient}.nii.gz"
    write_nifti(folder / file, values, affine)
    return patient, (file,)


def _write_dicom(folder: Path, patient: str, values: np.ndarray, affine: np.ndarray) -> _Entry:
    write_dicom(folder / patient / "1", values, affine, patient)
    return "1", tuple(f"{number:04d}.dcm" for number in range(1, len(values) + 1))


#: Number of classes, their names by label, what writes a scan into its class's folder, and where.
LAYOUTS: dict[str, tuple[int, tuple[str, ...], Callable[..., _Entry], str]] = {
    "cc-ccii": (3, ("CP", "NCP", "Normal"), _write_png, "*/*/1/*.png"),
    "mosmed": (2, ("CT-0", "CT-1"), _write_nifti, "*/study_*.nii.gz"),
    "covid-ctset": (2, ("normal", "covid"), _write_tiff, "*/*/SR_1/*.tif"),
    "dicom": (3, ("CP", "NCP", "Normal"), _write_dicom, "*/*/1/*.dcm"),
}


_INTERCEPT = -1024  # of stored values, which have no sign
_DATE, _TIME = "20200101", "120000"


def write_dicom(
    folder: str | os.PathLike,
    values: np.ndarray,
    affine: np.ndarray,
    patient: str = "generated",
    series: str = "1",
    description: str = "generated chest",
) -> Path:
    """Write a volume as a CT series of uncompressed slices.

    Equal arguments give equal files. The identifiers are made from the names, so that series of one
    patient share a study.

    Args:
        folder: where to; made if need be. The files are ``0001.dcm`` and so on; those that follow
            them, of a longer series that was written there before, go.
        values: (D, H, W) Hounsfield units, -1024 to 64511; fractions are rounded.
        affine: (4, 4), from (column, row, slice) to mm, RAS+; its columns must be orthogonal.
        patient: PatientID and PatientName.
        series: names the series within the patient.
        description: SeriesDescription.

    Returns:
        The folder.

    Raises:
        ImportError: pydicom is not installed.
        ValueError: values or axes that the format cannot hold.
    """
    from_extra("ct", "pydicom", "writing DICOM")
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder = Path(folder)
    stored = np.rint(np.asarray(values)).astype(np.int32) - _INTERCEPT
    if stored.ndim != 3 or stored.min() < 0 or stored.max() > 65535:
        raise ValueError(
            f"{folder}: a series holds (D, H, W) values from {_INTERCEPT} to {65535 + _INTERCEPT}, "
            f"got {values.shape} from {values.min():g} to {values.max():g}"
        )
    matrix = np.diag([-1.0, -1.0, 1.0, 1.0]) @ np.asarray(affine, np.float64)
    width, height, depth = sizes = np.linalg.norm(matrix[:3, :3], axis=0)
    directions = matrix[:3, :3] / sizes
    if not np.allclose(directions.T @ directions, np.eye(3), atol=1e-4):
        raise ValueError(f"{folder}: axes {axis_codes(affine)} are not at right angles")
    study = generate_uid(entropy_srcs=["study", patient])
    frame = generate_uid(entropy_srcs=["frame", patient, series])
    uid = generate_uid(entropy_srcs=["series", patient, series])
    for number in range(len(stored)):
        path = folder / f"{number + 1:04d}.dcm"
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[uid, str(number)])
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        image = FileDataset(path, {}, file_meta=meta, preamble=bytes(128))
        image.SOPClassUID, image.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        image.StudyInstanceUID, image.SeriesInstanceUID = study, uid
        image.FrameOfReferenceUID, image.PositionReferenceIndicator = frame, ""
        image.PatientID, image.PatientName = patient, patient
        image.PatientBirthDate = image.PatientSex = image.ReferringPhysicianName = ""
        image.StudyID = image.AccessionNumber = ""
        image.StudyDate = image.SeriesDate = image.ContentDate = _DATE
        image.StudyTime = image.SeriesTime = image.ContentTime = _TIME
        image.Modality, image.Manufacturer = "CT", "vizoo"
        image.ImageType = ["DERIVED", "SECONDARY", "AXIAL"]
        image.SeriesDescription, image.PatientPosition = description, "HFS"
        image.SeriesNumber, image.AcquisitionNumber, image.InstanceNumber = 1, 1, number + 1
        image.KVP = None
        image.ImagePositionPatient = _decimals(matrix[:3] @ [0, 0, number, 1])
        image.ImageOrientationPatient = _decimals(directions[:, :2].T.ravel())
        image.PixelSpacing = _decimals([height, width])
        image.SliceThickness = _decimals([depth])[0]
        image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
        image.Rows, image.Columns = stored.shape[1:]
        image.BitsAllocated, image.BitsStored, image.HighBit = 16, 16, 15
        image.PixelRepresentation = 0
        image.RescaleSlope, image.RescaleIntercept, image.RescaleType = "1", str(_INTERCEPT), "HU"
        image.WindowCenter, image.WindowWidth = "-600", "1500"
        image.PixelData = stored[number].astype("<u2").tobytes()
        with atomic_write(path) as temporary:
            image.save_as(temporary, enforce_file_format=True)
    _cut(folder, len(stored) + 1, "dcm")
    return folder


def _decimals(numbers: Iterable[float]) -> list[str]:
    """Decimal strings, which DICOM limits to 16 characters."""
    from pydicom.valuerep import format_number_as_ds

    return [format_number_as_ds(float(number)) for number in numbers]
