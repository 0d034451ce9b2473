"""What the commands for stereo pairs take: pairs, their calibrations, and numbers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._work import warn

if TYPE_CHECKING:
    from ..datasets.stereo.calibration import StereoCalibration
    from ._pairs import Pair


def scale(text: str) -> float | str:
    """The argument of `--scale`."""
    if text == "auto":
        return text
    return _number(text, lambda value: 0 < value <= 1, "above 0 and at most 1, nor auto")


def share(text: str) -> float:
    """An argument from 0 to 1."""
    return _number(text, lambda value: 0 <= value <= 1, "from 0 to 1")


def positive(text: str) -> float:
    """An argument above 0."""
    return _number(text, lambda value: 0 < value < math.inf, "above 0")


def _number(text: str, fits: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


def chosen_pairs(args: argparse.Namespace) -> list[Pair]:
    """The pairs that are asked for.

    Raises:
        FileNotFoundError, ValueError: there is no such file, or the words do not fit together.
    """
    from ._pairs import find_folders, find_pairs, read_list

    if args.list is not None:
        if args.left is not None:
            raise ValueError("give either LEFT and RIGHT or --list FILE, not both")
        return read_list(args.list)
    if args.left is None:
        raise ValueError(
            "LEFT and RIGHT are missing (or --list FILE); see vizoo infer stereo --help"
        )
    return find_folders(args.left) if args.right is None else find_pairs(args.left, args.right)


def chosen_calibrations(
    args: argparse.Namespace, pairs: dict[str, Pair]
) -> dict[str, StereoCalibration | None]:
    """The calibration of each pair, by its name: its own, or the one for all.

    Raises:
        FileNotFoundError, ValueError: there is no such file, or the words do not fit together.
    """
    from ..datasets.stereo.calibration import StereoCalibration, read_calibration

    numbers = {name: getattr(args, name) for name in ("focal", "baseline", "cx", "cy", "doffs")}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    common = None
    if args.calib is not None:
        if numbers:
            raise ValueError(f"give either --calib or --{next(iter(numbers))}, not both")
        common = read_calibration(args.calib, args.baseline_unit)
    elif numbers:
        for name, unit in (("focal", "pixels"), ("baseline", "metres")):
            if name not in numbers:
                raise ValueError(
                    f"--{next(iter(numbers))} needs --{name} too ({unit}): depth = focal * "
                    "baseline / disparity"
                )
        common = StereoCalibration(**numbers)
        if common.baseline > 5:
            warn(f"a baseline of {common.baseline:g} m: --baseline takes metres, not millimetres")
    files = {name: pair.calibration for name, pair in pairs.items()}
    own = {
        name: read_calibration(file, args.baseline_unit) if file else common
        for name, file in files.items()
    }
    if args.max_depth is not None:
        if not args.max_depth > 0:
            raise ValueError(f"--max-depth must be positive, got {args.max_depth:g}")
        if not any(own.values()):
            raise ValueError("--max-depth needs a calibration: --calib, or --focal and --baseline")
    return own
