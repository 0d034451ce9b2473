"""`vizoo infer stereo`: disparity, depth and a point cloud of stereo pairs."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ._cameras import add_raw_arguments, find_calibrations, raw_rectifier, raw_size, readable
from ._items import add_pairs, add_run_arguments, end_run, infer_items, infer_one
from ._stereo import add_calibration, add_matching, add_stereo_model
from ._work import check_apart, check_folder, number, positive, warn

if TYPE_CHECKING:
    from ..stereo.result import StereoResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pairs(parser)
    add_stereo_model(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    add_matching(parser)
    parser.add_argument(
        "--memory",
        type=positive,
        metavar="GB",
        help="what this process may hold; larger pairs are matched in tiles (default: all)",
    )
    parser.add_argument(
        "--both",
        action="store_true",
        help="match the right image too: its disparity, what it does not see, better confidence; "
        "twice the time",
    )
    add_calibration(parser)
    parser.add_argument(
        "--format", nargs="+", choices=("pfm", "png", "npy"), help="of the disparity (default: all)"
    )
    parser.add_argument(
        "--max-depth",
        type=partial(number, fits=lambda value: value > 0, wanted="above 0"),
        metavar="METRES",
        help="of the point cloud, `inf` for no bound (default: the depth of a disparity of 1 px)",
    )
    add_raw_arguments(parser)
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Infer all pairs; return 0, or 1 if any of several failed."""
    from ._pairs import asked_pairs, some_of

    pairs = {pair.name: pair for pair in asked_pairs(args, "vizoo infer stereo")}
    out = check_folder(args.out)
    check_apart((file for pair in pairs.values() for file in (pair.left, pair.right)), out)
    calibrations = find_calibrations(args, pairs)
    rectifier = raw_rectifier(args, lambda: raw_size(pairs), readable(pairs))
    from ..common.summaries import run_summary
    from ..stereo.infer import StereoPredictor
    from ..stereo.rectification import require_content
    from ..stereo.rectify import warn_of_raw
    from ..vision.io.images import as_image, as_pair

    memory = None if args.memory is None else 1e9 * args.memory
    where = args.device, args.dtype, args.runtime
    predictor = StereoPredictor(args.model, *where, guided=args.guided)
    checked = [] if args.no_check else some_of(pairs)

    def work(name: str) -> dict:
        left, right = as_pair(pairs[name].left, pairs[name].right)
        if rectifier is not None:
            require_content(left, right)
            left, right = map(as_image, rectifier(left, right))
        height, width = left.shape[1:]
        if name == next(iter(pairs)):
            for note in predictor.forewarnings(height, width, args.scale):
                warn(f"{pairs[name].left}: {note}")
        calibration = calibrations[name] if rectifier is None else rectifier.calibration
        largest = args.max_disparity
        if calibration is not None:  # refused before the network runs
            bound = calibration.fitted(height, width).ndisp
            largest = largest or (bound if args.scale == "auto" else None)
        chosen = {"formats": args.format, "max_depth": args.max_depth}
        views = [left, right]
        del left, right

        def infer() -> StereoResult:
            how = {"max_disparity": largest, "memory": memory, "both": args.both}
            result = predictor(*views, scale=args.scale, check=name in checked, **how)
            views.clear()  # large ones would take a gigabyte while results are written
            least = args.min_confidence
            return result if least is None else result.confident(least)

        def save(result: StereoResult, _: list[str]) -> list[Path]:
            files = result.save(out, name, calibration=calibration, **chosen)
            if rectifier is not None:
                return files + rectifier.save(result, out, name)
            warn_of_raw(out, name)
            return files

        return infer_one(name, infer, save)

    sources = {name: {"left": pair.left, "right": pair.right} for name, pair in pairs.items()}
    show = None if args.json else partial(_show, args.scale)
    items = infer_items("pairs", sources, work, show, out=out)
    summary = run_summary(predictor, args.model, "pairs", items)
    return end_run(summary, out, args.json, len(sources))


def _show(asked: float | str, item: dict) -> None:
    height, width = item["size"]
    seen = "nothing is sure enough"
    if item["disparity"] is not None:
        low, middle, high = (item["disparity"][name] for name in ("min", "median", "max"))
        seen = f"disparity {low:.1f} to {high:.1f} px, median {middle:.1f}"
    out = f", {item['left_out']:.0%} left out" if "left_out" in item else ""
    first = "" if item["scale"] == asked else "first "
    scale = f", {first}matched at {item['scale']:g} of its size" if item["scale"] < 1 else ""
    print(f"{item['left']}: {seen}{out} ({height}x{width}{scale}, {item['seconds']:.2f} s)")
    for file in item["files"]:
        deep = "  16-bit, 256 per pixel; looks black in viewers"
        print(f"  {file}{deep if file.endswith('_disparity.png') else ''}")
