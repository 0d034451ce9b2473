"""Raw pairs of a rig, of whatever lenses, onto two pinhole cameras with parallel axes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from ..common.files import atomic_write
from ..datasets.stereo.calibration import StereoCalibration
from ..datasets.stereo.rigs import StereoRig
from ..vision.io.images import ImageLike, as_pair, to_bytes, write_image
from ..vision.io.pfm import write_pfm
from ..vision.lenses import Lens
from .rectification import measure_pair

if TYPE_CHECKING:
    from .result import StereoResult

__all__ = ["Rectifier", "RigRectifier", "check_rows", "rectify", "warn_of_raw"]

_WIDEST = math.radians(60)  # off the axis: farther out, a plane stretches a picture too much
_EDGE = 65  # points along each side of a picture: a share of their grid is right to a percent
_STRIP = 128  # rows whose places are found at a time, which bounds the memory
_NOWHERE = -1e4  # the place of what is not in an image
_ROWS_OFF = 1.0  # pixels by which rows of a good calibration do not differ
_LARGEST = 4  # times the pixels of the raw pictures that rectified ones may have
_NARROW = 0.05  # of common view, as a tangent
_ONE_SURFACE = 0.05  # part by which depths of neighbours on a surface differ
_CAUSE = (
    "the calibration does not fit these images; was the rig moved, is the lens another, or are "
    "LEFT and RIGHT exchanged?"
)
_ENDINGS = "rectified.png depth_raw.npy confidence_raw.pfm occluded_raw.png".split()


class Rectifier:
    """Resamples the pairs of two cameras so that what belongs together lies in one row.

    Args:
        maps: of the left and the right camera: (H, W, 2) float32, for each rectified pixel where
            it lies in the raw image.
        size: height and width of the raw images.
        calibration: of the rectified pairs; None where nobody knows it.
        notes: what the user should know of it, one line each.
    """

    def __init__(
        self,
        maps: tuple[np.ndarray, np.ndarray],
        size: tuple[int, int],
        calibration: StereoCalibration | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.maps, self.size, self.calibration, self.notes = maps, size, calibration, notes

    def __call__(self, left: ImageLike, right: ImageLike) -> tuple[np.ndarray, np.ndarray]:
        """Return the rectified pair, (H, W, 3) uint8 RGB; black where nothing was seen.

        Args:
            left: a path, a uint8 or uint16 array, (H, W, 3) RGB or (H, W) grey, or a (3, H, W)
                tensor in [0, 1].
            right: likewise.

        Raises:
            FileNotFoundError: there is no such image.
            ValueError: an image cannot be read, or has another size.
        """
        rectified = []
        views = as_pair(left, right)
        for which, image, places in zip(("left", "right"), views, self.maps, strict=True):
            pixels = to_bytes(image)
            if pixels.shape[:2] != self.size:
                height, width = pixels.shape[:2]
                raise ValueError(
                    f"the {which} image has {height}x{width} pixels, not {self.size[0]}x"
                    f"{self.size[1]} as the others of these cameras"
                )
            rectified.append(_looked_up(pixels, places, cv2.INTER_CUBIC))
        return rectified[0], rectified[1]

    def save(self, result: StereoResult, folder: str | os.PathLike, name: str) -> list[Path]:
        """Write what a result of a rectified pair means for the raw one.

        Args:
            result: of the rectified pair.
            folder: made if it is missing.
            name: first part of the file names: ``<name>_rectified.png``, the image that the
                disparity belongs to; and where the rig is known, for each pixel of the raw left
                image, ``<name>_depth_raw.npy`` (metres, 0 where unknown), and of a result that
                has them ``<name>_confidence_raw.pfm`` and ``<name>_occluded_raw.png`` (0, and
                white, where the rectified image does not reach).

        Returns:
            The files written.

        Warns (``UserWarning``) of files of this name that an earlier call wrote and this one did
        not.
        """
        written = self._write(result, _files(folder, name))
        warn_of_raw(folder, name, written)
        return written

    def _write(self, result: StereoResult, paths: Mapping[str, Path]) -> list[Path]:
        write_image(paths["rectified.png"], result.image)
        return [paths["rectified.png"]]


class RigRectifier(Rectifier):
    """Rectifies the pairs of a calibrated rig.

    Both look half way between where the cameras look, as upright as the left one; the focal length
    is such that as much is seen as both cameras see everywhere, at most 60 degrees off the axis.
    Where one camera stands above the other in the pictures, the rectified ones are turned by 90
    degrees, which a note says.

    Args:
        rig: the cameras; scaled where its images had another size of the same shape.
        height, width: of the raw images, pixels.
        fov: horizontal field of view of the rectified pictures, degrees, instead.
        size: height and width of the rectified pictures; by default those of the raw ones,
            exchanged where they are turned.

    Raises:
        ValueError: the rig is of images of another shape, the cameras see nothing in common, the
            field of view is none, or the size is over four times the raw pixels.
    """

    calibration: StereoCalibration

    def __init__(
        self,
        rig: StereoRig,
        height: int,
        width: int,
        *,
        fov: float | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self.rig = rig.fitted(height, width)
        self.turns = _parallel(self.rig)
        quarters, notes = _quarters(self.turns[0]), self.rig.notes
        if quarters:
            notes += (
                "one camera stands above the other in the pictures: the rectified ones are turned "
                f"by 90 degrees {'clockwise' if quarters == 1 else 'counterclockwise'}",
            )
        rows, columns = size or ((width, height) if quarters else (height, width))
        if rows * columns > _LARGEST * height * width:
            raise ValueError(
                f"the size {rows}x{columns} has more than {_LARGEST} times the pixels of the raw "
                f"pictures, {height}x{width} (height x width): give a smaller one"
            )
        focal, cx, cy = self.camera = self._camera(rows, columns, fov)
        calibration = StereoCalibration(
            focal, rig.baseline, cx, cy, width=columns, height=rows, focal_y=focal
        )
        left, right = (
            np.concatenate([self._places(lens, turn, pixels) for pixels in _strips(rows, columns)])
            for lens, turn in zip((self.rig.left, self.rig.right), self.turns, strict=True)
        )
        super().__init__((left, right), (height, width), calibration, notes)

    def depth_in_raw(self, depth: np.ndarray) -> np.ndarray:
        """Return the depth map of the raw left image.

        Args:
            depth: of the rectified left image, (H, W), 0 where unknown.

        Returns:
            (H, W) float32 of the raw image's size: depth along the raw camera's axis; 0 where
            unknown.

        Raises:
            ValueError: the map has another size than the rectified image.
        """
        self._check(depth)
        depth = np.asarray(depth, np.float32)
        inverse = np.divide(1, depth, out=np.zeros_like(depth), where=depth > 0)
        places, factor = self._raw
        near = _looked_up(inverse, places, cv2.INTER_NEAREST)
        smooth = _looked_up(inverse, places, cv2.INTER_LINEAR)
        # On a plane 1 / depth is linear in the pixels, but not from one surface to the next.
        least, most = (
            _looked_up(
                of_four(inverse, np.ones((2, 2)), anchor=(0, 0)),
                np.floor(places),
                cv2.INTER_NEAREST,
            )
            for of_four in (cv2.erode, cv2.dilate)
        )
        surface = (least > 0) & (most - least < _ONE_SURFACE * most)
        disparity = np.where(surface, smooth, near) * self._inside(places)
        return np.divide(factor, disparity, out=np.zeros_like(disparity), where=disparity > 0)

    def in_raw(self, values: np.ndarray, beyond: float = 0) -> np.ndarray:
        """Return what the rectified left image has, such as confidence, for the raw one.

        Args:
            values: (H, W) of the rectified image; of yes and no (bool) the nearest is taken.
            beyond: for the pixels that the rectified image does not show.

        Returns:
            (H, W) of the raw image's size and the same type.

        Raises:
            ValueError: the map has another size than the rectified image.
        """
        self._check(values)
        places, _ = self._raw
        how = cv2.INTER_NEAREST if values.dtype == bool else cv2.INTER_LINEAR
        moved = _looked_up(values.astype(np.float32), places, how, cv2.BORDER_REPLICATE)
        return np.where(self._inside(places), moved, beyond).astype(values.dtype)

    def _write(self, result: StereoResult, paths: Mapping[str, Path]) -> list[Path]:
        written = [*super()._write(result, paths), paths["depth_raw.npy"]]
        with atomic_write(written[-1]) as temporary, temporary.open("wb") as file:
            np.save(file, self.depth_in_raw(result.depth(self.calibration)))
        if result.confidence is not None:
            written.append(paths["confidence_raw.pfm"])
            write_pfm(written[-1], self.in_raw(result.confidence))
        if result.occluded is not None:
            written.append(paths["occluded_raw.png"])
            write_image(written[-1], np.uint8(255) * self.in_raw(result.occluded, beyond=1))
        return written

    @property
    def kept(self) -> float:
        """Part of the raw left image that is in the rectified one."""
        height, width = self.size
        grid = np.meshgrid(np.linspace(0, width - 1, _EDGE), np.linspace(0, height - 1, _EDGE))
        places, _ = self._from_raw(np.stack(grid, -1))
        return float(self._inside(places).mean())

    def _check(self, values: np.ndarray) -> None:
        rows, columns = self.maps[0].shape[:2]
        if tuple(values.shape) != (rows, columns):
            raise ValueError(
                f"a map of the rectified image is ({rows}, {columns}), got {tuple(values.shape)}"
            )

    def _inside(self, places: np.ndarray) -> np.ndarray:
        """Which places lie on the rectified image."""
        last = np.array(self.maps[0].shape[1::-1]) - 1
        return np.all((places >= 0) & (places <= last), axis=2)

    @cached_property
    def _raw(self) -> tuple[np.ndarray, np.ndarray]:
        """As `_from_raw`, of all pixels of the raw image."""
        strips = map(self._from_raw, _strips(*self.size))
        places, factor = (np.concatenate(part) for part in zip(*strips, strict=True))
        return places, factor

    def _from_raw(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where raw left pixels lie in the rectified image, and raw depth over rectified depth."""
        focal, cx, cy = self.camera
        ray = self.rig.left.unproject(pixels)
        x, y, z = np.moveaxis(ray @ self.turns[0].T, -1, 0)
        with np.errstate(all="ignore"):
            places = np.stack([focal * x / z + cx, focal * y / z + cy], -1)
            places = np.where((z > 0)[..., None], places, _NOWHERE)
            factor = np.where(z > 0, ray[..., 2] / z, 0)
        return np.clip(places, _NOWHERE, 1e6).astype(np.float32), factor.astype(np.float32)

    def _camera(self, rows: int, columns: int, fov: float | None) -> tuple[float, float, float]:
        """Focal length and principal point of the rectified pictures."""
        if fov is not None:
            if not 1 <= fov <= 170:
                raise ValueError(f"a field of view has 1 to 170 degrees, got {fov:g}")
            focal = columns / 2 / math.tan(math.radians(fov) / 2)
            return focal, (columns - 1) / 2, (rows - 1) / 2
        fields = map(_field, (self.rig.left, self.rig.right), self.turns)
        lows, highs = zip(*fields, strict=True)
        low, high = np.max(lows, 0), np.min(highs, 0)
        if (high - low).min() < _NARROW:
            raise ValueError(
                "the cameras see next to nothing in common once they are turned parallel; is the "
                "calibration of these cameras, or a field of view wanted?"
            )
        focal = float(np.max([columns, rows] / (high - low)))
        cx, cy = np.array([columns - 1, rows - 1]) / 2 - focal * (low + high) / 2
        return focal, float(cx), float(cy)

    def _places(self, lens: Lens, turn: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """Where rectified pixels lie in a raw image; far outside where they do nowhere."""
        focal, cx, cy = self.camera
        x, y = (pixels[..., 0] - cx) / focal, (pixels[..., 1] - cy) / focal
        rays = np.stack([x, y, np.ones_like(x)], -1)
        places = np.nan_to_num(lens.project(rays @ turn), nan=_NOWHERE)  # turned back
        return np.clip(places, _NOWHERE, 1e6).astype(np.float32)


def rectify(
    rig: StereoRig,
    left: ImageLike,
    right: ImageLike,
    *,
    fov: float | None = None,
    size: tuple[int, int] | None = None,
) -> tuple[np.ndarray, np.ndarray, StereoCalibration]:
    """Rectify one pair; for many of one rig a `RigRectifier` finds the places of pixels once.

    Args:
        rig: the cameras.
        left: a path, a uint8 or uint16 array, (H, W, 3) RGB or (H, W) grey, or a (3, H, W)
            tensor in [0, 1].
        right: likewise.
        fov: see `RigRectifier`.
        size: likewise.

    Returns:
        The rectified images, (H, W, 3) uint8 RGB, and their calibration.

    Raises:
        FileNotFoundError: there is no such image.
        ValueError: see `Rectifier` and `RigRectifier`.
    """
    views = as_pair(left, right)
    height, width = views[0].shape[1:]
    rectifier = RigRectifier(rig, height, width, fov=fov, size=size)
    return (*rectifier(*views), rectifier.calibration)


def warn_of_raw(folder: str | os.PathLike, name: str, written: Sequence[Path] = ()) -> None:
    """Warn of what `Rectifier.save` wrote in an earlier run beside what this one has written."""
    left = [str(p) for p in _files(folder, name).values() if p not in written and p.exists()]
    if left:
        warnings.warn(f"of an earlier run, not of this one: {', '.join(left)}", stacklevel=3)


def _files(folder: str | os.PathLike, name: str) -> dict[str, Path]:
    return {ending: Path(folder) / f"{name}_{ending}" for ending in _ENDINGS}


def check_rows(
    left: np.ndarray, right: np.ndarray, *, cause: str | None = None
) -> tuple[float | None, list[str]]:
    """Look whether rows agree in a rectified pair.

    Args:
        left: (H, W, 3) uint8.
        right: likewise.
        cause: why rows may differ, for the warning.

    Returns:
        The median vertical offset of keypoints that match, pixels, or None where too few match;
        and lines of warning where it is large, or the pair looks swapped.
    """
    geometry = measure_pair(left, right)
    if geometry is None:
        return None, []
    off = geometry.row_offset
    doubt = f"rows still differ by {off:.1f} px ({geometry.matches} matches): {cause or _CAUSE}"
    swapped = replace(geometry, row_offset=0, row_trend=0).warnings()
    return off, [doubt] * (off > _ROWS_OFF) + swapped


def _parallel(rig: StereoRig) -> tuple[np.ndarray, np.ndarray]:
    """What turns the left and the right camera: x towards the right one, z as both on average.

    ``cv2.stereoRectify`` shares a roll between the cameras, and makes a vertical pair of a large
    one.
    """
    x = rig.position / rig.baseline
    y = np.cross(rig.rotation[2] + [0, 0, 1], x)
    y /= np.linalg.norm(y)
    left = np.stack([x, y, np.cross(x, y)])
    return left, left @ rig.rotation.T


def _quarters(turn: np.ndarray) -> int:
    """How many quarters of a circle, clockwise, a camera's picture is turned by."""
    return round(math.atan2(turn[1, 0], turn[0, 0]) / (math.pi / 2)) % 4


def _looked_up(
    image: np.ndarray, places: np.ndarray, how: int, border: int = cv2.BORDER_CONSTANT
) -> np.ndarray:
    """An image at places (..., 2), x and y; 0 outside, or as at the border."""
    return cv2.remap(image, places[..., 0], places[..., 1], how, borderMode=border)


def _strips(height: int, width: int) -> Iterator[np.ndarray]:
    """The pixels of a picture, some rows at a time."""
    for start in range(0, height, _STRIP):
        y, x = np.mgrid[start : min(start + _STRIP, height), :width].astype(np.float64)
        yield np.stack([x, y], -1)


def _field(lens: Lens, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest x and y on the plane at z = 1 that a camera sees all of between them."""
    width, height = int(lens.width or 0), int(lens.height or 0)
    along = np.linspace(0, 1, _EDGE)
    none, whole = np.zeros(_EDGE), np.ones(_EDGE)
    sides = []
    for x, y in ((none, along), (along, none), (whole, along), (along, whole)):
        pixels = np.stack([x * (width - 1), y * (height - 1)], -1)
        rays = lens.unproject(pixels)
        # Beyond the lens's field: sideways.
        beside = np.concatenate([pixels - lens.centre, np.zeros((_EDGE, 1))], -1)
        rays = np.where(np.isfinite(rays), rays, beside) @ turn.T
        off = np.linalg.norm(rays[:, :2], axis=1)
        tangent = np.tan(np.minimum(np.arctan2(off, rays[:, 2]), _WIDEST))
        sides.append(rays[:, :2] / np.maximum(off, 1e-12)[:, None] * tangent[:, None])
    quarters = _quarters(turn)
    left, top, right, bottom = sides[-quarters:] + sides[:-quarters]
    low = np.array([left[:, 0].max(), top[:, 1].max()])
    return low, np.array([right[:, 0].min(), bottom[:, 1].min()])
