"""Arguments that commands for stereo pairs and sequences share, and frames treated as pairs."""

from __future__ import annotations

import argparse
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..stereo import DEFAULT_MODEL
from ._cameras import common_calibration, raw_rectifier
from ._items import add_model
from ._work import number, positive, refuse, share

if TYPE_CHECKING:
    from ..datasets.stereo.calibration import StereoCalibration
    from ..stereo.rectify import Rectifier
    from ..stereo.sequences import StereoSequence

# More frames by whose matches a rig is estimated, out of so many, and levels that these vary by.
_ESTIMATED, _LOOKED_AT, _CONTENT = 4, 30, 2.0


def add_stereo_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` of what takes exported files too."""
    told = ", what `vizoo export --dynamic` wrote (.onnx, .xml)"
    add_model(parser, DEFAULT_MODEL, told)


def add_matching(parser: argparse.ArgumentParser) -> None:
    """Add how pairs are matched, and which pixels are kept."""
    parser.add_argument(
        "--guided",
        action=argparse.BooleanOptionalAction,
        help="fuse what the network finds at half of the size with semi-global matching: more "
        "accurate, sees twice as far, mostly slower "
        f"(default: only {DEFAULT_MODEL}, by that very name, is guided)",
    )
    parser.add_argument(
        "--scale",
        type=_scale,
        default="auto",
        metavar="S",
        help="match the images at S times their size, above 0 and at most 1, which brings near "
        "things within the network's reach; results have the images' own size and pixels "
        "(default: auto: 1 wherever that is enough, else a smaller size first, then 1 around "
        "what was found; of frames what the first one needs)",
    )
    parser.add_argument(
        "--max-disparity",
        type=positive,
        metavar="PX",
        help="the largest there is (default: what the calibration says, else looked up, of frames "
        "in the first one)",
    )
    parser.add_argument(
        "--min-confidence",
        type=share,
        metavar="C",
        help="leave out pixels that are less sure, 0 to 1: 0 in PNG, npy and depth, infinite in "
        "PFM, no points, black in a video",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not look at the (first) pair's geometry"
    )


def add_calibration(parser: argparse.ArgumentParser, told: str = "") -> None:
    """Add what says which rectified cameras it is; what is told comes after ``--calib``."""
    text = f"Middlebury, ETH3D or KITTI calibration{told}"
    parser.add_argument("--calib", metavar="FILE", help=text)
    parser.add_argument(
        "--baseline-unit",
        choices=("mm", "cm", "m"),
        help="in a calibration file (default: mm) or --raw",
    )
    parser.add_argument(
        "--focal", type=float, metavar="PX", help="focal length, instead of --calib"
    )
    parser.add_argument("--baseline", type=float, metavar="METRES", help="goes with --focal")
    parser.add_argument("--cx", type=float, metavar="PX", help="default: the image's centre")
    parser.add_argument("--cy", type=float, metavar="PX", help="default: the image's centre")
    parser.add_argument(
        "--doffs", type=float, metavar="PX", help="right minus left principal point (default: 0)"
    )


def rectify_frames(
    args: argparse.Namespace, sequence: StereoSequence
) -> tuple[Rectifier | None, StereoCalibration | None]:
    """What rectifies frames, if asked for, and the calibration of the pairs that come, if known.

    That is by default the ``calib.txt`` of a folder of both views.
    """
    from ..datasets.stereo.calibration import scaling_notes
    from ..stereo.captures import without_secrets
    from ..vision.io.pairing import side_folders
    from ._pairs import calibration_in

    source, alone = Path(args.source), not (args.right or args.raw or args.auto_rectify)
    beside = calibration_in(source) if alone and side_folders(source) else None
    own = common_calibration(args, Path(sequence.facts["left"]), beside)
    if args.raw is None and own is None:
        refuse(args, ["baseline_unit"], "is that of a calibration file, and there is none")
    with closing(sequence.peek()) as frames:
        first = next(frames, None)
        if first is None:
            raise ValueError(
                "; ".join([f"{sequence.name}: no frame could be read", *sequence.notes])
            )
        shown = [first]
        if args.auto_rectify:
            ahead = (frame for frame in islice(frames, _LOOKED_AT) if frame.left.std() > _CONTENT)
            shown += islice(ahead, _ESTIMATED)
    height, width = first.left.shape[:2]
    views = ((frame.left, frame.right) for frame in shown)
    rectifier = raw_rectifier(args, lambda: (height, width), views)
    if rectifier is not None:
        sequence.transform(rectifier)
        return rectifier, rectifier.calibration
    if own is None:
        return None, None
    try:
        fitted = own.fitted(height, width)
    except ValueError as error:
        where = f"{without_secrets(args.source)}: {args.calib or beside}"
        raise ValueError(f"{where}: {error}") from error
    sequence.notes += scaling_notes((own.height, own.width), height, width)
    return None, fitted


def _scale(text: str) -> float | str:
    if text == "auto":
        return text
    return number(text, lambda value: 0 < value <= 1, "above 0 and at most 1, nor auto")
