"""What the headers of CT images in DICOM say: which series, which size, where in the patient.

A file holds one image, or as enhanced CT (DICOM part 3, A.38) many, whose geometry stands in
functional groups. Files without the preamble are data sets of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from .volume import plane

__all__ = ["ForeignError", "Slice", "UnusableError", "check_alike", "read_slices_of"]

_WORDS = "SeriesInstanceUID SOPClassUID SOPInstanceUID Modality PhotometricInterpretation".split()
_TOLD = (
    "BodyPartExamined SeriesDescription ProtocolName StudyDescription ImageType ConvolutionKernel "
    "AcquisitionNumber ContrastBolusAgent FrameOfReferenceUID TemporalPositionIdentifier "
    "TemporalPositionIndex NominalPercentageOfCardiacPhase FrameAcquisitionNumber StackID "
    "FrameType RescaleType LossyImageCompression VolumetricProperties "
    "VolumeBasedCalculationTechnique"
).split()
"""What each image says of itself, in words."""

_NUMBERS = "Rows Columns SamplesPerPixel NumberOfFrames".split()
_STORED = (
    "BitsAllocated BitsStored HighBit PixelRepresentation PixelPaddingValue PixelPaddingRangeLimit"
).split()
_GEOMETRY: dict[str, tuple[int, ...]] = {
    "RescaleSlope": (),
    "RescaleIntercept": (),
    "PixelSpacing": (2,),
    "ImagePositionPatient": (3,),
    "ImageOrientationPatient": (6,),
}
_SHARED, _EACH = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
_REGION = "AnatomicRegionSequence"
_IN_GROUPS = {
    "PixelValueTransformationSequence": "RescaleSlope RescaleIntercept RescaleType",
    "PixelMeasuresSequence": "PixelSpacing",
    "PlanePositionSequence": "ImagePositionPatient",
    "PlaneOrientationSequence": "ImageOrientationPatient",
    "CTImageFrameTypeSequence": "FrameType VolumetricProperties VolumeBasedCalculationTechnique",
    "CTReconstructionSequence": "ConvolutionKernel",
    "CardiacSynchronizationSequence": "NominalPercentageOfCardiacPhase",
    "FrameContentSequence": "FrameAcquisitionNumber StackID TemporalPositionIndex",
}
"""What an enhanced CT has in which functional group (part 3, C.7.6.16)."""
_GROUPS = {tag: group for group, tags in _IN_GROUPS.items() for tag in tags.split()}

_UNITS = ("HU", "HOUNSFIELD", "US")  # also HU_MOD; unspecified ones are Hounsfield units mostly
_CT_CLASSES = tuple(f"1.2.840.10008.5.1.4.1.1.2{kind}" for kind in ("", ".1", ".2"))
SKEW = 0.02
"""By how much directions may be off, which are often rounded to 0.01."""

_AXIAL = 0.7  # of the normal, along the body


class Slice(NamedTuple):
    """One image of a series."""

    path: Path  #: the file
    frame: int | None  #: which of its images, from 0 on; None where it has one
    series: str  #: SeriesInstanceUID
    instance: str  #: SOPInstanceUID, or nothing
    #: what it says of itself, by tag: kernel, acquisition, region of the body ...
    told: dict[str, str]
    localiser: bool  #: whether it is an overview image for planning
    syntax: str  #: transfer syntax, which says the compression
    bare: bool  #: whether the file lacks the header that names the syntax
    rows: int  #: pixels
    columns: int  #: pixels
    #: lowest and highest stored value of pixels that are no part of the image, or None
    padding: tuple[int, int] | None
    slope: float  #: Hounsfield units in a stored step
    intercept: float  #: Hounsfield units of a stored 0
    spacing: np.ndarray  #: (2,) millimetres between rows and between columns
    #: (3,) millimetres, centre of the first pixel, to the left, back and head
    position: np.ndarray
    directions: np.ndarray  #: (2, 3) along a row and along a column


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
        tags = [*_WORDS, *_TOLD, *_NUMBERS, *_STORED, *_GEOMETRY, _SHARED, _EACH, _REGION]
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=tags, force=True)
        words = {tag: _text(header.get(tag)) for tag in _WORDS}
        named = str(header.file_meta.get("TransferSyntaxUID", ""))
        sizes = {tag: int(header.get(tag) or 1) for tag in _NUMBERS}
        bits, high = header.get("BitsStored"), header.get("HighBit")
        padding = _padding(header)
        region = _anatomy(header)
        looks = _lookups(header)
        words_of = [{tag: _text(look(tag)) for tag in _TOLD} for look in looks]
        numbers_of = [{tag: _numbers(look(tag)) for tag in _GEOMETRY} for look in looks]
    except Exception as error:  # a parser meets damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged DICOM header: {reason}") from error
    kind, modality = words["SOPClassUID"], words["Modality"]
    if modality not in ("", "CT"):
        raise ForeignError(modality)
    if "Rows" not in header:
        # Makers' own classes are no images either; the beginning of a class is a file cut there.
        if kind and not any(image.startswith(kind) for image in _CT_CLASSES):
            raise ForeignError(UID(kind).name)
        raise ValueError(f"{path}: damaged DICOM header: it ends before the size of the image")
    if not modality and kind not in _CT_CLASSES:
        raise ForeignError(UID(kind).name or "no modality")

    def unusable(reason: str) -> ValueError:
        if kind in ("", *_CT_CLASSES):
            return UnusableError(words["SeriesInstanceUID"], f"{path}: {reason}")
        return ForeignError(UID(kind).name)  # such as a picture of the dose

    samples, frames = sizes["SamplesPerPixel"], sizes["NumberOfFrames"]
    if samples != 1:
        raise unusable(f"{samples} samples a pixel; a CT slice is grey")
    if not (photometric := words["PhotometricInterpretation"] or "MONOCHROME").startswith("MONO"):
        raise unusable(f"pixels are {photometric}; a CT slice is grey")
    if None not in (bits, high) and high != bits - 1:
        raise unusable(f"HighBit {high} of {bits} bits; wants {bits - 1}; export the series again")
    if len(looks) != frames:
        what = f"{frames} images, and the places of {len(looks)}"
        raise unusable(f"{what}; export the series again")
    slices = []
    for number, (told, image) in enumerate(zip(words_of, numbers_of, strict=True)):
        told["ImageType"] = told.pop("FrameType") or told["ImageType"]
        told["BodyPartExamined"] = told["BodyPartExamined"] or region
        localiser = "LOCALIZER" in told["ImageType"].upper().split("\\")
        known = {}
        for tag, shape in _GEOMETRY.items():
            value = np.ones(shape) if localiser and image[tag] is None else image[tag]
            if (
                value is None
                or value.shape != shape
                or not np.isfinite(value).all()
                or (tag == "PixelSpacing" and value.min() <= 0)
            ):
                where = f" of slice {number + 1}" if len(looks) > 1 else ""
                raise unusable(f"no usable {tag}{where} in its header; export the series again")
            known[tag] = value
        units = told["RescaleType"].upper()
        if units and not units.startswith(_UNITS) and not localiser:
            raise unusable(f"its values are {units} (RescaleType), no Hounsfield units")
        slices.append(
            Slice(
                path,
                number if len(looks) > 1 else None,
                words["SeriesInstanceUID"],
                words["SOPInstanceUID"],
                told,
                localiser,
                named or _guessed_syntax(header),
                not named,
                sizes["Rows"],
                sizes["Columns"],
                padding,
                float(known["RescaleSlope"]),
                float(known["RescaleIntercept"]),
                known["PixelSpacing"],
                known["ImagePositionPatient"],
                known["ImageOrientationPatient"].reshape(2, 3),
            )
        )
    return slices


def _lookups(header: Any) -> list[Callable[[str], Any]]:
    """For each image of a file, what looks tags up."""
    shared = [*(header.get(_SHARED) or ())]

    def value(frame: Any, tag: str) -> Any:
        if tag not in _GROUPS:
            return header.get(tag)
        for group in (frame, *shared):
            if inner := group.get(_GROUPS[tag]):
                return inner[0].get(tag)
        return None

    return [partial(value, frame) for frame in header.get(_EACH) or ()] or [header.get]


def _anatomy(header: Any) -> str:
    """The region that a header names by its code, or nothing."""
    groups = (*(header.get(_SHARED) or ()), *(header.get(_EACH) or ())[:1])
    frames = [frame for group in groups for frame in group.get("FrameAnatomySequence") or ()]
    regions = [region for frame in (header, *frames) for region in frame.get(_REGION) or ()]
    return _text(regions[0].get("CodeMeaning")) if regions else ""


def _padding(header: Any) -> tuple[int, int] | None:
    """Stored values of padding, which some write with the wrong sign."""
    if header.get("PixelPaddingValue") is None:
        return None
    first = int(header.PixelPaddingValue)
    last = int(header.get("PixelPaddingRangeLimit") or first)
    bits = header.get("BitsAllocated") or 16
    half = 2 ** (bits - 1) if header.get("PixelRepresentation") == 1 else 0
    low, high = sorted((value + half) % 2**bits - half for value in (first, last))
    return low, high


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return str(value or "")
    return "\\".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def _numbers(value: Any) -> np.ndarray | None:
    return None if value in (None, "") else np.array(value, np.float64)


def _guessed_syntax(header: Any) -> str:
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    implicit, little = header.original_encoding
    explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
    return str(ImplicitVRLittleEndian if implicit else explicit)


def check_alike(slices: list[Slice], where: str) -> None:
    """Refuse slices of different sizes, spacings, directions or kernels, and other planes.

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
            and part.told["ConvolutionKernel"] == first.told["ConvolutionKernel"]
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
    kernel = part.told["ConvolutionKernel"]
    size = f"{part.rows}x{part.columns} {names} of {height:.3g}x{width:.3g} mm"
    return f"{size}, kernel {kernel}" if kernel else size
