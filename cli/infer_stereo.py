"""`vizoo infer stereo`: disparity, depth and a point cloud of stereo pairs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.memory import available_memory
from ..common.progress import progress
from ..stereo import DEFAULT_MODEL
from ._pairs import Pair, find_folders, find_pairs, read_list
from ._work import check_folder, collect_warnings, warn

if TYPE_CHECKING:
    from ..datasets.stereo.calibration import StereoCalibration
    from ..stereo.infer import StereoPredictor

# Work that is announced: seconds, looked at for images of more pixels than these.
_LONG, _LARGE = 2.0, 500_000
# Memory that a pixel of a pair takes at scale 1 on a CPU: 12.2 GB were measured at 48 megapixels.
_BYTES = 254
# Pairs of a long list whose geometry is looked at: a swapped rig is swapped throughout.
_CHECKED = 5

_ENDINGS = tuple(
    "disparity.pfm disparity.png disparity.npy disparity_colour.png depth.npy depth_colour.png "
    "cloud.png cloud.ply".split()
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "left",
        nargs="?",
        metavar="LEFT",
        help="image, folder or quoted glob; alone: a folder of pairs (im0 im1, left right, "
        "view1 view5, image_0 image_1, image_2 image_3: as names of images in folders of their "
        "own, or of folders of images)",
    )
    parser.add_argument("right", nargs="?", metavar="RIGHT", help="the same for the right images")
    parser.add_argument("--list", metavar="FILE", help="lines LEFT RIGHT [CALIBRATION] instead")
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        default=DEFAULT_MODEL,
        help="NAME or NAME.TAG of `vizoo models --pretrained`, hf-hub:ORG/NAME, or a weight file "
        f"(default: {DEFAULT_MODEL}, small and fast)",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    parser.add_argument(
        "--scale",
        type=_scale,
        default="auto",
        metavar="S",
        help="match the images at S times their size, above 0 and at most 1, which brings near "
        "things within the network's reach; results have the images' own size and pixels "
        "(default: auto: 1 wherever that is enough)",
    )
    parser.add_argument("--calib", metavar="FILE", help="Middlebury, ETH3D or KITTI calibration")
    parser.add_argument(
        "--baseline-unit", default="mm", choices=("mm", "cm", "m"), help="in --calib (default: mm)"
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
    parser.add_argument(
        "--format", nargs="+", metavar="F", help="of the disparity: pfm png npy (default: all)"
    )
    parser.add_argument(
        "--max-depth",
        type=float,
        metavar="METRES",
        help="of the point cloud (default: the depth of a disparity of 1 px)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument(
        "--no-check", action="store_true", help="do not look at the pair's geometry"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> int:
    """Infer all pairs; return 0, or 2 if any of several failed."""
    with collect_warnings() as notes:
        pairs = _pairs(args)
    for note in notes:
        warn(note)
    _check_folder(args.out, pairs)
    calibrations = _calibrations(args, pairs)
    if args.format is not None:
        from ..common.files import check_formats
        from ..stereo.infer import FORMATS

        args.format = check_formats(args.format, FORMATS)
    predictor = _predictor(args)
    checked = set() if args.no_check else _spread(len(pairs), _CHECKED)
    reports, failures = [], 0
    with progress() as tell:
        for index, (pair, calibration) in enumerate(zip(pairs, calibrations, strict=True)):
            try:
                report = _infer(predictor, pair, calibration, args, index, index in checked)
            except (ValueError, OSError) as error:
                if len(pairs) == 1:
                    raise
                failures += 1
                reason = str(error)
                if isinstance(error, OSError) and error.strerror and error.filename:
                    reason = f"{error.filename}: {error.strerror}"
                report = {"left": str(pair.left), "right": str(pair.right), "error": reason}
                print(f"vizoo: error: {reason}", file=sys.stderr)
            reports.append(report)
            if not args.json:
                _show(report)
            if len(pairs) > 1:
                tell("pairs", index + 1, len(pairs))
    if args.json:
        print(json.dumps({"model": args.model, "pairs": reports}, indent=2))
    replaced = sum(report.get("replaced", 0) for report in reports)
    if replaced:
        files = f"{replaced} file{'s' * (replaced > 1)}"
        print(f"vizoo: replaced {files} of an earlier run in {args.out}", file=sys.stderr)
    if failures:
        print(f"vizoo: error: {failures} of {len(pairs)} pairs failed", file=sys.stderr)
    return 2 if failures else 0


def _scale(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0 < scale <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1, nor auto")
    return scale


def _pairs(args: argparse.Namespace) -> list[Pair]:
    if args.list is not None:
        if args.left is not None:
            raise ValueError("give either LEFT and RIGHT or --list FILE, not both")
        return read_list(args.list)
    if args.left is None:
        raise ValueError(
            "LEFT and RIGHT are missing (or --list FILE); see vizoo infer stereo --help"
        )
    return find_folders(args.left) if args.right is None else find_pairs(args.left, args.right)


def _check_folder(name: str, pairs: list[Pair]) -> None:
    out = check_folder(name)
    for pair in pairs:
        for file in (pair.left, pair.right):
            if file.parent.resolve() == out.resolve():
                raise ValueError(
                    f"--out {out} is where {file.name} lies: results could overwrite data there "
                    f"(such as {pair.name}_disparity.pfm); name another folder"
                )


def _calibrations(args: argparse.Namespace, pairs: list[Pair]) -> list[StereoCalibration | None]:
    from ..datasets.stereo.calibration import StereoCalibration, read_calibration

    numbers = {name: getattr(args, name) for name in ("focal", "baseline", "cx", "cy", "doffs")}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    common = None
    if args.calib is not None:
        if numbers:
            raise ValueError(f"give either --calib or --{next(iter(numbers))}, not both")
        common = read_calibration(args.calib, args.baseline_unit)
    elif numbers:
        for name, other in (("focal", "baseline"), ("baseline", "focal")):
            if name not in numbers:
                raise ValueError(
                    f"--{other if other in numbers else next(iter(numbers))} needs --{name} too "
                    f"({'pixels' if name == 'focal' else 'metres'}): depth = focal * baseline / "
                    "disparity"
                )
        common = StereoCalibration(**numbers)
        if common.baseline > 5:
            warn(f"a baseline of {common.baseline:g} m: --baseline takes metres, not millimetres")
    if args.max_depth is not None and not args.max_depth > 0:
        raise ValueError(f"--max-depth must be positive, got {args.max_depth:g}")
    own = [
        read_calibration(p.calibration, args.baseline_unit) if p.calibration else common
        for p in pairs
    ]
    if args.max_depth is not None and not any(own):
        raise ValueError("--max-depth needs a calibration: --calib, or --focal and --baseline")
    return own


def _predictor(args: argparse.Namespace) -> StereoPredictor:
    from ..stereo.infer import StereoPredictor

    return StereoPredictor(args.model, device=args.device, dtype=args.dtype)


def _infer(
    predictor: StereoPredictor,
    pair: Pair,
    calibration: StereoCalibration | None,
    args: argparse.Namespace,
    index: int,
    check: bool,
) -> dict:
    import numpy as np

    from ..stereo.infer import as_image

    left, right = as_image(pair.left), as_image(pair.right)
    notes = []
    height, width = left.shape[1:]
    if calibration is not None and calibration.width is not None:
        if (calibration.width, calibration.height) != (width, height):
            notes.append(
                f"the calibration is for {calibration.width}x{calibration.height} images and was "
                f"scaled to {width}x{height}"
            )
            try:
                calibration = calibration.resized(width, height)
            except ValueError as error:
                raise ValueError(f"{pair.left}: {error}") from error
    if index == 0 and height * width > _LARGE:
        share = 1.0 if args.scale == "auto" else args.scale**2
        expected = share * predictor.estimate(height, width)
        if expected > _LONG:
            print(
                f"vizoo: {pair.left}: {width}x{height}, about {expected:.0f} s on "
                f"{predictor.device}; less where --scale makes it smaller",
                file=sys.stderr,
            )
        needed, free = share * height * width * _BYTES, available_memory()
        if predictor.device.type == "cpu" and free is not None and needed > free:
            # Said before, since the system ends a process that takes more.
            warn(
                f"{pair.left}: {width}x{height} takes about {needed / 1e9:.1f} GB of memory, and "
                f"{free / 1e9:.1f} GB are free; a smaller --scale takes less"
            )
    started = time.perf_counter()
    try:
        with collect_warnings() as said:
            result = predictor(left, right, scale=args.scale, check=check)
    except ValueError as error:
        raise ValueError(f"{pair.left} and {pair.right}: {error}") from error
    notes += said
    seconds = time.perf_counter() - started
    before = _existing(Path(args.out), pair.name)
    with collect_warnings() as said:
        files = result.save(
            args.out,
            pair.name,
            calibration=calibration,
            formats=args.format,
            max_depth=args.max_depth,
        )
    notes += said
    old = sorted(before - set(files))
    if old:
        notes.append(f"of an earlier run, not of this one: {', '.join(map(str, old))}")
    for note in notes:
        warn(f"{pair.left}: {note}")
    low, middle, high = (float(v) for v in np.quantile(result.disparity, (0, 0.5, 1)))
    return {
        "left": str(pair.left),
        "right": str(pair.right),
        "size": [width, height],
        "seconds": round(seconds, 4),
        "disparity": {"min": low, "median": middle, "max": high},
        "warnings": notes,
        "scale": result.scale,
        "files": [str(file) for file in files],
        "replaced": len(before & set(files)),
    }


def _existing(folder: Path, name: str) -> set[Path]:
    """Return results that an earlier run left under this pair's name."""
    return {path for end in _ENDINGS if (path := folder / f"{name}_{end}").exists()}


def _show(report: dict) -> None:
    if "error" in report:
        return
    low, middle, high = (report["disparity"][name] for name in ("min", "median", "max"))
    width, height = report["size"]
    print(
        f"{report['left']}: disparity {low:.1f} to {high:.1f} px, median {middle:.1f} "
        f"({width}x{height}, {report['seconds']:.2f} s)"
    )
    for file in report["files"]:
        deep = "  16-bit, 256 per pixel; looks black in viewers"
        print(f"  {file}{deep if file.endswith('_disparity.png') else ''}")


def _spread(count: int, chosen: int) -> set[int]:
    """Return up to ``chosen`` indices spread over ``range(count)``, the first always."""
    return (
        {index * count // chosen for index in range(chosen)}
        if count > chosen
        else set(range(count))
    )
