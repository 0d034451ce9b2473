"""A CT scan as it lies in its file, and how its axes run through the patient.

An affine is a (4, 4) matrix that takes (column, row, slice) to millimetres in the world of NIfTI,
RAS+: x rises to the patient's right, y to the front, z to the head. Letters name the direction in
which an index rises: L and R left and right, A and P front and back, I and S feet and head.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import cv2
import numpy as np

__all__ = [
    "CTVolume",
    "axis_codes",
    "border",
    "check_axial",
    "check_units",
    "lung_share",
    "plane",
    "reorient",
]

_POSITIVE, _NEGATIVE = "RAS", "LPI"
_PLANES = ("sagittal", "coronal", "axial")
_LARGEST_TILT = 35.0  # degrees; gantries tilt by at most 30
_AIR, _OUTSIDE = -400, -930  # Hounsfield units: lungs have less, air outside has less still
_LOOK, _SLICES = 128, 24  # pixels of a side, and slices, that are looked at for lungs
_LARGEST_ANISOTROPY = 1.5  # of an axial slice, whose pixels are square


@dataclass(frozen=True, eq=False)
class CTVolume:
    """A scan, its axes in the order of its file."""

    #: (D, H, W): slices, rows, columns; int16 or float32 Hounsfield units, or what a picture holds
    values: np.ndarray
    affine: np.ndarray  #: (4, 4) float64, from (column, row, slice) to mm, RAS+
    #: the values that become 0 and 1 where they are no Hounsfield units; None where they are, so
    #: that a window says it
    span: tuple[float, float] | None = None
    spaced: bool = True  #: whether the file says how large a voxel is; without, the affine has 1 mm
    source: str = "volume"  #: the file or folder, for messages
    part: str = ""  #: the part of the body that the file names, such as ``CHEST``, or nothing
    #: whether it is known which of the first and the last slice is nearer to the head
    ends: bool = True
    #: whether slices were interpolated or shifted, so that these voxels are not the file's
    resampled: bool = False
    #: what else the file says of the scan, by DICOM's names, such as ``SeriesDescription``
    told: Mapping[str, str] = field(default_factory=dict)

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between slices, rows and columns."""
        x, y, z = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return z, y, x

    def oriented(self) -> tuple[np.ndarray, np.ndarray]:
        """Values and affine with axes that run to the left, the back and the head (LPS)."""
        return reorient(self.values, self.affine, "LPS")


def axis_codes(affine: np.ndarray) -> str:
    """Return the direction in which column, row and slice rise, each axis of the world once."""
    directions = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    world = max(
        itertools.permutations(range(3)),
        key=lambda order: sum(abs(directions[axis, index]) for index, axis in enumerate(order)),
    )
    return "".join(
        (_POSITIVE if directions[axis, index] > 0 else _NEGATIVE)[axis]
        for index, axis in enumerate(world)
    )


def reorient(values: np.ndarray, affine: np.ndarray, codes: str) -> tuple[np.ndarray, np.ndarray]:
    """Exchange and reverse axes; nothing is resampled, and every voxel stays where it was.

    The affine is of (column, row, slice), which get the directions of the codes, such as ``LPS``.
    """
    have = axis_codes(affine)
    order = [_world(have).index(axis) for axis in _world(codes)]
    values = values.transpose([2 - order[2 - place] for place in range(3)])
    back = np.eye(4)
    back[:3, :3] = 0
    for index, old in enumerate(order):
        if have[old] == codes[index]:
            back[old, index] = 1
        else:
            values = np.flip(values, 2 - index)
            back[old, index] = -1
            back[old, 3] = values.shape[2 - index] - 1
    return values, affine @ back


def check_axial(affine: np.ndarray, source: str) -> None:
    """Refuse a scan without voxel sizes, and one whose slices are not axial.

    Raises:
        ValueError: the scan is such a one.
    """
    matrix = np.asarray(affine, np.float64)[:3, :3]
    sizes = np.linalg.norm(matrix, axis=0)
    if not np.isfinite(affine).all() or sizes.min() < 1e-3 or abs(np.linalg.det(matrix)) < 1e-9:
        raise ValueError(
            f"{source}: unknown spacing: its header gives no size of a voxel; export the scan again"
        )
    world = _world(axis_codes(affine))
    normal = np.cross(matrix[:, world.index(0)], matrix[:, world.index(1)])
    tilt = np.degrees(np.arccos(min(1.0, abs(normal[2]) / np.linalg.norm(normal))))
    if tilt > _LARGEST_TILT:
        raise ValueError(
            f"{source}: slices lean {tilt:.0f} degrees from the axial plane; reformat the scan "
            "to axial slices"
        )
    flat = sizes[world.index(0)], sizes[world.index(1)]
    if max(flat) > _LARGEST_ANISOTROPY * min(flat):
        plane = _PLANES[int(flat[1] > flat[0])]
        raise ValueError(
            f"{source}: {plane} slices ({flat[0]:.3g} x {flat[1]:.3g} mm seen from the feet); "
            "take the scan's axial series"
        )


def check_units(volume: CTVolume) -> None:
    """Refuse an empty scan, and one whose values are no Hounsfield units: a chest without air.

    Raises:
        ValueError: the scan is such a one.
    """
    lowest, highest = float(volume.values.min()), float(volume.values.max())
    if lowest == highest:
        raise ValueError(f"{volume.source}: empty: every voxel is {lowest:g}")
    if volume.span is None and lowest > _AIR:
        raise ValueError(
            f"{volume.source}: values from {lowest:g} to {highest:g} are no Hounsfield units, of "
            "which air in the lungs has about -850: give the scan as it was before any scaling"
        )


def lung_share(volume: CTVolume) -> float:
    """Share of air within the body, in [0, 1], in the quarter of the slices that has most of it.

    Air that touches the picture's edge counts as within where it is as dense as lungs are.

    Args:
        volume: of Hounsfield units.
    """
    values, _ = volume.oriented()
    shares = []
    step = max(1, max(values.shape[1:]) // _LOOK)
    for slice_ in values[:: max(1, len(values) // _SLICES)]:
        seen = slice_[::step, ::step]
        _, labels = cv2.connectedComponents((seen < _AIR).astype(np.uint8), connectivity=4)
        outside = [
            label
            for label in border(labels)
            if label and np.median(seen[labels == label]) < _OUTSIDE
        ]
        body = ~np.isin(labels, outside)
        shares.append((body & (labels > 0)).sum() / max(body.sum(), 1))
    return float(np.sort(shares)[-max(1, len(shares) // 4) :].mean())


def border(labels: np.ndarray) -> np.ndarray:
    """The labels along the edge of a picture (H, W), each once, in ascending order."""
    return np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))


def plane(normal: np.ndarray) -> str:
    """Name the plane of slices by their normal."""
    return _PLANES[int(np.abs(normal).argmax())]


def _world(codes: str) -> list[int]:
    """The axis of the world, 0 to 2, that each letter is about."""
    return [(_POSITIVE if code in _POSITIVE else _NEGATIVE).index(code) for code in codes]
