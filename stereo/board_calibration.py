"""Calibrating a stereo rig by pictures of a flat board: a chessboard, or ChArUco.

OpenCV finds the corners and solves for the cameras; what is here puts views together, says how well
each fits, and draws that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..common.files import write_json
from ..datasets.stereo.rigs import StereoRig, write_rig
from ..vision.io.images import as_pair, to_bytes, write_image
from ..vision.lenses import Lens
from ..vision.viz.colour import draw_figure

__all__ = ["Board", "BoardCalibration", "View", "calibrate_rig", "write_calibrated"]

_BOARDS = ("chessboard", "charuco")
_LENSES = ("pinhole", "rational", "fisheye")
_DICTIONARIES = (  # the largest of each kind; smaller ones begin alike
    *(f"DICT_{side}X{side}_1000" for side in range(4, 8)),
    "DICT_ARUCO_ORIGINAL",
    "DICT_APRILTAG_36h11",
)
_FEWEST_VIEWS, _FEWEST_CORNERS = 3, 8
_FAR_OFF, _BAD = 3.0, 1.0  # times the median error, pixels
_COVERED = 0.4  # of a picture, by the hull of all corners
_END = (cv2.TERM_CRITERIA_COUNT + cv2.TERM_CRITERIA_EPS, 100, 1e-8)


@dataclass(frozen=True)
class Board:
    """A flat board of squares.

    Attributes:
        kind: ``chessboard`` or ``charuco``.
        columns, rows: of squares; a chessboard has one inner corner less each way.
        square: side of a square, metres.
        marker: side of a ChArUco board's markers, metres.
        dictionary: of the markers, by OpenCV's name.

    Raises:
        ValueError: numbers or names that no board has.
    """

    kind: str
    columns: int
    rows: int
    square: float
    marker: float | None = None
    dictionary: str = "DICT_4X4_50"

    def __post_init__(self) -> None:
        if self.kind not in _BOARDS:
            raise ValueError(f"unknown board {self.kind!r}: {', '.join(_BOARDS)}")
        if min(self.columns, self.rows) < 4 or max(self.columns, self.rows) > 100:
            raise ValueError(
                f"a board of {self.columns}x{self.rows} squares; from 4x4 to 100x100 are usable"
            )
        if not 1e-4 < self.square < 10:
            raise ValueError(f"a square of {self.square:g} m; is that the right unit?")
        if self.kind != "charuco" and self.marker is not None:
            raise ValueError("marker: a chessboard has none; a ChArUco board has")
        if self.kind == "charuco":
            if self.marker is None or not 0 < self.marker < self.square:
                raise ValueError(
                    "marker: give the side of a ChArUco board's markers, less than its squares'"
                )
            if not isinstance(getattr(cv2.aruco, self.dictionary, None), int):
                raise ValueError(
                    f"unknown dictionary {self.dictionary!r}; such as DICT_4X4_50, DICT_5X5_100, "
                    "DICT_6X6_250, DICT_APRILTAG_36h11"
                )

    def __str__(self) -> str:
        told = (
            f"{self.columns}x{self.rows} squares, {self.columns - 1}x{self.rows - 1} inner corners"
        )
        return told if self.kind == "chessboard" else f"{told}, {self.dictionary}"

    @property
    def points(self) -> np.ndarray:
        """The inner corners on the board, (N, 3), metres; a corner's number is its row here."""
        grid = np.mgrid[1 : self.rows, 1 : self.columns][::-1].reshape(2, -1).T * self.square
        return np.column_stack([grid, np.zeros(len(grid))])

    def charuco(self, legacy: bool = False) -> cv2.aruco.CharucoBoard:
        """OpenCV's board; `legacy` has its first square white, as before OpenCV 4.6."""
        markers = cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, self.dictionary))
        size = (self.columns, self.rows)
        board = cv2.aruco.CharucoBoard(size, self.square, float(self.marker or 0), markers)
        board.setLegacyPattern(legacy)
        return board

    def find(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (N,) and pixels (N, 2) of the inner corners in a picture (H, W, 3) uint8."""
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        corners = self._chessboard(grey) if self.kind == "chessboard" else self._charuco(grey)
        numbers, pixels = corners or (np.empty(0, int), np.empty(0))
        return numbers.ravel(), pixels.reshape(-1, 2).astype(np.float64)

    def _chessboard(self, grey: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        size = (self.columns - 1, self.rows - 1)
        flags = cv2.CALIB_CB_NORMALIZE_IMAGE | cv2.CALIB_CB_ACCURACY
        seen, pixels = cv2.findChessboardCornersSB(grey, size, flags=flags)
        return (np.arange(size[0] * size[1]), pixels) if seen else None

    def _charuco(self, grey: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        for legacy in (False, True):
            detector = cv2.aruco.CharucoDetector(self.charuco(legacy))
            pixels, numbers, _, _ = detector.detectBoard(grey)
            if numbers is not None and len(numbers) >= _FEWEST_CORNERS:
                return numbers, pixels
        return None


@dataclass(frozen=True)
class View:
    """One position of the board, as both cameras saw it."""

    name: str  #: of the left picture
    points: np.ndarray  #: the corners on the board, (N, 3), metres
    left: np.ndarray  #: where the left camera saw them, (N, 2) pixels
    right: np.ndarray  #: where the right one did
    #: how far from there the calibration puts them, left and right, root mean square pixels
    errors: tuple[float, float] = (float("nan"),) * 2


@dataclass(frozen=True)
class BoardCalibration:
    """What was found.

    Attributes:
        rig: the cameras.
        views: the positions of the board that were used, with their errors.
        error: root mean square of all corners' distances, pixels.
        skipped: the names of other pictures, and why they were not used.
        notes: what the user should know, one line each.
    """

    rig: StereoRig
    views: tuple[View, ...]
    error: float
    skipped: dict[str, str]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a report."""
        views = [
            {"name": view.name, "corners": len(view.points), "left": left, "right": right}
            for view in self.views
            for left, right in [view.errors]
        ]
        return {
            "error": self.error,
            "baseline": self.rig.baseline,
            "focal": [self.rig.left.focal, self.rig.right.focal],
            "size": [self.rig.left.height, self.rig.left.width],
            "views": views,
            "skipped": self.skipped,
            "warnings": list(self.notes),
        }


def calibrate_rig(
    pairs: Iterable[tuple[str | os.PathLike, str | os.PathLike]],
    board: Board,
    lens: str = "pinhole",
    report: Callable[[str, int, int], None] | None = None,
) -> BoardCalibration:
    """Calibrate a rig by pairs of pictures of a board in different positions.

    Args:
        pairs: files of left and right pictures, taken at the same time.
        board: what is to be seen in them.
        lens: ``pinhole`` (k1 k2 p1 p2 k3), ``rational`` (k1 k2 p1 p2 k4 k5, for wide lenses) or
            ``fisheye``.
        report: called with what is counted, how many are done and of how many.

    Raises:
        FileNotFoundError: there is no such picture.
        ValueError: an unknown lens, pictures of different sizes, fewer than three in which both
            cameras see the board, positions that say too little, or cameras that are swapped.
    """
    if lens not in _LENSES:
        raise ValueError(f"unknown lens {lens!r}: {', '.join(_LENSES)}")
    pairs = list(pairs)
    size, views, skipped = _views(pairs, board, report)
    if size is None or len(views) < _FEWEST_VIEWS:
        first = f": {next(iter(skipped.values()))}" if skipped else ""
        raise ValueError(
            f"the board ({board}) was found in {len(views)} of {len(pairs)} pairs, and "
            f"{_FEWEST_VIEWS} are needed, better 15{first}{_mistaken(pairs, board)}"
        )
    try:
        rig, poses = _solved(views, size, lens)
    except cv2.error as error:
        reason = " ".join(str(error.err or error).split())
        raise ValueError(
            f"the {len(views)} positions of the board do not determine the cameras ({reason}): "
            "tilt it, and hold it near and far and into the corners"
        ) from error
    measured = [_measured(view, rig, pose) for view, pose in zip(views, poses, strict=True)]
    if not np.isfinite([view.errors for view in measured]).all():
        raise ValueError(
            f"the lens model {lens} folds back within the pictures: they are too few, or the lens "
            "too plain, for its numbers; take more pictures, or a simpler model"
        )
    weights = [len(view.points) for view in measured]
    squares = [np.mean(np.square(view.errors)) for view in measured]
    mean = float(np.sqrt(np.average(squares, weights=weights)))
    return BoardCalibration(rig, tuple(measured), mean, skipped, tuple(_notes(measured, size)))


def _views(
    pairs: Sequence[tuple[str | os.PathLike, str | os.PathLike]],
    board: Board,
    report: Callable[[str, int, int], None] | None,
) -> tuple[tuple[int, int] | None, list[View], dict[str, str]]:
    """The pictures' size, what both cameras saw of the board, and why other pairs are skipped."""
    size, views, skipped = None, [], {}
    for count, (left, right) in enumerate(pairs, start=1):
        try:
            images = [to_bytes(view) for view in as_pair(left, right)]
        except ValueError as error:
            view, reason = None, str(error)
        else:
            for file, image in zip((left, right), images, strict=True):
                size = size or image.shape[:2]
                if image.shape[:2] != size:
                    raise ValueError(
                        f"{file}: {image.shape[0]}x{image.shape[1]} pixels, and the pictures "
                        f"before have {size[0]}x{size[1]}; a rig is calibrated at one size"
                    )
            view, reason = _view(os.fspath(left), os.fspath(right), images, board)
        if view is None:
            skipped[os.fspath(left)] = reason
        else:
            views.append(view)
        if report is not None:
            report("pairs", count, len(pairs))
    return size, views, skipped


def _mistaken(pairs: Sequence[tuple[str | os.PathLike, str | os.PathLike]], board: Board) -> str:
    """Which board is there that is easily taken for this one.

    That is one with the corners counted, as OpenCV's programs do, or with other markers.
    """
    for left, right in pairs[:_FEWEST_VIEWS]:
        with suppress(ValueError):
            picture = to_bytes(as_pair(left, right)[0])
            if len(board.find(picture)[0]):
                continue
            if board.kind == "chessboard":
                others = [replace(board, columns=board.columns + 1, rows=board.rows + 1)]
                told = ": count squares, not inner corners"
            else:
                others, told = [replace(board, dictionary=name) for name in _DICTIONARIES], ""
            if other := next((other for other in others if len(other.find(picture)[0])), None):
                return f"; but one of {other} is there{told}"
    return ""


def _view(
    left: str, right: str, images: Sequence[np.ndarray], board: Board
) -> tuple[View | None, str]:
    corners = [board.find(image) for image in images]
    for file, (numbers, _) in zip((left, right), corners, strict=True):
        if len(numbers) == 0:
            return None, f"no board found in {file}"
    (first, ours), (second, theirs) = corners
    both, at, there = np.intersect1d(first, second, return_indices=True)
    ours, theirs = ours[at], theirs[there]
    # A chessboard that is turned by half looks the same, of as many columns as rows by a quarter:
    # begin at the same corner in both pictures.
    if board.kind == "chessboard":
        grid = theirs.reshape(board.rows - 1, board.columns - 1, 2)
        turns = [turn for turn in map(np.rot90, [grid] * 4, range(4)) if turn.shape == grid.shape]
        alike = [np.vdot(ours - ours.mean(0), turn) for turn in turns]
        theirs = turns[int(np.argmax(alike))].reshape(-1, 2)
    points = board.points[both]
    spread = np.linalg.matrix_rank(points - points.mean(0), 1e-9) if len(both) else 0
    if len(both) < _FEWEST_CORNERS or spread < 2:
        return None, f"{left} and {right} share {len(both)} corners, too few"
    return View(left, points, ours, theirs), ""


def _lens(model: str, matrix: np.ndarray, numbers: np.ndarray, size: tuple[int, int]) -> Lens:
    (fx, skew, cx), (_, fy, cy), _ = matrix.tolist()
    rest = tuple(numbers.ravel().tolist())
    return Lens(model, (fx, fy), (cx, cy), rest, width=size[1], height=size[0], skew=skew)


def _solved(
    views: Sequence[View], size: tuple[int, int], lens: str
) -> tuple[StereoRig, list[np.ndarray]]:
    """The rig, and the board's poses before its left camera."""
    kinds = [[getattr(view, name)[None] for view in views] for name in ("points", "left", "right")]
    alone: Any
    both: Any
    if lens == "fisheye":
        model, count, alone, both = "fisheye", 4, cv2.fisheye.calibrate, cv2.fisheye.stereoCalibrate
        recompute, flags, guess = (
            getattr(cv2.fisheye, name, None) or getattr(cv2, name)  # as OpenCV 4 has them, or 5
            for name in ("CALIB_RECOMPUTE_EXTRINSIC", "CALIB_FIX_SKEW", "CALIB_USE_INTRINSIC_GUESS")
        )
        # OpenCV wants as many corners in each view: some count twice.
        most = max(len(view.points) for view in views)
        kinds = [[np.resize(x, (1, most, x.shape[2])) for x in kind] for kind in kinds]
    else:
        model, alone, both = "pinhole", cv2.calibrateCamera, cv2.stereoCalibrateExtended
        # With k3 and k6 too, poles and zeros that cancel nearly anywhere fit as well.
        rational = cv2.CALIB_RATIONAL_MODEL | cv2.CALIB_FIX_K3 | cv2.CALIB_FIX_K6
        flags, count = (rational, 8) if lens == "rational" else (0, 5)
        recompute, guess = 0, cv2.CALIB_USE_INTRINSIC_GUESS
        kinds = [[x.astype(np.float32) for x in kind] for kind in kinds]
    points, *sides = kinds
    start: list[np.ndarray] = []
    for pixels in sides:
        _, matrix, numbers, *_ = alone(
            points, pixels, size[::-1], None, None, flags=flags | recompute, criteria=_END
        )
        start += [matrix, numbers.ravel()[:count]]
    _, one, d1, two, d2, rotation, translation, *more = both(
        points,
        *sides,
        *start,
        size[::-1],
        np.eye(3),
        np.zeros((3, 1)),
        flags=flags | guess,
        criteria=_END,
    )
    turns, moves = more if model == "fisheye" else more[2:4]  # after E and F
    first, second = (_lens(model, m, d.ravel()[:count], size) for m, d in ((one, d1), (two, d2)))
    poses = [
        np.column_stack([cv2.Rodrigues(turn.ravel())[0], move.ravel()])
        for turn, move in zip(turns, moves, strict=True)
    ]
    return StereoRig(first, second, rotation, translation.ravel()), poses


def _measured(view: View, rig: StereoRig, pose: np.ndarray) -> View:
    before = view.points @ pose[:, :3].T + pose[:, 3]
    beside = before @ rig.rotation.T + rig.translation
    off = rig.left.project(before) - view.left, rig.right.project(beside) - view.right
    left, right = (float(np.sqrt(np.mean(np.sum(apart**2, axis=1)))) for apart in off)
    return replace(view, errors=(left, right))


def _notes(views: Sequence[View], size: tuple[int, int]) -> list[str]:
    worst = {view.name: max(view.errors) for view in views}
    median, notes = float(np.median(list(worst.values()))), []
    far = [name for name, error in worst.items() if error > max(_FAR_OFF * median, _BAD)]
    if far:
        listed = ", ".join(f"{name} ({worst[name]:.2f} px)" for name in far[:3])
        notes.append(
            f"fit far worse than others (median {median:.2f} px): {listed}; leave them out"
        )
    if median > _BAD:
        notes.append(
            f"errors of {median:.2f} px are large: are the squares counted right, the board flat, "
            "the lens another, and both pictures of one moment?"
        )
    for side in ("left", "right"):
        corners = np.concatenate([getattr(view, side) for view in views]).astype(np.float32)
        covered = cv2.contourArea(cv2.convexHull(corners)) / (size[0] * size[1])
        if covered < _COVERED:
            notes.append(
                f"the board was seen in {covered:.0%} of the {side} picture alone: hold it into "
                "the corners too, since the lens is not known beyond"
            )
    if len(views) < 10:
        notes.append(f"{len(views)} positions of the board are few; 15 and more are better")
    return notes


def write_calibrated(result: BoardCalibration, folder: str | os.PathLike) -> list[Path]:
    """Write ``calibration.yml``, ``calibration.json`` and a picture; return the files."""
    files = [Path(folder) / f"calibration.{suffix}" for suffix in ("yml", "json", "png")]
    write_rig(files[0], result.rig)
    write_json(files[1], result.to_json())
    write_image(files[2], _picture(result))
    return files


def _picture(result: BoardCalibration) -> np.ndarray:
    """Draw the errors of each view, and where in the pictures corners were, (H, W, 3) uint8."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), dpi=100, layout="constrained")
    bars, *maps = figure.subplots(1, 3)
    places = np.arange(len(result.views))
    for side, (axes, name) in enumerate(zip(maps, ("left", "right"), strict=True)):
        heights = [view.errors[side] for view in result.views]
        bars.bar(places + 0.4 * side - 0.2, heights, 0.4, label=name)
        for view in result.views:
            axes.plot(*getattr(view, name).T, ".", markersize=3)
        lens = getattr(result.rig, name)
        limits = {"xlim": (0, lens.width), "ylim": (lens.height, 0)}
        axes.set(title=f"corners, {name}", aspect="equal", **limits)
    bars.set(ylabel="error [px]", title=f"{result.error:.3f} px over all")
    names = [Path(view.name).stem for view in result.views]
    bars.set_xticks(places, names, rotation=90, fontsize=7, parse_math=False)
    bars.legend()
    return draw_figure(figure)
