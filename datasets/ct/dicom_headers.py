"""What the headers of CT images in DICOM say: which series, which size, where in the patient.

A file holds one image, or as enhanced CT (DICOM part 3, A.38) many, whose geometry stands in
functional groups. Files without the preamble are data sets of their own.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .volume import plane

__all__ = ["ForeignError", "Slice", "UnusableError", "check_alike", "read_slices_of"]

_WORDS = (
    "SeriesInstanceUID",
    "SOPClassUID",
    "SOPInstanceUID",
    "SeriesDescription",
    "Modality",
    "BodyPartExamined",
    "ImageType",
)
_NUMBERS = ("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames")
_GEOMETRY: dict[str, tuple[int, ...]] = {
    "RescaleSlope": (),
    "RescaleIntercept": (),
    "PixelSpacing": (2,),
    "ImagePositionPatient": (3,),
    "ImageOrientationPatient": (6,),
}
_SHARED, _EACH = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
_GROUPS = {
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "FrameType": "CTImageFrameTypeSequence",
}
"""Functional group of each number, in which an enhanced CT has it (part 3, C.7.6.16)."""

_CT_CLASSES = tuple(f"1.2.840.10008.5.1.4.1.1.2{kind}" for kind in ("", ".1", ".2"))
SKEW = 0.02
"""By how much directions may be off, which are often rounded to 0.01."""

_AXIAL = 0.7  # of the normal, along the body


class Slice(NamedTuple):
    """One image of a series.

    Attributes:
        path: the file.
        frame: which of its images, from 0 on; None where it has one.
        series: SeriesInstanceUID.
        instance, description: SOPInstanceUID and SeriesDescription, or nothing.
        part: BodyPartExamined, or nothing.
        localiser: whether it is an overview image for planning.
        syntax: transfer syntax, which says the compression.
        bare: whether the file lacks the header that names the syntax.
        rows, columns: height and width, pixels.
        slope: Hounsfield units in a stored step.
        intercept: Hounsfield units of a stored 0.
        spacing: (2,) millimetres between rows and between columns.
        position: (3,) millimetres, centre of the first pixel, to the left, back and head.
        directions: (2, 3) along a row and along a column.
    """

    path: Path
    frame: int | None
    series: str
    instance: str
    description: str
    part: str
    localiser: bool
    syntax: str
    bare: bool
    rows: int
    columns: int
    slope: float
    intercept: float
    spacing: np.ndarray
    position: np.ndarray
    directions: np.ndarray


class ForeignError(ValueError):
    """A DICOM file that is no CT image, such as a report; its argument is the kind."""


class UnusableError(ValueError):
    """An image of a CT series that cannot be used: series and message."""


def read_slices_of(path: Path, pydicom: ModuleType) -> list[Slice]:
    """Read what is needed of a file's header: the slices in it.

    Raises:
        ValueError: damaged, no CT image, or without geometry or units.
    """
    from pydicom.uid import UID

    try:
        tags = [*_WORDS, *_NUMBERS, *_GEOMETRY, _SHARED, _EACH]
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=tags, force=True)
        words = {tag: header.get(tag) for tag in _WORDS}
        named = str(header.file_meta.get("TransferSyntaxUID", ""))
        sizes = {tag: int(header.get(tag) or 1) for tag in _NUMBERS}
        images = _images(header)
    except Exception as error:  # a parser meets damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged DICOM header: {reason}") from error
    kind, modality = str(words["SOPClassUID"] or ""), str(words["Modality"] or "")
    if modality not in ("", "CT"):
        raise ForeignError(modality)
    if "Rows" not in header:
        if kind and UID(kind).name != kind and kind not in _CT_CLASSES:  # a class that is known
            raise ForeignError(UID(kind).name)
        raise ValueError(f"{path}: damaged DICOM header: it ends before the size of the image")
    if not modality and kind not in _CT_CLASSES:
        raise ForeignError(UID(kind).name or "no modality")
    series = str(words["SeriesInstanceUID"])
    samples, frames = sizes["SamplesPerPixel"], sizes["NumberOfFrames"]
    if samples != 1:
        raise UnusableError(series, f"{path}: {samples} samples a pixel; a CT slice is grey")
    if len(images) != frames:
        told = f"{frames} images, and the places of {len(images)}"
        raise UnusableError(series, f"{path}: {told}; export the series again")
    slices = []
    for number, (type_, image) in enumerate(images):
        localiser = "LOCALIZER" in [str(w).upper() for w in type_ or words["ImageType"] or ()]
        known = {}
        for tag, shape in _GEOMETRY.items():
            value = np.ones(shape) if localiser and image[tag] is None else image[tag]
            if value is None or value.shape != shape or not np.isfinite(value).all():
                where = f" of slice {number + 1}" if len(images) > 1 else ""
                raise UnusableError(
                    series,
                    f"{path}: no usable {tag}{where} in its header; export the series again",
                )
            known[tag] = value
        slices.append(
            Slice(
                path,
                number if len(images) > 1 else None,
                series,
                str(words["SOPInstanceUID"] or ""),
                str(words["SeriesDescription"] or ""),
                str(words["BodyPartExamined"] or _anatomy(header)),
                localiser,
                named or _guessed_syntax(header),
                not named,
                sizes["Rows"],
                sizes["Columns"],
                float(known["RescaleSlope"]),
                float(known["RescaleIntercept"]),
                known["PixelSpacing"],
                known["ImagePositionPatient"],
                known["ImageOrientationPatient"].reshape(2, 3),
            )
        )
    return slices


def _images(header: Any) -> list[tuple[Any, dict[str, np.ndarray | None]]]:
    """Kind and geometry of each image of a file."""
    each = header.get(_EACH)
    if not each:
        return [(None, {tag: _numbers(header.get(tag)) for tag in _GEOMETRY})]
    shared = [*(header.get(_SHARED) or ())]

    def value(tag: str, frame: Any) -> Any:
        for group in (frame, *shared):
            if inner := group.get(_GROUPS[tag]):
                return inner[0].get(tag)
        return None

    return [
        (value("FrameType", frame), {tag: _numbers(value(tag, frame)) for tag in _GEOMETRY})
        for frame in each
    ]


def _anatomy(header: Any) -> str:
    """The region that an enhanced CT names, or nothing."""
    for group in (*(header.get(_SHARED) or ()), *(header.get(_EACH) or ())[:1]):
        for frame in group.get("FrameAnatomySequence") or ():
            for region in frame.get("AnatomicRegionSequence") or ():
                return str(region.get("CodeMeaning") or "")
    return ""


def _numbers(value: Any) -> np.ndarray | None:
    return None if value in (None, "") else np.array(value, np.float64)


def _guessed_syntax(header: Any) -> str:
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    implicit, little = header.original_encoding
    explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
    return str(ImplicitVRLittleEndian if implicit else explicit)


def check_alike(slices: list[Slice], where: str) -> None:
    """Refuse slices of different sizes, spacings or directions, and other planes.

    Directions have to be of length 1 and at right angles.

    Raises:
        ValueError: as said; the message names the first file that differs.
    """
    first = slices[0]
    for part in slices:
        if not np.allclose(part.directions @ part.directions.T, np.eye(2), atol=SKEW):
            raise ValueError(
                f"{part.path}: ImageOrientationPatient {part.directions.ravel().tolist()}: not two "
                "directions of length 1 at right angles; export the series again"
            )
        same = (
            (part.rows, part.columns) == (first.rows, first.columns)
            and np.allclose(part.spacing, first.spacing, rtol=1e-3)
            and np.allclose(part.directions, first.directions, atol=1e-3)
        )
        if not same:
            raise ValueError(
                f"{where}: slices of different kinds in one series: {_kind(first)} in "
                f"{first.path.name}, {_kind(part)} in {part.path.name}; keep one kind"
            )
    normal = np.cross(*first.directions)
    if abs(normal[2]) < _AXIAL * np.linalg.norm(normal):
        raise ValueError(f"{where}: {plane(normal)} slices; take the scan's axial series")


def _kind(part: Slice) -> str:
    height, width = part.spacing
    names = plane(np.cross(*part.directions))
    return f"{part.columns}x{part.rows} {names} of {width:.3g}x{height:.3g} mm"
