"""`vizoo calibrate stereo`: a rig's lenses and how its cameras stand, by pictures of a board."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

from ..common.progress import progress
from ._items import add_pairs
from ._work import check_apart, check_folder, parse_size, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pairs(parser)
    parser.add_argument("--board", choices=("chessboard", "charuco"), required=True)
    parser.add_argument(
        "--squares",
        required=True,
        metavar="COLUMNSxROWS",
        help="of the board; its inner corners are one less each way",
    )
    parser.add_argument(
        "--square", type=_metres, required=True, metavar="LENGTH", help="a side, such as 25mm"
    )
    parser.add_argument(
        "--marker", type=_metres, metavar="LENGTH", help="side of a ChArUco board's markers"
    )
    parser.add_argument(
        "--dictionary",
        default="DICT_4X4_50",
        metavar="NAME",
        help="of a ChArUco board's markers, by OpenCV's name (default: DICT_4X4_50)",
    )
    parser.add_argument(
        "--lens",
        choices=("pinhole", "rational", "fisheye"),
        default="pinhole",
        help="rational for wide lenses, fisheye for very wide ones (default: pinhole)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="folder of the results: calibration.yml, which `vizoo rectify` and `vizoo infer "
        "stereo --raw` take, calibration.json (errors of each picture) and calibration.png",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Calibrate, write the files, say the errors; return 0."""
    from ..stereo.board_calibration import Board, calibrate_rig, write_calibrated
    from ._pairs import asked_pairs

    columns, rows = parse_size(args.squares, "--squares", "10x7", "columns and rows")
    board = Board(args.board, columns, rows, args.square, args.marker, args.dictionary)
    pairs = asked_pairs(args, "vizoo calibrate stereo")
    out = check_folder(args.out)
    check_apart((file for pair in pairs for file in (pair.left, pair.right)), out)
    with progress() as report:
        fitted = calibrate_rig([(p.left, p.right) for p in pairs], board, args.lens, report)
    files = write_calibrated(fitted, out)
    for note in (*fitted.skipped.values(), *fitted.notes):
        warn(note)
    if args.json:
        print(json.dumps(fitted.to_json(), indent=2))
        return 0
    for view in fitted.views:
        left, right = view.errors
        print(f"{view.name}: {len(view.points)} corners, left {left:.3f} px, right {right:.3f} px")
    rig = fitted.rig
    print(
        f"{len(fitted.views)} of {len(pairs)} pairs: error {fitted.error:.3f} px, focal length "
        f"{rig.left.focal[0]:.1f} and {rig.right.focal[0]:.1f} px, baseline {rig.baseline:.4g} m"
    )
    print(*files, sep="\n")
    words = [str(files[0]), "LEFT", "RIGHT", "--out", str(Path(args.out) / "rectified")]
    print(f"next: vizoo rectify {shlex.join(words)}")
    return 0


def _metres(text: str) -> float:
    from ..datasets.stereo.calibration import PER_METRE

    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(mm|cm|m)", text.replace(" ", ""))
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no length with its unit, such as 25mm")
    return float(match[1]) / PER_METRE[match[2]]
