"""Calibration files of rectified stereo rigs.

Middlebury 2014/v3 and ETH3D two-view ``calib.txt``::

    cam0=[3997.684 0 1176.728; 0 3997.684 1011.728; 0 0 1]
    cam1=[3997.684 0 1307.839; 0 3997.684 1011.728; 0 0 1]
    doffs=131.111
    baseline=193.001          (millimetres in both data sets)
    width=2964
    height=1988
    ndisp=280

and KITTI's ``calib_cam_to_cam`` and ``calib`` files (``P_rect_02: ...`` or ``P2: ...``, metres).
"""

from __future__ import annotations

import itertools
import math
import os
import re
from dataclasses import dataclass, replace

from ...common.files import write_text
from ..files import check_choice, read_text

__all__ = ["StereoCalibration", "read_calibration", "scaling_notes", "write_calibration"]

_FILE_LIMIT = 1 << 16  # bytes
PER_METRE = {"m": 1, "cm": 100, "mm": 1000}
_FIELD = re.compile(r"\s*([^=:]+?)\s*[=:]\s*(.*?)\s*$")
_KITTI_COLOUR = (("P_rect_02", "P_rect_03"), ("P2", "P3"))
_KITTI_GREY = (("P_rect_00", "P_rect_01"), ("P0", "P1"))


@dataclass(frozen=True)
class StereoCalibration:
    """A rectified stereo pair's cameras, as seen from the left one.

    The principal point is the left camera's, the first pixel's centre 0; the image's centre is
    taken where it is not known. Depth is focal * baseline / (disparity + doffs).

    Raises:
        ValueError: a value is not finite, or a focal length, the baseline or a size not positive.
    """

    focal: float  #: horizontal focal length, pixels
    baseline: float  #: distance between the cameras, metres
    cx: float | None = None  #: of the principal point, pixels; ``None`` where not known
    cy: float | None = None  #: of the principal point, pixels; ``None`` where not known
    doffs: float = 0.0  #: the right principal point's x minus the left one's, pixels
    width: int | None = None  #: of the images that this belongs to, pixels; ``None``: not known
    height: int | None = None  #: of these images, pixels; ``None``: not known
    focal_y: float | None = None  #: vertical focal length, pixels; ``None``: as the horizontal one
    ndisp: int | None = None  #: a bound of the disparities, pixels, where the file gives one

    def __post_init__(self) -> None:
        for name in ("focal", "baseline", "focal_y", "width", "height", "ndisp"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"calibration: {name} must be positive and finite, got {value:g}")
        for name in ("cx", "cy", "doffs"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"calibration: {name} must be finite, got {value}")

    def fitted(self, height: int, width: int) -> StereoCalibration:
        """The calibration of images of a size: itself, where it is of that size or of none.

        Raises:
            ValueError: as `resized`.
        """
        if (self.height, self.width) in ((None, None), (height, width)):
            return self
        return self.resized(height, width)

    def resized(self, height: int, width: int) -> StereoCalibration:
        """Return the calibration of the same images scaled to another size, in pixels.

        Raises:
            ValueError: this calibration knows no size, or one of another shape (more than 2 % off).
        """
        if self.width is None or self.height is None:
            raise ValueError("calibration: its image size is not known, so it cannot be scaled")
        across, down = width / self.width, height / self.height
        if abs(across / down - 1) > 0.02:
            raise ValueError(
                f"calibration is for images of {self.height}x{self.width} (height x width), these "
                f"have {height}x{width}: not the same picture at another scale"
            )
        return replace(
            self,
            focal=self.focal * across,
            cx=None if self.cx is None else (self.cx + 0.5) * across - 0.5,
            cy=None if self.cy is None else (self.cy + 0.5) * down - 0.5,
            doffs=self.doffs * across,
            width=width,
            height=height,
            focal_y=(self.focal_y or self.focal) * down,
            ndisp=None if self.ndisp is None else math.ceil(self.ndisp * across),
        )


def scaling_notes(size: tuple[int | None, int | None], height: int, width: int) -> list[str]:
    """What the user is told where a calibration of a size (height, width) is fitted to another."""
    if size in ((None, None), (height, width)):
        return []
    known = f"{size[0]}x{size[1]} images (height x width)"
    return [f"the calibration is for {known} and was scaled to {height}x{width}"]


def read_calibration(
    path: str | os.PathLike, baseline_unit: str = "mm", *, grey: bool = False
) -> StereoCalibration:
    """Read a Middlebury, ETH3D or KITTI calibration file.

    Args:
        path: the file.
        baseline_unit: unit of the number after ``baseline=``: ``mm`` as in Middlebury's and ETH3D's
            files, ``cm`` or ``m``. KITTI's files are in metres and do not look at this.
        grey: of a KITTI file that has both, take the grey cameras (0 and 1), not those in colour
            (2 and 3), whose baseline is another.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not one of these, or its cameras are impossible (a singular matrix,
            a baseline that is not positive).
    """
    check_choice("baseline unit", baseline_unit, tuple(PER_METRE))
    text = read_text(path, "calibration", _FILE_LIMIT)
    lines = (_FIELD.match(line) for line in text.splitlines())
    fields = {line[1]: line[2] for line in lines if line}
    try:
        if "cam0" in fields:
            return _from_middlebury(fields, PER_METRE[baseline_unit])
        both = (_KITTI_COLOUR, _KITTI_GREY)
        for left, right in itertools.chain(*(reversed(both) if grey else both)):
            if left in fields and right in fields:
                return _from_kitti(fields, left, right)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    raise ValueError(
        f"{path}: not a calibration file: neither cam0=[f 0 cx; 0 f cy; 0 0 1] (Middlebury, ETH3D) "
        "nor P_rect_02: ... (KITTI) is in it; one of raw cameras is for --raw and `vizoo rectify`"
    )


def write_calibration(path: str | os.PathLike, calibration: StereoCalibration) -> None:
    """Write a Middlebury ``calib.txt`` (baseline in millimetres), atomically.

    Raises:
        ValueError: the principal point or the size is not known; that format needs them.
    """
    c = calibration
    if c.cx is None or None in (c.cy, c.width, c.height):
        raise ValueError(f"{path}: a calibration file needs cx, cy, width and height")
    fy = c.focal_y or c.focal
    lines = [
        f"cam0=[{c.focal} 0 {c.cx}; 0 {fy} {c.cy}; 0 0 1]",
        f"cam1=[{c.focal} 0 {c.cx + c.doffs}; 0 {fy} {c.cy}; 0 0 1]",
        f"doffs={c.doffs}",
        f"baseline={round(c.baseline * 1000, 9)}",
        f"width={c.width}",
        f"height={c.height}",
        *([] if c.ndisp is None else [f"ndisp={c.ndisp}"]),
    ]
    write_text(path, "\n".join(lines) + "\n")


def _from_middlebury(fields: dict[str, str], per_metre: int) -> StereoCalibration:
    if "baseline" not in fields:
        raise ValueError("no baseline= in the calibration file")
    focal, focal_y, cx, cy = _matrix(fields["cam0"], "cam0")
    if "doffs" in fields:
        doffs = _number(fields["doffs"], "doffs")
    elif "cam1" in fields:
        doffs = _matrix(fields["cam1"], "cam1")[2] - cx
    else:
        doffs = 0.0
    sizes = {name: _whole(fields[name], name) for name in ("width", "height") if name in fields}
    ndisp = _whole(fields["ndisp"], "ndisp") if fields.get("ndisp", "0") != "0" else None
    if ndisp is not None and ndisp >= sizes.get("width", math.inf):
        ndisp = None  # some of ETH3D's files give the width, which says nothing
    baseline = _number(fields["baseline"], "baseline") / per_metre
    return StereoCalibration(focal, baseline, cx, cy, doffs, focal_y=focal_y, ndisp=ndisp, **sizes)


def _from_kitti(fields: dict[str, str], left: str, right: str) -> StereoCalibration:
    first, second = ([_number(v, k) for v in fields[k].split()] for k in (left, right))
    for name, values in ((left, first), (right, second)):
        if len(values) != 12:
            raise ValueError(f"{name} has {len(values)} numbers, a projection matrix has 12")
        if values[0] <= 0 or values[5] <= 0 or values[8:11] != [0, 0, 1]:
            raise ValueError(f"{name} is not the projection matrix of a rectified camera")
    sizes, name = {}, left.replace("P_", "S_")
    if name != left and name in fields:
        numbers = [_number(v, name) for v in fields[name].split()]
        if len(numbers) != 2:
            raise ValueError(f"{name} has {len(numbers)} numbers, a size has 2")
        sizes = {"width": int(numbers[0]), "height": int(numbers[1])}
    baseline = (first[3] - second[3]) / first[0]
    return StereoCalibration(
        first[0], baseline, first[2], first[6], second[2] - first[2], focal_y=first[5], **sizes
    )


def _matrix(text: str, name: str) -> tuple[float, float, float, float]:
    """Return fx, fy, cx, cy of ``[fx 0 cx; 0 fy cy; 0 0 1]``."""
    rows = [re.split(r"[\s,]+", row.strip()) for row in text.strip("[] \t").split(";")]
    if [len(row) for row in rows] != [3, 3, 3]:
        raise ValueError(f"{name} is not a matrix [f 0 cx; 0 f cy; 0 0 1]")
    (fx, skew, cx), (zero, fy, cy), last = [[_number(v, name) for v in row] for row in rows]
    if fx <= 0 or fy <= 0 or skew or zero or last != [0, 0, 1]:
        raise ValueError(
            f"{name} is singular or not a pinhole camera [f 0 cx; 0 f cy; 0 0 1] with f > 0"
        )
    return fx, fy, cx, cy


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is not a number: {text[:40]!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} is not finite: {text[:40]!r}")
    return value


def _whole(text: str, name: str) -> int:
    value = _number(text, name)
    if value != int(value):
        raise ValueError(f"{name} is not a whole number: {text[:40]!r}")
    return int(value)
