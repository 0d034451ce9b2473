"""`vizoo rectify`: raw pairs as rectified ones, of a calibrated rig with their calibration."""

from __future__ import annotations

import argparse
import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.warned import collect_warnings
from ._cameras import (
    add_rig_arguments,
    estimated_rectifier,
    open_rig,
    raw_size,
    readable,
    rig_rectifier,
)
from ._items import add_pairs, end_run, infer_items
from ._work import check_apart, check_folder, parse_size, refuse, warn

if TYPE_CHECKING:
    from ..stereo.rectify import Rectifier, RigRectifier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "calibration",
        nargs="?",
        metavar="CALIBRATION",
        help="file of OpenCV (stereoCalibrate), Kalibr, ROS, EuRoC or KITTI, or its folder; none "
        "with --auto",
    )
    parser.add_argument(
        "--auto",
        action="store_true",
        help="instead of CALIBRATION: rectify by what matches in the pairs (no calib.txt)",
    )
    add_pairs(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="folder of the results: left/, right/ and calib.txt, which `vizoo infer stereo` takes",
    )
    add_rig_arguments(parser)
    parser.add_argument("--size", metavar="HxW", help="of rectified pictures (default: as raw)")
    parser.add_argument(
        "--baseline-unit",
        choices=("mm", "cm", "m"),
        help="in CALIBRATION (default: the format's; OpenCV's has none: m up to 2, else mm)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Rectify all pairs; return 0, or 1 if any of several failed."""
    from ..common.files import few
    from ..common.summaries import item_summary
    from ..stereo.rectification import require_content
    from ..stereo.rectify import RigRectifier, check_rows
    from ..vision.io.images import as_pair, write_image
    from ..vision.io.pairing import images_in
    from ._pairs import asked_pairs, some_of

    if args.auto:
        if args.calibration is not None:  # it is the first of the images
            images = [args.calibration, *args.images]
            args = argparse.Namespace(**{**vars(args), "calibration": None, "images": images})
        names = ("second", "cameras", "lens", "fov", "size", "baseline_unit")
        refuse(args, names, "goes with CALIBRATION, not with --auto")
    elif args.calibration is None:
        raise ValueError("CALIBRATION is missing: name its file, or give --auto to do without")
    # Before pairs are looked for: where it was forgotten, the first image stands in its place.
    rig = None if args.auto else open_rig(args, args.calibration)
    pairs = {pair.name: pair for pair in asked_pairs(args, "vizoo rectify")}
    out = check_folder(args.out)
    files = [file for pair in pairs.values() for file in (pair.left, pair.right)]
    for folder in (out, out / "left", out / "right"):
        check_apart(files, folder)
    if rig is None:
        rectifier: Rectifier = estimated_rectifier(readable(pairs))
        cause = "did the same two cameras take all pairs?"
    else:
        size = None if args.size is None else parse_size(args.size)
        rectifier = rig_rectifier(args, args.calibration, rig, raw_size(pairs), size)
        cause = None
    checked = some_of(pairs)

    calib, described = out / "calib.txt", False
    mine: set[str] = set()  # written by this run, of pairs that fail half-way too

    def work(name: str) -> dict:
        started = time.perf_counter()
        with collect_warnings() as notes:
            raw = as_pair(pairs[name].left, pairs[name].right)
            require_content(*raw)
            images = rectifier(*raw)
        rows, doubts = check_rows(*images, cause=cause) if name in checked else (None, [])
        written = [out / side / f"{name}.png" for side in ("left", "right")]
        nonlocal described
        if not described and isinstance(rectifier, RigRectifier):  # of no earlier run's pictures
            _write(calib, rectifier, args)
            described = True
        for file, image in zip(written, images, strict=True):
            write_image(file, image)
            mine.add(str(file))
        seconds = time.perf_counter() - started
        facts = {"size": list(images[0].shape[:2]), "row_offset": rows}
        return item_summary(name, facts, seconds, written, notes + doubts)

    sources = {name: {"left": pair.left, "right": pair.right} for name, pair in pairs.items()}
    items = infer_items("pairs", sources, work, None if args.json else _show)
    summary = {"calibration": args.calibration}
    if described and isinstance(rectifier, RigRectifier):
        summary |= {"rectified": str(calib), "kept": rectifier.kept}
    folders = [folder for folder in (out / "left", out / "right") if folder.is_dir()]
    there = {str(file) for folder in folders for file in images_in(folder)}
    if old := sorted(there - mine):
        theirs = "" if args.auto else f"; {calib} is not theirs"
        warn(f"of an earlier run, not of this one: {few(old)}{theirs}")
    if stale := args.auto and calib.exists():
        warn(f"of an earlier run, not of these pairs: {calib}")
    summary |= {"kind": "pairs", "items": items}
    status = end_run(summary, out, args.json, len(sources))
    done = any("files" in item for item in items)
    if done and status != 130 and not (args.json or old or stale):
        print(f"next: vizoo infer stereo {shlex.join([str(out), '--out', f'{out}/result'])}")
    return status


def _write(calib: Path, rectifier: RigRectifier, args: argparse.Namespace) -> None:
    from ..datasets.stereo.calibration import write_calibration

    c = rectifier.calibration
    write_calibration(calib, c)
    if not args.json:
        wide = 2 * math.degrees(math.atan((c.width or 0) / 2 / c.focal))
        print(
            f"{args.calibration}: {rectifier.rig.left.model} lenses, baseline {c.baseline:.4g} m; "
            f"rectified: focal length {c.focal:.1f} px, {wide:.0f} degrees wide, with "
            f"{rectifier.kept:.0%} of the raw left picture"
        )


def _show(item: dict) -> None:
    told = "" if item["row_offset"] is None else f", rows agree to {item['row_offset']:.2f} px"
    print(f"{item['left']}: {' '.join(item['files'])}{told}")
