"""Raw stereo rigs: two cameras with their lenses, and how they stand to each other.

=====================  ==========================================================================
file                   what it holds
=====================  ==========================================================================
OpenCV                 what ``stereoCalibrate`` found, by ``FileStorage`` as YAML, XML or JSON:
                       M1 D1 M2 D2 (or K1, cameraMatrix1, camera_matrix_1, left_camera_matrix ...)
                       with R and T; also in two files, as its sample writes them (intrinsics,
                       extrinsics). The unit is the board's.
Kalibr                 ``camchain.yaml``: cam0, cam1 ... with ``T_cn_cnm1``, metres
ROS                    a ``camera_info`` YAML for each camera, calibrated as a pair, metres
EuRoC                  a ``sensor.yaml`` for each camera (``T_BS``), metres
KITTI                  ``calib_cam_to_cam.txt``, of its unrectified images; or ``P2: ...``, metres
Middlebury, ETH3D      ``calib.txt``, rectified already, millimetres
=====================  ==========================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np

from ...common.files import atomic_write
from ...vision.lenses import Lens
from ..files import check_choice, read_text
from . import _rig_formats as formats
from .calibration import PER_METRE, read_calibration, scaling_notes

__all__ = ["StereoRig", "read_rig", "write_rig"]

T = TypeVar("T")

_FILE_LIMIT = 1 << 18  # bytes
_METRES_BELOW = 2.0  # an OpenCV baseline beyond is no number of metres

#: What a file of one camera is called, and the file of the other one, or of the rest.
_PARTNERS = (("left", "right"), ("cam0", "cam1"), ("intr", "extr"))
_IN_FOLDERS = (
    "calibration.yml calibration.yaml calibration.xml cam0/sensor.yaml mav0/cam0/sensor.yaml "
    "left.yaml left.yml intrinsics.yml intrinsics.yaml intrinsics.xml rig.yml camchain.yaml "
    "calib_cam_to_cam.txt calib.txt"
).split()


class _SwappedError(ValueError):
    pass


@dataclass(frozen=True, eq=False)
class StereoRig:
    """Two raw cameras.

    A point x before the left camera is rotation @ x + translation before the right one.

    Raises:
        ValueError: no rotation, no baseline, cameras that are swapped, one before the other, or
            that look apart. One above the other, as those are that lie on their side, are a rig.
    """

    left: Lens  #: the left camera's
    right: Lens  #: the right camera's
    rotation: np.ndarray  #: (3, 3)
    translation: np.ndarray  #: (3,), metres; given as OpenCV's (3, 1) too
    notes: tuple[str, ...] = ()  #: what was taken for granted while this was read, a line each

    def __post_init__(self) -> None:
        matrix = np.asarray(self.rotation, np.float64)
        if not (np.isfinite(matrix).all() and np.abs(matrix @ matrix.T - np.eye(3)).max() < 1e-2):
            raise ValueError("the rotation between the cameras is no rotation matrix")
        u, _, v = np.linalg.svd(matrix)  # files have few digits
        object.__setattr__(self, "rotation", u @ v)
        object.__setattr__(self, "translation", np.reshape(self.translation, 3).astype(np.float64))
        if np.linalg.det(u @ v) < 0:
            raise ValueError("the rotation between the cameras is a mirror image")
        if not (np.isfinite(self.translation).all() and 1e-6 < self.baseline < 1e6):
            raise ValueError(
                f"the baseline must be positive and finite, got {self.baseline:g} m: were the "
                "cameras calibrated as a pair?"
            )
        x, y, z = np.abs(self.position)
        if z > max(x, y):
            raise ValueError(
                "one camera stands before or behind the other; the two stand side by side in a "
                "stereo rig"
            )
        if x >= y and self.position[0] < 0:
            raise _SwappedError(
                f"the cameras are swapped, or both upside down: the right one stands {x:.3g} m to "
                "the left of the left one; take them in the other order"
            )
        if self.rotation[2, 2] < 0.5:
            raise ValueError("the cameras look more than 60 degrees apart")

    @property
    def baseline(self) -> float:
        """The distance between the cameras, metres."""
        return float(np.linalg.norm(self.translation))

    @property
    def position(self) -> np.ndarray:
        """Where the right camera stands before the left one, metres."""
        return -self.rotation.T @ self.translation

    def fitted(self, height: int, width: int) -> StereoRig:
        """The rig for images of a size, with a note where it was calibrated at another.

        Raises:
            ValueError: the images have another shape than those that it was calibrated with.
        """
        sizes = {(lens.height, lens.width) for lens in (self.left, self.right)}
        lenses = [lens.resized(height, width) for lens in (self.left, self.right)]
        notes = [note for size in sizes for note in scaling_notes(size, height, width)]
        return replace(self, left=lenses[0], right=lenses[1], notes=(*self.notes, *notes))


def read_rig(
    path: str | os.PathLike,
    second: str | os.PathLike | None = None,
    *,
    cameras: Sequence[int] | None = None,
    baseline_unit: str | None = None,
    lens: str | None = None,
) -> StereoRig:
    """Read a raw stereo rig from any of the module's files.

    Args:
        path: the file; or a folder that holds it by its usual name.
        second: the other file where a rig has two; by default the one beside it that is called
            alike (left and right, cam0 and cam1, intrinsics and extrinsics).
        cameras: numbers of the left and the right camera (OpenCV's are 1 and 2; of two files 0 is
            that of `path`). By default the first two; KITTI's colour cameras 2 and 3.
        baseline_unit: ``m``, ``cm`` or ``mm``, of the distance between the cameras; by default
            the format's. An OpenCV file says none: up to 2 it is taken as metres, beyond as
            millimetres, and the rig has a note of that.
        lens: of an OpenCV file that does not say so: ``pinhole``, ``fisheye`` or ``mei``.

    Raises:
        FileNotFoundError: there is no such file, or it needs another one that is not there.
        ValueError: it is damaged or none of these, a camera or the pose is missing, the lens model
            is not known, an option is not for such a file, or the rig is impossible (see
            `StereoRig`).
    """
    if baseline_unit is not None:
        check_choice("baseline unit", baseline_unit, list(PER_METRE))
    if lens is not None:
        check_choice("lens", lens, formats.LENSES)
    if cameras is not None and len(set(cameras)) != 2:
        raise ValueError(f"a stereo rig has two cameras, got {list(cameras)}")
    path = _in_folder(Path(path))
    text = read_text(path, "calibration", _FILE_LIMIT)
    try:
        pair, unit = _cameras(path, text, second, cameras, lens)
        return _rig(pair, baseline_unit or unit)
    except ValueError as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}") from None


def _cameras(
    path: Path,
    text: str,
    second: str | os.PathLike | None,
    cameras: Sequence[int] | None,
    lens: str | None,
) -> tuple[formats.Cameras, Any]:
    """The cameras of a file's text, and the unit of their distance where it is known."""
    if re.search(r"^\s*cam0\s*=", text, re.MULTILINE):
        _unused(second=second, cameras=cameras, lens=lens)
        return _rectified(path), "mm"
    if re.search(r"^(K_|P_rect_|P)\d+: *[-\d]", text, re.MULTILINE):
        _unused(second=second, lens=lens)
        if (raw := formats.kitti(text, cameras)) is None:
            _unused(cameras=cameras)
        return raw or _rectified(path), "m"
    data = formats.parse(text)
    if any("intrinsics" in formats.mapping(value) for value in data.values()):
        _unused(second=second, lens=lens)
        return formats.kalibr(data, cameras), "m"
    for keys, read in (("intrinsics", formats.euroc), ("p projectionmatrix", formats.ros)):
        if formats.find(data, keys.split()) is not None and not formats.opencv_matrices(data):
            _unused(lens=lens)
            return formats.two(read(data), _partner(read, path, second), cameras), "m"
    if formats.opencv_whole(data):
        _unused(second=second)
    elif (other := _other(path, second)) is not None:
        data = {**_second(other, dict), **data}
    return formats.opencv(data, cameras, lens), formats.find(data, ["unit"])


def _unused(**options: Any) -> None:
    """Refuse what a file of this kind leaves no choice of."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} is not for this file, which holds that itself")


def write_rig(path: str | os.PathLike, rig: StereoRig) -> None:
    """Write a rig as OpenCV's YAML or XML, as the suffix says, atomically; `read_rig` reads it.

    Such a file has one size of images: a right camera of another is scaled to the left one's.

    Raises:
        ValueError: its images have another shape.
    """
    right, width, height = rig.right, rig.left.width, rig.left.height
    if width and height and (right.width, right.height) != (width, height):
        right = right.resized(height, width)
    with atomic_write(path) as temporary:
        file = cv2.FileStorage(os.fspath(temporary), cv2.FILE_STORAGE_WRITE)
        for number, lens in enumerate((rig.left, right), start=1):
            (fx, fy), (cx, cy) = lens.focal, lens.centre
            file.write(f"lens_model{number}", lens.model)
            file.write(f"M{number}", np.array([[fx, lens.skew, cx], [0, fy, cy], [0, 0, 1.0]]))
            file.write(f"D{number}", np.array([lens.distortion or (0.0,) * 4]))
        file.write("R", rig.rotation)
        file.write("T", rig.translation[:, None])
        file.write("unit", "m")
        if width and height:
            file.write("image_width", width)
            file.write("image_height", height)
        file.release()


def _in_folder(path: Path) -> Path:
    if not path.is_dir():
        return path
    chains = sorted(path.glob("*camchain*.yaml"))
    files = [file for name in _IN_FOLDERS if (file := path / name).is_file()] or chains
    if not files:
        raise FileNotFoundError(
            f"{path}: no calibration in this folder by a usual name ({' '.join(_IN_FOLDERS)}, "
            "*camchain*.yaml); name the file"
        )
    return files[0]


def _other(path: Path, second: str | os.PathLike | None) -> Path | None:
    """The second file of a rig: the one that was named, or is called alike."""
    if second is not None:
        return Path(second)
    whole = Path(os.path.abspath(path))
    for one, two in (*_PARTNERS, *(pair[::-1] for pair in _PARTNERS)):
        for at in (-1, -2):  # in the file's name, or in its folder's
            words = list(whole.parts)
            words[at] = words[at].replace(one, two)
            other = Path(*words)
            if other != whole and other.is_file():
                return other
    return None


def _partner(
    read: Callable[[Mapping[str, Any]], formats.Camera],
    path: Path,
    second: str | os.PathLike | None,
) -> formats.Camera:
    """The other camera of a rig of which each has a file."""
    if (other := _other(path, second)) is None:
        raise ValueError(
            "one camera is missing: this file is of one, and none is beside it that is called "
            "alike (left and right, cam0 and cam1); name it as second"
        )
    return _second(other, read)


def _second(path: Path, read: Callable[[Mapping[str, Any]], T]) -> T:
    text = read_text(path, "calibration", _FILE_LIMIT)
    try:
        return read(formats.parse(text))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _rig(pair: formats.Cameras, unit: Any) -> StereoRig:
    (left, first), (right, last), numbers, notes = pair
    if abs(np.linalg.det(first)) < 1e-6:
        raise ValueError("the left camera's pose cannot be inverted")
    between = last @ np.linalg.inv(first)
    length = float(np.linalg.norm(between[:3, 3]))
    if unit is None:
        unit = "m" if length <= _METRES_BELOW else "mm"
        notes += (f"the baseline is taken as {length:.4g} {unit} (else give baseline_unit)",)
    elif unit not in list(PER_METRE):
        raise ValueError(f"the unit {unit!r} is none of m, cm, mm (else give baseline_unit)")
    try:
        return StereoRig(left, right, between[:3, :3], between[:3, 3] / PER_METRE[unit], notes)
    except _SwappedError as error:
        raise ValueError(f"{error} (cameras {numbers[1]} {numbers[0]})") from None


def _rectified(path: Path) -> formats.Cameras:
    """The cameras of a file of a rectified pair; lengths in the file's own unit."""
    c = read_calibration(path, "m")
    if c.cx is None or c.cy is None:
        raise ValueError("the principal point is not in the file")
    focal = (c.focal, c.focal_y or c.focal)
    left = Lens("pinhole", focal, (c.cx, c.cy), width=c.width, height=c.height)
    right = replace(left, centre=(c.cx + c.doffs, c.cy))
    pose = np.eye(4)
    pose[0, 3] = -c.baseline
    return formats.Cameras((left, np.eye(4)), (right, pose))
