"""Writing a CT series as DICOM files, one a slice (pydicom does the format)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...common.extras import from_extra
from ...common.files import atomic_write
from .volume import axis_codes

__all__ = ["write_dicom"]

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
        folder: where to; made if need be. The files are ``0001.dcm`` and so on.
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
    return folder


def _decimals(numbers: Iterable[float]) -> list[str]:
    """Decimal strings, which DICOM limits to 16 characters."""
    from pydicom.valuerep import format_number_as_ds

    return [format_number_as_ds(float(number)) for number in numbers]
