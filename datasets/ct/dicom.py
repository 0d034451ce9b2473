"""Reading a CT series from DICOM files (pydicom does the format).

Slices are sorted by their position along their normal, never by name or number. Hounsfield units
are slope and intercept of the stored values; MONOCHROME1 asks a viewer to show low values bright
and does not change them. What headers say is which series, which size, where in the patient.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from ...common.extras import from_extra
from .volume import CTVolume, check_axial, plane

__all__ = [
    "SUFFIXES",
    "Slice",
    "check_alike",
    "geometry",
    "is_dicom",
    "list_series",
    "read_dicom",
    "read_header",
    "series_of",
]

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


#: Endings that DICOM files may have, in small letters.
SUFFIXES = (".dcm", ".dicom", ".ima")

_LISTED = 5  # series named in a message


def read_dicom(
    source: str | os.PathLike | Sequence[str | os.PathLike],
    series: str | None = None,
    threads: int = 2,
) -> CTVolume:
    """Read one CT series.

    Localisers are passed over. A few slices that are missing between others are interpolated, with
    a warning; those missing at the ends cannot be noticed.

    Args:
        source: a folder, searched with its subfolders; or the files.
        series: SeriesInstanceUID, where there are several.
        threads: files decoded at a time.

    Returns:
        The scan: slices along their normal, int16 where the units are whole numbers, else float32.

    Raises:
        FileNotFoundError: no such folder, or no DICOM file in it.
        ImportError: pydicom is not installed.
        ValueError: several series and none named, only localisers, mixed or non-axial slices,
            missing slices or geometry, no CT, damage, or a compression that needs a plugin.
    """
    where, slices = _headers(source)
    chosen = _choose(where, slices, series)
    check_alike(chosen, where)
    places, affine, depth = geometry(chosen, where)
    check_axial(affine, where)
    first = chosen[0]
    _check_decoder(first)
    whole = all(part.slope == 1 and part.intercept.is_integer() for part in chosen)
    values = np.empty((depth, first.rows, first.columns), np.int16 if whole else np.float32)

    def load(number: int) -> None:
        values[places[number]] = _hounsfield(chosen[number], values.dtype)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(load, range(len(chosen))))
    _interpolate(values, places)
    return CTVolume(values, affine, source=where)


def list_series(source: str | os.PathLike | Sequence[str | os.PathLike]) -> dict[str, str]:
    """Return SeriesInstanceUID and a description of every series, localisers left out.

    The source is that of `read_dicom`.

    Raises:
        FileNotFoundError: see there.
        ValueError: a file is damaged.
    """
    return {uid: _described(parts) for uid, parts in _by_series(_headers(source)[1]).items()}


def series_of(path: str | os.PathLike) -> str:
    """Return the SeriesInstanceUID of a file."""
    return read_header(Path(path), _pydicom()).series


def is_dicom(path: Path) -> bool:
    """Whether a file begins as DICOM files do."""
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _headers(source: str | os.PathLike | Sequence) -> tuple[str, list[Slice]]:
    """Name the place, and read the headers of all images there."""
    pydicom = _pydicom()
    if isinstance(source, (str, os.PathLike)):
        folder = Path(source)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        files = [file for file in files if file.name[0] != "." and file.name != "DICOMDIR"]
    else:
        files = [Path(file) for file in source]
        folder = files[0].parent if files else Path()
    known, others = [], []
    for file in files:
        if is_dicom(file):
            known.append(file)
        elif file.suffix.lower() in SUFFIXES:
            raise ValueError(f"{file}: damaged or no DICOM file: it does not begin as one")
        else:
            others.append(file.name)
    if not known:
        raise FileNotFoundError(f"{folder}: no DICOM file, and no PNG or TIFF slices")
    if others:
        warnings.warn(
            f"{folder}: {len(others)} files that are not DICOM passed over, first {others[0]}",
            stacklevel=3,
        )
    return str(folder), _once(str(folder), [read_header(file, pydicom) for file in known])


def _once(where: str, slices: list[Slice]) -> list[Slice]:
    """Leave out copies of a file, with a warning."""
    kept: dict[tuple, Slice] = {}
    copies = []
    for part in slices:
        # With the position, as some exports give all slices one UID.
        key = (part.series, part.instance or part.path, *part.position)
        if kept.setdefault(key, part) is not part:
            copies.append(part.path.name)
    if copies:
        warnings.warn(
            f"{where}: {len(copies)} files lie there twice (equal SOPInstanceUID); passed over, "
            f"first {copies[0]}",
            stacklevel=4,
        )
    return list(kept.values())


def _choose(where: str, slices: list[Slice], series: str | None) -> list[Slice]:
    groups = _by_series(slices)
    if not groups:
        raise ValueError(f"{where}: only localisers (scouts), which are no scan")
    listed = [f"{uid} ({_described(parts)})" for uid, parts in groups.items()]
    shown = ", ".join(listed[:_LISTED]) + (", ..." if len(listed) > _LISTED else "")
    if series is not None and series not in groups:
        raise ValueError(f"{where}: no series {series}; there is {shown}")
    if series is None and len(groups) > 1:
        raise ValueError(
            f"{where}: {len(groups)} series mixed: name one (series, --series) of {shown}"
        )
    chosen = groups[series] if series is not None else next(iter(groups.values()))
    scouts = sum(part.localiser for part in slices)
    if scouts:
        warnings.warn(f"{where}: {scouts} localisers (scouts) passed over", stacklevel=3)
    return chosen


def _by_series(slices: list[Slice]) -> dict[str, list[Slice]]:
    groups: dict[str, list[Slice]] = {}
    for part in slices:
        if not part.localiser:
            groups.setdefault(part.series, []).append(part)
    return groups


def _described(parts: list[Slice]) -> str:
    description = parts[0].description[:40]
    return f"{len(parts)} slices" + (f", {description!r}" if description else "")


def _check_decoder(part: Slice) -> None:
    """Refuse a compression that nothing installed can decode, before anything is decoded."""
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    syntax = UID(part.syntax)
    if not syntax.is_compressed or syntax.is_deflated:
        return
    try:
        ready = get_decoder(syntax).is_available
    except NotImplementedError:
        ready = False
    if not ready:
        raise ValueError(
            f"{part.path}: compressed as {syntax.name}, which needs a plugin of pydicom: "
            "pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
        )


def _hounsfield(part: Slice, kind: np.dtype) -> np.ndarray:
    from pydicom.pixels import pixel_array

    try:
        stored = pixel_array(part.path)
    except Exception as error:  # decoders meet damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{part.path}: damaged or unsupported pixels: {reason}") from error
    if stored.shape != (part.rows, part.columns):
        raise ValueError(f"{part.path}: its pixels are not {part.columns}x{part.rows}, as it says")
    if kind == np.int16:
        limits = np.iinfo(np.int16)
        return np.clip(stored.astype(np.int32) + int(part.intercept), limits.min, limits.max)
    return stored * np.float32(part.slope) + np.float32(part.intercept)


def _interpolate(values: np.ndarray, places: list[int]) -> None:
    """Fill the slices between those that are there, in place."""
    for below, above in zip(places, places[1:], strict=False):
        for place in range(below + 1, above):
            share = (place - below) / (above - below)
            mixed = (1 - share) * values[below].astype(np.float32) + share * values[above]
            values[place] = np.rint(mixed) if values.dtype == np.int16 else mixed


def _pydicom() -> ModuleType:
    return from_extra("ct", "pydicom", "reading DICOM")
