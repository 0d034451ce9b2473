"""Cameras in commands: calibrations of pairs, and what rectifies raw ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._work import refuse, warn

if TYPE_CHECKING:
    from torch import Tensor

    from ..datasets.stereo.calibration import StereoCalibration
    from ..datasets.stereo.rigs import StereoRig
    from ..stereo.rectify import Rectifier, RigRectifier
    from ._pairs import Pair

# Metres between cameras, beyond which the unit is doubted.
_NARROWEST, _WIDEST = 1e-3, 5


def add_rig_arguments(parser: argparse._ActionsContainer) -> None:
    """Declare how a raw calibration is read."""
    parser.add_argument(
        "--second",
        metavar="FILE",
        help="the other file of a calibration in two (default: the one beside it called alike: "
        "left and right, cam0 and cam1, intrinsics and extrinsics)",
    )
    parser.add_argument(
        "--cameras",
        nargs=2,
        type=int,
        metavar=("LEFT", "RIGHT"),
        help="numbers of the cameras (default: 0 1; KITTI's 2 3, OpenCV's 1 2); 1 0 exchanges "
        "those of two files",
    )
    parser.add_argument(
        "--lens",
        choices=("pinhole", "fisheye", "mei"),
        help="of an OpenCV file that does not say (default: pinhole)",
    )
    parser.add_argument(
        "--fov",
        type=float,
        metavar="DEGREES",
        help="width of view of rectified pictures (default: what both cameras see everywhere)",
    )


def add_raw_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of commands that also take raw pairs."""
    raw = parser.add_argument_group("raw cameras")
    raw.add_argument(
        "--raw",
        metavar="CALIBRATION",
        help="the pairs are raw: rectify them by this file of OpenCV, Kalibr, ROS, EuRoC or KITTI; "
        "depth is also written for the raw left image",
    )
    raw.add_argument(
        "--auto-rectify",
        action="store_true",
        help="the pairs are raw, of two cameras without a calibration: rectify them by what "
        "matches (no depth)",
    )
    add_rig_arguments(raw)


def open_rig(args: argparse.Namespace, path: str) -> StereoRig:
    """The rig of a calibration, read as was asked for."""
    from ..datasets.stereo.rigs import read_rig

    return read_rig(
        path, args.second, cameras=args.cameras, baseline_unit=args.baseline_unit, lens=args.lens
    )


def rig_rectifier(
    args: argparse.Namespace,
    path: str,
    rig: StereoRig,
    raw: tuple[int, ...],
    size: tuple[int, int] | None = None,
) -> RigRectifier:
    """The rectifier of a rig, read from a path, for raw images of a size; says its notes."""
    from ..stereo.rectify import RigRectifier

    height, width = raw
    try:
        rectifier = RigRectifier(rig, height, width, fov=args.fov, size=size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for note in rectifier.notes:
        warn(f"{path}: {note}")
    _doubt(path, rig.baseline)
    return rectifier


def raw_size(pairs: Mapping[str, Pair]) -> tuple[int, ...]:
    """Height and width of the first left image that can be read."""
    from ..vision.io.images import read_pixels

    *some, last = (pair.left for pair in pairs.values())
    for file in some:
        with suppress(ValueError):
            return read_pixels(file).shape[:2]
    return read_pixels(last).shape[:2]


def readable(pairs: Mapping[str, Pair]) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of some of the pairs; of several, damaged ones are for others to complain of."""
    from ..vision.io.images import as_pair
    from ._pairs import some_of

    for name in some_of(pairs):
        try:
            yield as_pair(pairs[name].left, pairs[name].right)
        except ValueError:
            if len(pairs) == 1:
                raise


def estimated_rectifier(views: Iterable[tuple[Any, Any]]) -> Rectifier:
    """The rectifier by what matches in some pairs; says its notes."""
    from ..stereo.auto_rectify import auto_rectifier

    rectifier = auto_rectifier(views)
    for note in rectifier.notes:
        warn(note)
    return rectifier


def raw_rectifier(
    args: argparse.Namespace, size: Callable[[], tuple[int, ...]], views: Iterable[tuple[Any, Any]]
) -> Rectifier | None:
    """What rectifies pairs first, where that was asked for.

    Their size (height, width) is asked for, or some of them are looked at, only where that counts.
    """
    if args.raw is None:
        refuse(args, ("second", "cameras", "lens", "fov"), "goes with --raw CALIBRATION")
    given = [name for name in ("calib", "focal", "raw") if getattr(args, name) is not None]
    given += ["auto-rectify"] * args.auto_rectify
    if len(given) > 1 and {"raw", "auto-rectify"} & set(given):
        raise ValueError(f"give either --{given[0]} or --{given[1]}, not both")
    if args.raw is not None:
        return rig_rectifier(args, args.raw, open_rig(args, args.raw), size())
    return estimated_rectifier(views) if args.auto_rectify else None


def common_calibration(
    args: argparse.Namespace, left: Path, beside: Path | None = None
) -> StereoCalibration | None:
    """The calibration of --calib, the numbers or a file, for a left image or a folder of them."""
    from ..datasets.stereo.calibration import StereoCalibration

    numbers = {name: getattr(args, name) for name in ("focal", "baseline", "cx", "cy", "doffs")}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    if args.calib is not None and numbers:
        raise ValueError(f"give either --calib or --{next(iter(numbers))}, not both")
    if not numbers:
        if file := args.calib or beside:
            calibration = _read(args, file, left)
            _doubt(file, calibration.baseline)
            return calibration
        return None
    refuse(args, ["baseline_unit"], "is that of a file; --baseline takes metres")
    for name, unit in (("focal", "pixels"), ("baseline", "metres")):
        if name not in numbers:
            raise ValueError(
                f"--{next(iter(numbers))} needs --{name} too ({unit}): depth = focal * "
                "baseline / disparity"
            )
    common = StereoCalibration(**numbers)
    if common.baseline > _WIDEST:
        warn(f"a baseline of {common.baseline:g} m: --baseline takes metres, not millimetres")
    return common


def find_calibrations(
    args: argparse.Namespace, pairs: Mapping[str, Pair]
) -> dict[str, StereoCalibration | None]:
    """The calibration of each rectified pair, from its own file, --calib or the numbers.

    A file beside raw images is not of what they are rectified to, and one that was found counts
    less than what was given.
    """
    common = common_calibration(args, next(iter(pairs.values())).left)
    raw = args.raw is not None or args.auto_rectify
    own: dict[str, StereoCalibration] = {}
    if not raw and (args.list is not None or common is None):
        own = {
            name: _read(args, pair.calibration, pair.left)
            for name, pair in pairs.items()
            if pair.calibration is not None
        }
    for name in list(own)[:1]:  # the others are of the same unit
        _doubt(f"{pairs[name].calibration}", own[name].baseline)
    if args.raw is None and common is None and not own:
        refuse(args, ["baseline_unit"], "is that of a calibration file, and there is none")
        why = "needs a calibration: --calib, --raw, or --focal and --baseline"
        refuse(args, ["max_depth"], why)
    return {name: own.get(name, common) for name in pairs}


def _read(args: argparse.Namespace, file: str | Path, left: Path) -> StereoCalibration:
    """The calibration in a file, for a left image or a folder of them."""
    from ..datasets.stereo.calibration import read_calibration

    return read_calibration(file, args.baseline_unit or "mm", grey=_grey(left))


def _doubt(file: str | Path, baseline: float) -> None:
    """Warn of metres that no rig has between its cameras."""
    if not _NARROWEST <= baseline <= _WIDEST:
        warn(f"{file}: a baseline of {baseline:.3g} m: is --baseline-unit that of the file?")


def _grey(left: Path) -> bool:
    """Whether a left image, or a folder of them, is of KITTI's grey cameras, by its names."""
    return not {"image_0", "image_00"}.isdisjoint((left.stem, *left.absolute().parts))
