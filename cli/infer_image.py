"""`vizoo infer image`: classes of images, and where the networks looked."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..classification import NOTICE
from ..common.progress import progress
from ._images import check_apart, find_images
from ._work import check_folder, warn

if TYPE_CHECKING:
    from ..classification.image_infer import ImagePredictor, ImageResult

_METHODS = ("auto", "cam", "grad-cam")
_SILENT = "no box above the threshold: the class says nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description += f"\n{NOTICE}"
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image, folder or quoted glob")
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="a checkpoint of `vizoo fit` (of a classifier or a detector) or weight file, an "
        "ensemble of `vizoo ensemble` (.json), NAME or NAME.TAG of `vizoo models --pretrained`, or "
        "hf-hub:ORG/NAME",
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the results: JSON, overlays as PNG")
    parser.add_argument(
        "--top", type=int, default=5, metavar="K", help="classes printed (default: 5)"
    )
    parser.add_argument(
        "--tta", action="store_true", help="ask about each image and its three mirror images"
    )
    parser.add_argument(
        "--overlays",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="draw where the network looked, with --out (default: yes)",
    )
    parser.add_argument(
        "--method",
        default="auto",
        choices=_METHODS,
        help="of the map: cam; grad-cam; auto: cam where it holds and is not too coarse, else "
        "grad-cam (default)",
    )
    parser.add_argument(
        "--layer", metavar="NAME", help="of grad-cam, such as body.layer3 (default: chosen)"
    )
    parser.add_argument(
        "--class",
        dest="explained",
        metavar="NAME",
        help="the class that the map is for (default: the most probable one)",
    )
    parser.add_argument("--batch", type=int, default=16, help="images at a time (default: 16)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--csv", metavar="FILE", help="write a table of all images")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> int:
    """Classify all images; return 0, or 2 if any of several failed."""
    for name in ("top", "batch"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}: must be at least 1")
    if (not args.overlays or args.out is None) and (
        args.layer or args.explained or args.method != "auto"
    ):
        raise ValueError(
            "--method, --layer and --class are for the map: give --out DIR, without --no-overlays"
        )
    images = find_images(args.images, "_overlay.png")
    out = None if args.out is None else check_folder(args.out)
    if out is not None:
        check_apart(images, out)
    if args.model is None:
        raise ValueError(
            "no --model: this version ships no trained weights for images; `vizoo fit --config "
            "classification/skin_generated.yaml` trains a network; then --model FILE"
        )
    from ..classification.image_infer import ImagePredictor

    predictor = ImagePredictor(args.model, args.device, args.dtype, args.tta or None)
    if args.explained is not None and args.explained not in predictor.classes:
        raise ValueError(f"--class {args.explained}: none of {', '.join(predictor.classes)}")
    reports = []
    with progress() as bar:
        for report in _infer_all(predictor, images, out, args):
            reports.append(report)
            if not args.json:
                _show(report, args.top)
            if len(images) > 1:
                bar("images", len(reports), len(images))
    if args.csv is not None:
        from ..classification.reports import write_results

        write_results(args.csv, "image", predictor.classes, reports, predictor.name)
    if args.json:
        summary = {"model": args.model, "network": predictor.name, "notice": NOTICE}
        print(json.dumps({**summary, "images": reports}, indent=2))
    else:
        print(*([args.csv] if args.csv else []), NOTICE, sep="\n")
    failures = sum("error" in report for report in reports)
    if failures:
        print(f"vizoo: error: {failures} of {len(images)} images failed", file=sys.stderr)
    return 2 if failures else 0


def _infer_all(
    predictor: ImagePredictor, images: dict[str, Path], out: Path | None, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A report of each image, in order; one that cannot be read is said and passed over."""
    method = args.method if args.overlays and out is not None else None
    names = list(images)
    for start in range(0, len(names), args.batch):
        chunk, prepared, failed = names[start : start + args.batch], {}, {}
        for name in chunk:
            try:
                prepared[name] = predictor.prepare(images[name])
            except (ValueError, OSError) as error:
                if len(names) == 1:
                    raise
                failed[name] = str(error)
                print(f"vizoo: error: {error}", file=sys.stderr)
        started = time.perf_counter()
        found, method = _classify(predictor, list(prepared.values()), method, args)
        seconds = (time.perf_counter() - started) / max(1, len(prepared))
        results = dict(zip(prepared, found, strict=True))
        for name in chunk:
            if name in failed:
                yield {"image": str(images[name]), "error": failed[name]}
                continue
            notes = [] if results[name].answered else [_SILENT]
            for note in notes:
                warn(f"{images[name]}: {note}")
            facts = {"model": args.model, "network": predictor.name, "warnings": notes}
            files = [] if out is None else results[name].save(out, name, facts)
            yield {
                "image": str(images[name]),
                **results[name].summary(),
                **facts,
                "seconds": round(seconds, 4),
                "files": [str(file) for file in files],
            }


def _classify(
    predictor: ImagePredictor, images: list, method: str | None, args: argparse.Namespace
) -> tuple[list[ImageResult], str | None]:
    """Results, and the method for what is left: none where the networks have no maps."""
    if not images:
        return [], method
    options = {"layer": args.layer, "explained": args.explained}
    if method is None:
        return predictor.many(images), None
    if args.method != "auto" or args.layer:  # asked for, so that it may not be left out
        return predictor.many(images, method=method, **options), method
    try:
        return predictor.many(images, method=method, **options), method
    except ValueError as error:
        found = predictor.many(images)  # raises again where it was not about maps
        warn(str(error))
        return found, None


def _show(report: dict[str, Any], top: int) -> None:
    if "error" in report:
        return
    shares = list(report["probabilities"].items())[:top]
    words = ", ".join(f"{name} {share:.3f}" for name, share in shares)
    print(f"{report['image']}: {report['class']} ({words})")
    if "map" in report:
        print(f"  {report['map']['method']}")
    for file in report["files"]:
        print(f"  {file}")
