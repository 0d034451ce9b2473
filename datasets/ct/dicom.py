"""Reading a CT series from DICOM files (pydicom does the format).

Slices are sorted by their position along their normal, never by name or number. Hounsfield units
are slope and intercept of the stored values; MONOCHROME1 asks a viewer to show low values bright
and does not change them. A file holds one slice, or as enhanced CT (DICOM part 3, A.38) many, whose
geometry stands in functional groups. Files without the preamble are data sets of their own.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import cv2
import numpy as np

from ...common.extras import from_extra
from .volume import CTVolume, check_axial, plane

__all__ = [
    "SUFFIXES",
    "Slice",
    "check_alike",
    "is_dicom",
    "list_series",
    "read_dicom",
    "read_slices_of",
    "series_of",
]

#: Endings that DICOM files may have, in small letters.
SUFFIXES = (".dcm", ".dicom", ".ima")

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
_STARTS = (b"\x08\x00", b"\x02\x00", b"\x00\x08")  # groups that a data set begins with
_MOST_MISSING = 0.1  # share of a series' slices
_UNEVEN = 0.25  # of the distance between slices; positions are often rounded to 0.1 mm
_WIDEST = 6.0  # of uneven distances to their median, and of the median to them
_SKEW = 0.02  # directions are often rounded to 0.01
_AXIAL = 0.7  # of the normal, along the body
_LISTED = 5  # names in a message
_PLUGINS = "pip install 'vizoo[ct]' brings those that read most"


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


class _ForeignError(ValueError):
    """A DICOM file that is no CT image, such as a report; its argument is the kind."""


class _UnusableError(ValueError):
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
        images = _images(header, sizes["NumberOfFrames"])
    except Exception as error:  # a parser meets damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged DICOM header: {reason}") from error
    kind, modality = str(words["SOPClassUID"] or ""), str(words["Modality"] or "")
    if modality not in ("", "CT"):
        raise _ForeignError(modality)
    if "Rows" not in header:
        raise ValueError(f"{path}: damaged DICOM header: it ends before the size of the image")
    if not modality and kind not in _CT_CLASSES:
        raise _ForeignError(UID(kind).name or "no modality")
    series = str(words["SeriesInstanceUID"])
    if sizes["SamplesPerPixel"] != 1:
        count = sizes["SamplesPerPixel"]
        raise _UnusableError(series, f"{path}: {count} samples a pixel; a CT slice is grey")
    slices = []
    for number, (kind, image) in enumerate(images):
        localiser = "LOCALIZER" in [str(word).upper() for word in kind or words["ImageType"] or ()]
        known = {}
        for tag, shape in _GEOMETRY.items():
            value = np.ones(shape) if localiser and image[tag] is None else image[tag]
            if value is None or value.shape != shape or not np.isfinite(value).all():
                where = f" of slice {number + 1}" if len(images) > 1 else ""
                raise _UnusableError(
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
                str(words["BodyPartExamined"] or ""),
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


def _images(header: Any, frames: int) -> list[tuple[Any, dict[str, np.ndarray | None]]]:
    """Kind and geometry of each image of a file."""
    each = header.get(_EACH)
    if not each:
        plain = {tag: _numbers(header.get(tag)) for tag in _GEOMETRY}
        if frames > 1:  # nothing says where they lie
            plain["ImagePositionPatient"] = None
        return [(None, plain)]
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


def _numbers(value: Any) -> np.ndarray | None:
    return None if value in (None, "") else np.array(value, np.float64)


def _guessed_syntax(header: Any) -> str:
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    implicit, little = header.original_encoding
    explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
    return str(ImplicitVRLittleEndian if implicit else explicit)


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


def _places(slices: list[Slice], where: str, resample: bool) -> tuple[np.ndarray, int]:
    """Sort slices along their normal, in place, and find where they lie.

    Returns:
        The place of each slice in the volume, (N,), in slices from the first; their number.

    Raises:
        ValueError: one slice, two at one position, uneven distances that are not to be resampled,
            or too many missing.
    """
    if len(slices) < 2:
        raise ValueError(f"{where}: one slice; a scan has several")
    normal = np.cross(*slices[0].directions)
    normal = normal / np.linalg.norm(normal)
    slices.sort(key=lambda part: float(part.position @ normal))
    heights = np.array([part.position @ normal for part in slices])
    steps = np.diff(heights)
    if steps.min() < 1e-3:
        at = int(steps.argmin())
        raise ValueError(
            f"{where}: {_name(slices[at])} and {_name(slices[at + 1])} lie at one position: two "
            "scans mixed in one series"
        )
    median = float(np.median(steps))
    places = np.concatenate([[0.0], np.rint(steps / median).cumsum()])
    depth = int(places[-1]) + 1
    step = (heights[-1] - heights[0]) / max(1, depth - 1)
    off = np.abs(heights - heights[0] - step * places).max()
    # Three wide steps on end are how a part was scanned, fewer are slices that were lost.
    wide = np.convolve(steps > 1.5 * median, np.ones(3)).max() == 3
    if off > _UNEVEN * step or steps.min() < 0.5 * step or wide:
        apart = f"{where}: slices {steps.min():.3g} to {steps.max():.3g} mm apart"
        if not resample or not median / _WIDEST < steps.min() <= steps.max() < median * _WIDEST:
            raise ValueError(f"{apart}; a scan has them at even distances")
        depth = round((heights[-1] - heights[0]) / median) + 1
        step = (heights[-1] - heights[0]) / (depth - 1)
        warnings.warn(f"{apart}: resampled to {step:.3g} mm", stacklevel=4)
        return (heights - heights[0]) / step, depth
    if missing := depth - len(slices):
        gaps = [_name(slices[at]) for at in np.flatnonzero(np.diff(places) > 1)]
        what = f"{where}: {missing} of {depth} slices are missing, after {_few(gaps)}"
        if missing > _MOST_MISSING * depth:
            raise ValueError(f"{what}; copy the whole series")
        warnings.warn(f"{what}; interpolated from their neighbours", stacklevel=4)
    return places, depth


def _affine(slices: list[Slice], depth: int) -> np.ndarray:
    """From (column, row, slice) to millimetres to the left, the back and the head."""
    first = slices[0]
    affine = np.eye(4)
    affine[:3, 0] = first.directions[0] * first.spacing[1]
    affine[:3, 1] = first.directions[1] * first.spacing[0]
    # Not along the normal: the gantry may be tilted.
    affine[:3, 2] = (slices[-1].position - first.position) / (depth - 1)
    affine[:3, 3] = first.position
    return affine


def _kind(part: Slice) -> str:
    height, width = part.spacing
    names = plane(np.cross(*part.directions))
    return f"{part.columns}x{part.rows} {names} of {width:.3g}x{height:.3g} mm"


def read_dicom(
    source: str | os.PathLike | Sequence[str | os.PathLike],
    series: str | None = None,
    threads: int = 2,
    resample: bool = True,
) -> CTVolume:
    """Read one CT series.

    Localisers and what is no CT image are passed over, with a warning, as are a few slices that are
    missing between others: they are interpolated. Those missing at the ends cannot be noticed.

    Args:
        source: a folder, searched with its subfolders; or the files.
        series: SeriesInstanceUID, where there are several.
        threads: files decoded at a time.
        resample: whether slices at uneven distances are interpolated at even ones, and those of a
            tilted gantry shifted so that the third axis is their normal. If not, the first are
            refused and the others kept as they are.

    Returns:
        The scan: slices along their normal, int16 where the units are whole numbers, else float32.

    Raises:
        FileNotFoundError: no such folder, or no DICOM file in it.
        ImportError: pydicom is not installed.
        ValueError: several series and none named, only localisers, mixed or non-axial slices,
            missing slices or geometry, no CT, damage, or a compression that needs a plugin.
    """
    where, slices, unusable = _headers(source)
    chosen = _choose(where, slices, unusable, series)
    check_alike(chosen, where)
    places, depth = _places(chosen, where, resample)
    affine = _affine(chosen, depth)
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])  # to RAS+
    check_axial(flip @ affine, where)
    first = chosen[0]
    _check_decoder(first)
    whole = all(part.slope == 1 and part.intercept.is_integer() for part in chosen)
    values = np.empty((len(chosen), first.rows, first.columns), np.int16 if whole else np.float32)
    pydicom = _pydicom()

    def load(number: int) -> None:
        values[number] = _hounsfield(chosen[number], values.dtype, pydicom)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(load, range(len(chosen))))
    values = _interpolated(values, places, depth)
    if resample:
        values, affine = _straightened(values, affine, where)
    return CTVolume(values, flip @ affine, source=where, part=first.part)


def list_series(source: str | os.PathLike | Sequence[str | os.PathLike]) -> dict[str, str]:
    """Return SeriesInstanceUID and a description of every series, localisers left out.

    The source is that of `read_dicom`.

    Raises:
        FileNotFoundError: see there.
        ValueError: a file is damaged.
    """
    return {uid: _described(parts) for uid, parts in _by_series(_headers(source)[1]).items()}


def series_of(path: str | os.PathLike) -> str:
    """Return the SeriesInstanceUID of a file.

    Raises:
        ValueError: damaged, no CT image, or one that cannot be used.
    """
    try:
        return read_slices_of(Path(path), _pydicom())[0].series
    except _ForeignError as error:
        raise ValueError(f"{path}: modality {error}; wants a CT series") from error
    except _UnusableError as error:
        raise ValueError(error.args[1]) from error


def is_dicom(path: Path) -> bool:
    """Whether a file begins as DICOM files do, or as a data set without their preamble."""
    with path.open("rb") as file:
        start = file.read(132)
    if start[128:] == b"DICM":
        return True
    return path.suffix.lower() in (*SUFFIXES, "") and len(start) > 8 and start[:2] in _STARTS


def _headers(source: str | os.PathLike | Sequence) -> tuple[str, list[Slice], dict[str, str]]:
    """Name the place, and read the headers of all images there.

    Returns:
        The place, what can be used, and for each series that has some, why an image cannot.
    """
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
    slices: list[Slice] = []
    unusable: dict[str, str] = {}
    others: list[str] = []
    foreign: Counter[str] = Counter()
    for file in files:
        if not is_dicom(file):
            if file.suffix.lower() in SUFFIXES and not _is_text(file):
                raise ValueError(f"{file}: damaged or no DICOM file: it does not begin as one")
            others.append(file.name)
            continue
        try:
            slices += read_slices_of(file, pydicom)
        except _ForeignError as error:
            foreign[str(error)] += 1
        except _UnusableError as error:
            unusable.setdefault(*error.args)
    if not slices and not unusable:
        if foreign:
            raise ValueError(f"{folder}: modality {', '.join(foreign)}; wants a CT series")
        raise FileNotFoundError(f"{folder}: no DICOM file, and no PNG or TIFF slices")
    if others:
        _tell(f"{folder}: {len(others)} files that are not DICOM passed over, first {others[0]}")
    if foreign:
        kinds = ", ".join(f"{count} {kind}" for kind, count in foreign.items())
        _tell(f"{folder}: {foreign.total()} files that are no CT images passed over ({kinds})")
    return str(folder), _once(str(folder), slices), unusable


def _tell(what: str) -> None:
    warnings.warn(what, stacklevel=4)


def _is_text(path: Path) -> bool:
    """Whether a file is of words, whatever it is called."""
    data = path.read_bytes()[:4096]
    return bool(data) and all(byte in b"\t\n\r\f" or byte >= 32 for byte in data)


def _once(where: str, slices: list[Slice]) -> list[Slice]:
    """Leave out copies of a file, with a warning."""
    kept: dict[tuple, Slice] = {}
    copies = []
    for part in slices:
        # With the position, as some exports give all slices one UID.
        key = (part.series, part.instance or part.path, part.frame, *part.position)
        if kept.setdefault(key, part) is not part:
            copies.append(part.path.name)
    if copies:
        _tell(
            f"{where}: {len(copies)} files lie there twice (equal SOPInstanceUID); passed over, "
            f"first {copies[0]}"
        )
    return list(kept.values())


def _choose(
    where: str, slices: list[Slice], unusable: dict[str, str], series: str | None
) -> list[Slice]:
    groups = _by_series(slices)
    if series is None and not groups and unusable:
        raise ValueError(next(iter(unusable.values())))
    if not groups and not unusable:
        raise ValueError(f"{where}: only localisers (scouts), which are no scan")
    shown = _few([f"{uid} ({_described(parts)})" for uid, parts in groups.items()])
    if series is not None and series not in groups and series not in unusable:
        raise ValueError(f"{where}: no series {series}; there is {shown}")
    if series is None and len(groups) > 1:
        raise ValueError(
            f"{where}: {len(groups)} series mixed: name one (series, --series) of {shown}"
        )
    series = series or next(iter(groups))
    if series in unusable:
        raise ValueError(unusable.pop(series))
    if unusable:
        first = next(iter(unusable.values()))
        _tell(f"{where}: {len(unusable)} series without usable images passed over, first {first}")
    if scouts := sum(part.localiser for part in slices):
        _tell(f"{where}: {scouts} localisers (scouts) passed over")
    return groups[series]


def _by_series(slices: list[Slice]) -> dict[str, list[Slice]]:
    groups: dict[str, list[Slice]] = {}
    for part in slices:
        if not part.localiser:
            groups.setdefault(part.series, []).append(part)
    return groups


def _described(parts: list[Slice]) -> str:
    description = parts[0].description[:40]
    return f"{len(parts)} slices" + (f", {description!r}" if description else "")


def _name(part: Slice) -> str:
    return part.path.name if part.frame is None else f"{part.path.name} (slice {part.frame + 1})"


def _few(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


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
            f"{part.path}: compressed as {syntax.name}, which needs a plugin of pydicom: {_PLUGINS}"
        )


def _hounsfield(part: Slice, kind: np.dtype, pydicom: ModuleType) -> np.ndarray:
    from pydicom.pixels import pixel_array
    from pydicom.uid import UID

    try:
        source: Any = part.path
        if part.bare or UID(part.syntax).is_deflated:  # which cannot be read in pieces
            source = pydicom.dcmread(part.path, force=True)
            source.file_meta.TransferSyntaxUID = UID(part.syntax)
        stored = pixel_array(source, index=part.frame)
    except Exception as error:  # decoders meet damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = f" ({_PLUGINS})" if UID(part.syntax).is_encapsulated else ""
        raise ValueError(f"{part.path}: damaged or unsupported pixels: {reason}{hint}") from error
    if stored.shape != (part.rows, part.columns):
        raise ValueError(f"{part.path}: its pixels are not {part.columns}x{part.rows}, as it says")
    if kind == np.int16:
        limits = np.iinfo(np.int16)
        return np.clip(stored.astype(np.int32) + int(part.intercept), limits.min, limits.max)
    return stored * np.float32(part.slope) + np.float32(part.intercept)


def _interpolated(values: np.ndarray, places: np.ndarray, depth: int) -> np.ndarray:
    """Slices (D, H, W) at 0 to ``depth`` - 1 from those at places (N,)."""
    if np.array_equal(places, np.arange(depth)):
        return values
    even = np.empty((depth, *values.shape[1:]), values.dtype)
    for number in range(depth):
        above = int(np.searchsorted(places, number).clip(0, len(places) - 1))
        below = above if places[above] <= number else above - 1
        share = (number - places[below]) / max(places[above] - places[below], 1e-9)
        if share < 1e-6:
            even[number] = values[below]
            continue
        mixed = (1 - share) * values[below].astype(np.float32) + share * values[above]
        even[number] = np.rint(mixed) if values.dtype == np.int16 else mixed
    return even


def _straightened(
    values: np.ndarray, affine: np.ndarray, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Shift slices of a tilted gantry in their planes, so that the third axis is their normal.

    What the shifts bring in has the lowest value of the scan.
    """
    across, down = (affine[:3, axis] / np.linalg.norm(affine[:3, axis]) for axis in (0, 1))
    step = affine[:3, 2]
    # Pixels, along rows and along columns, from one slice to the next.
    drift = np.array([step @ across, step @ down]) / np.linalg.norm(affine[:3, :2], axis=0)
    upright = step - (step @ across) * across - (step @ down) * down
    slope = np.linalg.norm(step - upright) / np.linalg.norm(upright)
    if slope < _SKEW:
        return values, affine
    warnings.warn(
        f"{where}: gantry tilted by {np.degrees(np.arctan(slope)):.0f} degrees: slices shifted so "
        "that their axis is upright",
        stacklevel=3,
    )
    depth, height, width = values.shape
    whole = drift * (depth - 1)
    start = np.minimum(whole, 0.0)
    columns, rows = (np.array([width, height]) + np.ceil(np.abs(whole))).astype(int).tolist()
    lowest, straight = float(values.min()), np.empty((depth, rows, columns), values.dtype)
    for number in range(depth):
        x, y = start - number * drift
        straight[number] = cv2.warpAffine(
            values[number],
            np.array([[1.0, 0.0, x], [0.0, 1.0, y]]),
            (columns, rows),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=lowest,
        )
    straightened = affine.copy()
    straightened[:3, 2] = upright
    straightened[:3, 3] += affine[:3, :2] @ start
    return straight, straightened


def _pydicom() -> ModuleType:
    return from_extra("ct", "pydicom", "reading DICOM")
