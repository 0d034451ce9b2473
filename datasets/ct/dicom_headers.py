"""What the headers of DICOM slices say: which series, which size, where in the patient."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from .volume import plane

__all__ = ["Slice", "check_alike", "geometry", "read_header"]

_TAGS = (
    "SeriesInstanceUID",
    "SOPInstanceUID",
    "SeriesDescription",
    "Modality",
    "ImageType",
    "NumberOfFrames",
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "RescaleSlope",
    "RescaleIntercept",
    "PixelSpacing",
    "ImagePositionPatient",
    "ImageOrientationPatient",
)
_MOST_MISSING = 0.1  # share of a series' slices
_UNEVEN = 0.25  # of the distance between slices; positions are often rounded to 0.1 mm
_SKEW = 0.02  # directions are often rounded to 0.01
_AXIAL = 0.7  # of the normal, along the body


class Slice(NamedTuple):
    """One image of a series.

    Attributes:
        path: the file.
        series: SeriesInstanceUID.
        instance, description: SOPInstanceUID and SeriesDescription, or nothing.
        localiser: whether it is an overview image for planning.
        syntax: transfer syntax, which says the compression.
        rows, columns: height and width, pixels.
        slope: Hounsfield units in a stored step.
        intercept: Hounsfield units of a stored 0.
        spacing: (2,) millimetres between rows and between columns.
        position: (3,) millimetres, centre of the first pixel, to the left, back and head.
        directions: (2, 3) along a row and along a column.
    """

    path: Path
    series: str
    instance: str
    description: str
    localiser: bool
    syntax: str
    rows: int
    columns: int
    slope: float
    intercept: float
    spacing: np.ndarray
    position: np.ndarray
    directions: np.ndarray


def read_header(path: Path, pydicom: ModuleType) -> Slice:
    """Read what is needed of a file's header.

    Raises:
        ValueError: damaged, no CT image, several frames, or without geometry or units.
    """
    try:
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(_TAGS))
        words = {tag: header.get(tag) for tag in _TAGS}
        syntax = str(header.file_meta.TransferSyntaxUID)
        localiser = "LOCALIZER" in [str(word).upper() for word in words["ImageType"] or ()]
        numbers = {
            tag: None if words[tag] in (None, "") else np.array(words[tag], np.float64)
            for tag in _TAGS[5:]
        }
    except Exception as error:  # a parser meets damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged DICOM header: {reason}") from error
    if words["Modality"] != "CT":
        raise ValueError(f"{path}: modality {words['Modality']!s}; wants a CT series")
    frames, samples = (numbers[tag] for tag in ("NumberOfFrames", "SamplesPerPixel"))
    if frames is not None and frames > 1:
        raise ValueError(
            f"{path}: {int(frames)} slices in one file (enhanced CT); convert it to NIfTI, as "
            "dcm2niix does"
        )
    if samples is not None and samples != 1:
        raise ValueError(f"{path}: {int(samples)} samples a pixel; a CT slice is grey")
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("Rows", "Columns", "RescaleSlope", "RescaleIntercept"), ()),
        "PixelSpacing": (2,),
        "ImagePositionPatient": (3,),
        "ImageOrientationPatient": (6,),
    }
    needed = {}
    for tag, shape in shapes.items():
        value = np.ones(shape) if localiser and numbers[tag] is None else numbers[tag]
        if value is None or value.shape != shape or not np.isfinite(value).all():
            raise ValueError(f"{path}: no usable {tag} in its header; export the series again")
        needed[tag] = value
    return Slice(
        path,
        str(words["SeriesInstanceUID"]),
        str(words["SOPInstanceUID"] or ""),
        str(words["SeriesDescription"] or ""),
        localiser,
        syntax,
        int(needed["Rows"]),
        int(needed["Columns"]),
        float(needed["RescaleSlope"]),
        float(needed["RescaleIntercept"]),
        needed["PixelSpacing"],
        needed["ImagePositionPatient"],
        needed["ImageOrientationPatient"].reshape(2, 3),
    )


def check_alike(slices: list[Slice], where: str) -> None:
    """Refuse slices of different sizes, spacings, directions or compressions, and other planes.

    Directions have to be of length 1 and at right angles.

    Raises:
        ValueError: as said; the message names the first file that differs.
    """
    first = slices[0]
    for part in slices:
        if not np.allclose(part.directions @ part.directions.T, np.eye(2), atol=_SKEW):
            raise ValueError(
                f"{part.path}: ImageOrientationPatient {part.directions.ravel().tolist()}: not two "
                "directions of length 1 at right angles; export the series again"
            )
        same = (
            (part.rows, part.columns) == (first.rows, first.columns)
            and part.syntax == first.syntax
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


def geometry(slices: list[Slice], where: str) -> tuple[list[int], np.ndarray, int]:
    """Sort slices along their normal, in place, and find where they lie.

    Returns:
        The place of each slice in the volume, the volume's affine (RAS+), its number of slices.

    Raises:
        ValueError: one slice, two at one position, uneven distances, or too many missing.
    """
    first = slices[0]
    if len(slices) < 2:
        raise ValueError(f"{where}: one slice; a scan has several")
    normal = np.cross(*first.directions)
    normal = normal / np.linalg.norm(normal)
    slices.sort(key=lambda part: float(part.position @ normal))
    heights = np.array([part.position @ normal for part in slices])
    steps = np.diff(heights)
    if steps.min() < 1e-3:
        place = int(steps.argmin())
        raise ValueError(
            f"{where}: {slices[place].path.name} and {slices[place + 1].path.name} lie at one "
            "position: two scans mixed in one series"
        )
    places = np.concatenate([[0], np.rint(steps / np.median(steps)).cumsum()]).astype(int)
    depth = int(places[-1]) + 1
    step = (heights[-1] - heights[0]) / max(1, depth - 1)
    missing = depth - len(slices)
    off = np.abs(heights - heights[0] - step * places).max()
    if off > _UNEVEN * step or steps.min() < 0.5 * step:
        raise ValueError(
            f"{where}: slices {steps.min():.3g} to {steps.max():.3g} mm apart; a scan has them at "
            "even distances"
        )
    if missing:
        gap = int(np.flatnonzero(np.diff(places) > 1)[0])
        what = f"{where}: {missing} of {depth} slices are missing, first after "
        what += slices[gap].path.name
        if missing > _MOST_MISSING * depth:
            raise ValueError(f"{what}; copy the whole series")
        warnings.warn(f"{what}; interpolated from their neighbours", stacklevel=3)
    affine = np.eye(4)
    affine[:3, 0] = first.directions[0] * first.spacing[1]
    affine[:3, 1] = first.directions[1] * first.spacing[0]
    # Not along the normal: the gantry may be tilted.
    affine[:3, 2] = (slices[-1].position - slices[0].position) / (depth - 1)
    affine[:3, 3] = slices[0].position
    return places.tolist(), np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine, depth


def _kind(part: Slice) -> str:
    height, width = part.spacing
    names = plane(np.cross(*part.directions))
    return f"{part.columns}x{part.rows} {names} of {width:.3g}x{height:.3g} mm"
