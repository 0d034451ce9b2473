"""Reading a CT series from DICOM files (pydicom does the format).

Slices are sorted by their position along their normal, never by name or number. Hounsfield units
are slope and intercept of the stored values; MONOCHROME1 asks a viewer to show low values bright
and does not change them.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np

from ...common.extras import from_extra
from ...common.files import few
from .dicom_headers import SKEW, ForeignError, Slice, UnusableError, check_alike, read_slices_of
from .volume import CTVolume, border, check_axial

__all__ = ["SUFFIXES", "has_slices", "is_dicom", "list_series", "read_dicom", "series_of"]

#: Endings that DICOM files may have, in small letters.
SUFFIXES = (".dcm", ".dicom", ".ima")

_STARTS = (b"\x08\x00", b"\x02\x00", b"\x00\x08")  # groups that a data set begins with
_MOST_MISSING = 0.1  # share of a series' slices
_UNEVEN = 0.25  # of the distance between slices; positions are often rounded to 0.1 mm
_LONGEST_GAP = 3  # slices on end that may be missing
_PART = 3  # distances on end that a part of a scan has at least
_WIDEST = 6.0  # greatest distance between slices in the smallest that is resampled
_STEEPEST = 35.0  # degrees; gantries tilt by at most 30
_SAME = 0.05  # mm between slices of one place; scanners take no steps so small
_AIR = -1000  # Hounsfield units
_PLUGINS = "pip install 'vizoo[ct]' brings those that read most"


def _places(slices: list[Slice], where: str, resample: bool) -> tuple[np.ndarray, int]:
    """Sort slices along their normal, in place, and find where they lie.

    Returns:
        The place of each slice in the volume, (N,), in slices from the first; their number.
    """
    if len(slices) < 2:
        raise ValueError(f"{where}: one slice; a scan has several")
    normal = np.cross(*slices[0].directions)
    normal = normal / np.linalg.norm(normal)
    slices.sort(key=lambda part: float(part.position @ normal))
    heights = np.array([part.position @ normal for part in slices])
    steps = np.diff(heights)
    if steps.min() < _SAME:
        at = int(steps.argmin())
        two = slices[at], slices[at + 1]
        differ = [
            f"{tag} {two[0].told[tag] or 'none'} and {two[1].told[tag] or 'none'}"
            for tag in two[0].told
            if two[0].told[tag] != two[1].told[tag]
        ]
        raise ValueError(
            f"{where}: {' and '.join(map(_name, two))} lie at one position"
            f"{f' ({few(differ)})' if differ else ''}: two scans, or phases, mixed in one series; "
            "export each as its own"
        )
    median = float(np.median(steps))
    places = np.concatenate([[0.0], np.rint(steps / median).cumsum()])
    depth = int(places[-1]) + 1
    step = (heights[-1] - heights[0]) / max(1, depth - 1)
    off = np.abs(heights - heights[0] - step * places).max()
    gaps = np.flatnonzero(np.diff(places) > 1)
    # Parts that are scanned at other distances have several slices each; lost slices leave gaps.
    parts = _parts(steps)
    if off > _UNEVEN * step or steps.min() < 0.5 * step or (len(gaps) and min(parts) >= _PART):
        apart = f"{where}: slices {steps.min():.3g} to {steps.max():.3g} mm apart"
        if not resample or min(parts) < _PART or steps.max() > _WIDEST * steps.min():
            raise ValueError(f"{apart}; a scan has them at even distances")
        step = float(steps.min())
        depth = round((heights[-1] - heights[0]) / step) + 1
        step = (heights[-1] - heights[0]) / (depth - 1)
        warnings.warn(f"{apart}: resampled to {step:.3g} mm", stacklevel=4)
        return (heights - heights[0]) / step, depth
    if missing := depth - len(slices):
        sides = [f"{_name(slices[at])} and {_name(slices[at + 1])}" for at in gaps]
        what = f"{where}: {missing} of {depth} slices are missing, between {few(sides)}"
        if missing > _MOST_MISSING * depth or np.diff(places).max() > _LONGEST_GAP + 1:
            raise ValueError(f"{what}; copy the whole series")
        warnings.warn(f"{what}; interpolated from their neighbours", stacklevel=4)
    return places, depth


def _parts(steps: np.ndarray) -> list[int]:
    """Lengths of the runs of equal distances (N,)."""
    changes = np.flatnonzero(np.abs(np.diff(steps)) > _UNEVEN * np.minimum(steps[1:], steps[:-1]))
    return np.diff([0, *(changes + 1), len(steps)]).tolist()


def _check_line(slices: list[Slice], places: np.ndarray, where: str) -> None:
    """Refuse slices whose corners do not lie on one line."""
    positions = np.stack([part.position for part in slices])
    way = (positions[-1] - positions[0]) / (places[-1] - places[0])
    off = np.linalg.norm(positions - positions[0] - places[:, None] * way, axis=1)
    worst = int(off.argmax())
    if off[worst] > max(slices[0].spacing.max(), _UNEVEN * np.linalg.norm(way)):
        raise ValueError(
            f"{where}: {_name(slices[worst])} lies {off[worst]:.3g} mm beside the line of the "
            "others: two scans mixed in one series"
        )


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
    _check_line(chosen, places, where)
    affine = _affine(chosen, depth)
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])  # to RAS+
    check_axial(flip @ affine, where)
    first = chosen[0]
    for part in {part.syntax: part for part in chosen}.values():
        _check_decoder(part)
    if any(part.told["LossyImageCompression"] == "01" for part in chosen):
        _tell(f"{where}: was compressed with loss, which may change what a network sees")
    whole = all(part.slope == 1 and part.intercept.is_integer() for part in chosen)
    values = np.empty((len(chosen), first.rows, first.columns), np.int16 if whole else np.float32)
    pydicom = _pydicom()
    from pydicom.uid import UID

    @lru_cache(maxsize=threads)
    def opened(path: Path, syntax: str) -> Any:
        image = pydicom.dcmread(path, force=True)
        image.file_meta.TransferSyntaxUID = UID(syntax)
        return image

    def load(number: int) -> None:
        part = chosen[number]
        # Each piece costs the header anew; some cannot be read in pieces.
        whole = part.frame is not None or part.bare or UID(part.syntax).is_deflated
        values[number] = _hounsfield(
            part, values.dtype, partial(opened, part.path, part.syntax) if whole else None
        )

    load(0)  # before several threads open what it comes from
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(load, range(1, len(chosen))))
    straight = _interpolated(values, places, depth)
    if resample:
        straight, affine = _straightened(straight, affine, where)
    resampled = straight is not values
    region, told = first.told["BodyPartExamined"], first.told
    return CTVolume(
        straight, flip @ affine, source=where, part=region, resampled=resampled, told=told
    )


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
    except ForeignError as error:
        raise ValueError(f"{path}: modality {error}; wants a CT series") from error
    except UnusableError as error:
        raise ValueError(error.args[1]) from error


def has_slices(files: Sequence[Path]) -> bool:
    """Whether a CT slice is among DICOM files, usable or not; localisers are none."""
    pydicom = _pydicom()
    for file in files:
        try:
            if not all(part.localiser for part in read_slices_of(file, pydicom)):
                return True
        except ForeignError:
            continue
        except ValueError:  # damaged, to be said when it is read
            return True
    return False


def is_dicom(path: Path) -> bool:
    """Whether a file begins as DICOM files do, or as a data set without their preamble."""
    with path.open("rb") as file:
        start = file.read(132)
    if start[128:] == b"DICM":
        return True
    named = path.suffix.lower() in (*SUFFIXES, "") or path.suffix[1:].isdigit()  # UIDs end so
    return named and len(start) > 8 and start[:2] in _STARTS


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
        files = [file for file in files if file.name[0] != "." and file.name.upper() != "DICOMDIR"]
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
        except ForeignError as error:
            foreign[str(error)] += 1
        except UnusableError as error:
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
    shown = few([f"{uid} ({_described(parts)})" for uid, parts in groups.items()])
    if series is not None and series not in groups and series not in unusable:
        raise ValueError(f"{where}: no series {series}; there is {shown}")
    if series is None and len(groups) > 1:
        raise ValueError(
            f"{where}: {len(groups)} series mixed: name one as `series`, or by --series: {shown}"
        )
    series = series or next(iter(groups))
    if series in unusable:
        raise ValueError(unusable[series])
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
    description = parts[0].told["SeriesDescription"][:40]
    return f"{len(parts)} slices" + (f", {description!r}" if description else "")


def _name(part: Slice) -> str:
    return part.path.name if part.frame is None else f"{part.path.name} (slice {part.frame + 1})"


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


def _hounsfield(part: Slice, kind: np.dtype, opened: Callable[[], Any] | None) -> np.ndarray:
    """A slice in Hounsfield units, (H, W), from its file or from what is opened already."""
    from pydicom.pixels import pixel_array
    from pydicom.uid import UID

    try:
        source = part.path if opened is None else opened()
        stored = pixel_array(source, index=part.frame)
    except Exception as error:  # decoders meet damage in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = f" ({_PLUGINS})" if UID(part.syntax).is_encapsulated else ""
        raise ValueError(f"{part.path}: damaged or unsupported pixels: {reason}{hint}") from error
    if stored.shape != (part.rows, part.columns):
        raise ValueError(f"{part.path}: its pixels are not {part.rows}x{part.columns}, as it says")
    values: np.ndarray
    if kind == np.int16:
        limits = np.iinfo(np.int16)
        values = np.clip(stored.astype(np.int32) + int(part.intercept), limits.min, limits.max)
    else:
        values = stored * np.float32(part.slope) + np.float32(part.intercept)
    # Most padding is darker than air already.
    if part.padding and part.slope * part.padding[1] + part.intercept > _AIR:
        low, high = part.padding
        # Padding makes a round picture a rectangle; elsewhere such a value is one of the scan's.
        _, labels = cv2.connectedComponents(
            ((stored >= low) & (stored <= high)).astype(np.uint8), connectivity=4
        )
        values[np.isin(labels, np.setdiff1d(border(labels), [0]))] = _AIR
    return values


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
    if slope < SKEW:
        return values, affine
    tilt = np.degrees(np.arctan(slope))
    if tilt > _STEEPEST:
        raise ValueError(f"{where}: slices drift by {tilt:.0f} degrees, more than a gantry tilts")
    warnings.warn(
        f"{where}: gantry tilted by {tilt:.0f} degrees: slices shifted so that their axis is "
        "upright",
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
