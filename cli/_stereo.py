"""Arguments that commands for stereo pairs and sequences share, and frames treated as pairs."""

from __future__ import annotations

import argparse
from contextlib import closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..stereo import DEFAULT_MODEL
from ._cameras import find_calibrations, raw_rectifier

if TYPE_CHECKING:
    from ..datasets.stereo.calibration import StereoCalibration
    from ..stereo.rectify import Rectifier
    from ..stereo.sequences import StereoSequence

_ESTIMATED, _LOOKED_AT = 5, 30  # frames by whose matches a rig is estimated, out of so many
_CONTENT = 2.0  # levels by which a picture varies at least


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``."""
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        default=DEFAULT_MODEL,
        help="NAME or NAME.TAG of `vizoo models --pretrained`, hf-hub:ORG/NAME, or a weight file "
        f"(default: {DEFAULT_MODEL}, small and fast)",
    )


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """Add what says which rectified cameras it is."""
    parser.add_argument("--calib", metavar="FILE", help="Middlebury, ETH3D or KITTI calibration")
    parser.add_argument(
        "--baseline-unit", choices=("mm", "cm", "m"), help="in --calib (default: mm) or --raw"
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
    """Rectify the frames of a sequence, where that was asked for.

    Returns:
        What does so, and the calibration of the pairs that come, where it is known.
    """
    from ..vision.io.images import write_image
    from ._pairs import Pair

    own = find_calibrations(args, {sequence.name: Pair(Path(), Path())})[sequence.name]
    wanted = _ESTIMATED if args.auto_rectify else int(args.raw is not None)
    pairs = {}
    with TemporaryDirectory(prefix="vizoo-") as folder, closing(sequence.peek()) as frames:
        shown = (
            frame
            for frame in islice(frames, _LOOKED_AT)
            if not args.auto_rectify or frame.left.std() > _CONTENT
        )
        for frame in islice(shown, wanted):
            left, right = (Path(folder, f"{side}{len(pairs)}.png") for side in ("left", "right"))
            write_image(left, frame.left)
            write_image(right, frame.right)
            pairs[frame.name] = Pair(left, right)
        if wanted and not pairs:
            raise ValueError(f"{sequence.name}: no frame to rectify could be read")
        rectifier = raw_rectifier(args, pairs)
    if rectifier is None:
        return None, own
    sequence.transform(rectifier)
    return rectifier, rectifier.calibration
