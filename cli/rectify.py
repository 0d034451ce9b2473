"""`vizoo rectify`: raw pairs of a calibrated rig as rectified ones, and their calibration."""

from __future__ import annotations

import argparse
import math
import time

from ._cameras import add_rig_arguments, raw_size, rig_rectifier
from ._items import add_pairs, end_run, infer_items
from ._work import check_apart, check_folder, collect_warnings, parse_size, say_warnings, warn

# Pairs whose rows are compared: one rig is wrong throughout.
_CHECKED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "calibration",
        metavar="CALIBRATION",
        help="file of OpenCV (stereoCalibrate), Kalibr, ROS, EuRoC or KITTI, or its folder",
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
    from ..common.summaries import item_summary
    from ..datasets.stereo.calibration import write_calibration
    from ..stereo.rectification import require_content
    from ..stereo.rectify import check_rows
    from ..vision.io.images import read_image, write_image
    from ..vision.io.pairing import images_in
    from ._pairs import asked_pairs

    with say_warnings():
        pairs = {pair.name: pair for pair in asked_pairs(args, "vizoo rectify")}
    out = check_folder(args.out)
    files = [file for pair in pairs.values() for file in (pair.left, pair.right)]
    for folder in (out, out / "left", out / "right"):
        check_apart(files, folder)
    size = None if args.size is None else parse_size(args.size)
    rectifier = rig_rectifier(args, args.calibration, raw_size(pairs), size)
    checked = set(list(pairs)[:: math.ceil(len(pairs) / _CHECKED)])

    def work(name: str) -> dict:
        started = time.perf_counter()
        with collect_warnings() as notes:
            raw = [read_image(file) for file in (pairs[name].left, pairs[name].right)]
            require_content(*raw)
            images = rectifier(*raw)
        rows, doubts = check_rows(*images) if name in checked else (None, [])
        written = [out / side / f"{name}.png" for side in ("left", "right")]
        for file, image in zip(written, images, strict=True):
            write_image(file, image)
        seconds = time.perf_counter() - started
        found = {"size": list(images[0].shape[:2]), "row_offset": rows}
        return item_summary(name, found, seconds, written, notes + doubts)

    c, calib = rectifier.calibration, out / "calib.txt"
    write_calibration(calib, c)
    if not args.json:
        wide = 2 * math.degrees(math.atan((c.width or 0) / 2 / c.focal))
        print(
            f"{args.calibration}: {rectifier.rig.left.model} lenses, baseline {c.baseline:.4g} m; "
            f"rectified: focal length {c.focal:.1f} px, {wide:.0f} degrees wide, with "
            f"{rectifier.kept:.0%} of the raw left picture"
        )
    sources = {name: {"left": pair.left, "right": pair.right} for name, pair in pairs.items()}
    items = infer_items("pairs", sources, work, None if args.json else _show)
    written = {file for item in items for file in item.get("files", ())}
    folders = [folder for folder in (out / "left", out / "right") if folder.is_dir()]
    there = {str(file) for folder in folders for file in images_in(folder)}
    if old := sorted(there - written):
        told = f"{', '.join(old[:4])}{f' and {len(old) - 4} more' * (len(old) > 4)}"
        warn(f"of an earlier run, not of this one: {told}; {calib} is not theirs")
    summary = {"calibration": args.calibration, "rectified": str(calib), "kept": rectifier.kept}
    status = end_run({**summary, "kind": "pairs", "items": items}, out, args.json)
    if not args.json:
        print(f"next: vizoo infer stereo {out} --out {out}/result")
    return status


def _show(item: dict) -> None:
    told = "" if item["row_offset"] is None else f", rows agree to {item['row_offset']:.2f} px"
    print(f"{item['left']}: {' '.join(item['files'])}{told}")
