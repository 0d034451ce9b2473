"""`vizoo infer panorama`: depth, a point cloud and a surface of panoramas."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.progress import progress
from ._images import check_apart, find_images
from ._work import check_folder, collect_warnings, warn

if TYPE_CHECKING:
    from ..panorama.infer import PanoramaPredictor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="equirectangular image of the whole sphere, folder or quoted glob",
    )
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="a weight file or checkpoint, NAME or NAME.TAG of `vizoo models --pretrained`, or "
        "hf-hub:ORG/NAME",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    parser.add_argument(
        "--format", nargs="+", metavar="F", help="of the depth: png npy exr pfm (default: all)"
    )
    parser.add_argument(
        "--read-back",
        default="nearest",
        choices=("nearest", "linear"),
        help="a pixel's depth: its face's, or interpolated: smooth, edges too (default: nearest)",
    )
    parser.add_argument(
        "--max-ratio",
        type=float,
        default=1.5,
        metavar="RATIO",
        help="cut the surface where depth jumps by more than this; 0 for nowhere (default: 1.5)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Infer all panoramas; return 0, or 2 if any of several failed."""
    if args.max_ratio and args.max_ratio < 1:
        raise ValueError(f"--max-ratio {args.max_ratio:g}: must be at least 1, or 0 for no cut")
    images = find_images(args.images, "_depth.*")
    out = check_folder(args.out)
    check_apart(images, out)
    if args.model is None:
        raise ValueError(
            "no --model: this version ships no trained weights for panoramas; `vizoo fit --config "
            "panorama/spheredepth_generated.yaml` trains a network; then --model FILE"
        )
    from ..common.files import check_formats, write_json
    from ..panorama.infer import FORMATS, PanoramaPredictor

    if args.format is not None:
        args.format = check_formats(args.format, FORMATS)
    predictor = PanoramaPredictor(args.model, device=args.device, dtype=args.dtype)
    reports, failures = [], 0
    with progress() as bar:
        for done, (name, image) in enumerate(images.items(), 1):
            try:
                report = _infer(predictor, image, name, out, args)
            except (ValueError, OSError) as error:
                if len(images) == 1:
                    raise
                failures += 1
                report = {"image": str(image), "error": str(error)}
                print(f"vizoo: error: {error}", file=sys.stderr)
            reports.append(report)
            if len(images) > 1:
                bar("panoramas", done, len(images))
    summary = {"model": args.model, "panoramas": reports}
    write_json(out / "summary.json", summary)
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        for report in reports:
            _show(report)
        print(f"{out / 'summary.json'}")
    if failures:
        print(f"vizoo: error: {failures} of {len(images)} panoramas failed", file=sys.stderr)
    return 2 if failures else 0


def _infer(
    predictor: PanoramaPredictor, image: Path, name: str, out: Path, args: argparse.Namespace
) -> dict:
    import numpy as np

    started = time.perf_counter()
    with collect_warnings() as notes:
        result = predictor(image, args.read_back)
        seconds = time.perf_counter() - started
        files = result.save(out, name, formats=args.format, max_ratio=args.max_ratio or None)
    for note in notes:
        warn(f"{image}: {note}")
    height, width = result.depth.shape
    low, middle, high = (float(v) for v in np.quantile(result.depth, (0, 0.5, 1)))
    return {
        "image": str(image),
        "size": [height, width],
        "seconds": round(seconds, 4),
        "depth": {"min": low, "median": middle, "max": high},
        "points": len(result.faces),
        "warnings": notes,
        "files": [str(file) for file in files],
    }


def _show(report: dict) -> None:
    if "error" in report:
        return
    low, middle, high = (report["depth"][name] for name in ("min", "median", "max"))
    height, width = report["size"]
    print(
        f"{report['image']}: depth {low:.2f} to {high:.2f} m, median {middle:.2f} m "
        f"({height}x{width}, {report['seconds']:.2f} s)"
    )
    for file in report["files"]:
        print(f"  {file}")
