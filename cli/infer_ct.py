"""`vizoo infer ct`: classes of chest CT scans, and where the network looked."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..classification import NOTICE
from ..common.progress import progress
from ._work import check_folder, collect_warnings, warn

if TYPE_CHECKING:
    from ..classification.ct_infer import CTPredictor

_METHODS = ("auto", "cam", "grad-cam", "windows", "occlusion")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description += f"\n{NOTICE}"
    parser.add_argument(
        "scans",
        nargs="+",
        metavar="SERIES",
        help="folder of a DICOM series or of PNG or TIFF slices, NIfTI file, folder of such, or "
        "quoted glob",
    )
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="a checkpoint of `vizoo fit` or weight file, NAME or NAME.TAG of `vizoo models "
        "--pretrained`, or hf-hub:ORG/NAME",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder of the results: JSON, overlays as PNG, map as NIfTI"
    )
    parser.add_argument("--no-overlays", action="store_true", help="no maps: probabilities alone")
    parser.add_argument(
        "--method",
        default="auto",
        choices=_METHODS,
        help="of the map: cam, as published; grad-cam; windows (CAM of windows of slices); "
        "occlusion (of covered parts: slow, and true to any network); auto: cam where it tells "
        "slices apart, else grad-cam (default)",
    )
    parser.add_argument(
        "--layer", metavar="NAME", help="of grad-cam, such as stages.1 (default: chosen by depth)"
    )
    parser.add_argument(
        "--no-mirrors",
        action="store_true",
        help="the map of the scan alone, not the mean over its eight mirror images: faster, and "
        "as published",
    )
    parser.add_argument(
        "--class",
        dest="explained",
        metavar="NAME",
        help="the class that the map is for (default: the most probable one)",
    )
    parser.add_argument(
        "--montage", type=int, default=8, metavar="K", help="slices in the montage (default: 8)"
    )
    parser.add_argument(
        "--series", metavar="UID", help="SeriesInstanceUID, where a folder holds several series"
    )
    parser.add_argument(
        "--value-range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="stored values that become 0 and 1, of slices with 16 bits",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--csv", metavar="FILE", help="write a table of all scans")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> int:
    """Classify all scans; return 0, or 2 if any of several failed."""
    if args.montage < 1:
        raise ValueError(f"--montage {args.montage}: must be at least 1")
    if (args.no_overlays or args.out is None) and (
        args.layer or args.explained or args.method != "auto"
    ):
        raise ValueError(
            "--method, --layer and --class are for the map: give --out DIR, without --no-overlays"
        )
    out = None if args.out is None else check_folder(args.out)
    scans = _scans(args, out)
    _check_targets(scans, out)
    if args.model is None:
        raise ValueError(
            "no --model: this version ships no trained weights for CT; `vizoo fit` finds and "
            "trains a network (classification/covidnet3d_search_generated.yaml, then "
            "covidnet3d_retrain_generated.yaml); then --model FILE"
        )
    from ..classification.ct_infer import CTPredictor

    predictor = CTPredictor(args.model, device=args.device, dtype=args.dtype)
    if args.explained is not None and args.explained not in predictor.classes:
        raise ValueError(f"--class {args.explained}: none of {', '.join(predictor.classes)}")
    reports, failures = [], 0
    with progress() as bar:
        for done, (name, scan) in enumerate(scans.items(), 1):
            try:
                report = _infer(predictor, scan, name, out, args)
            except (ValueError, OSError) as error:
                if len(scans) == 1:
                    raise
                failures += 1
                report = {"scan": str(scan), "error": str(error)}
                print(f"vizoo: error: {error}", file=sys.stderr)
            reports.append(report)
            if not args.json:
                _show(report)
            if len(scans) > 1:
                bar("scans", done, len(scans))
    if args.csv is not None:
        from ..classification.reports import write_results

        rows, counts = map(_counted, reports), ("slices", "slices_used")
        write_results(args.csv, "scan", predictor.classes, rows, predictor.name, counts)
    if args.json:
        summary = {"model": args.model, "network": predictor.name, "notice": NOTICE}
        print(json.dumps({**summary, "scans": reports}, indent=2))
    else:
        print(*([args.csv] if args.csv else []), NOTICE, sep="\n")
    if failures:
        print(f"vizoo: error: {failures} of {len(scans)} scans failed", file=sys.stderr)
    return 2 if failures else 0


def _scans(args: argparse.Namespace, out: Path | None) -> dict[str, Path]:
    from ._scans import find_scans

    if args.series is None:
        return find_scans(args.scans, out)
    if len(args.scans) > 1:
        raise ValueError("--series names one series: give the one folder that holds it")
    return {Path(args.scans[0]).resolve().name: Path(args.scans[0])}


def _check_targets(scans: dict[str, Path], out: Path | None) -> None:
    """Refuse to write among the scans."""
    if out is None:
        return
    for scan in scans.values():
        home = scan if scan.is_dir() else scan.parent
        if home.resolve() == out.resolve():
            raise ValueError(
                f"--out {out} is where {scan} lies: results would be taken for scans there; name "
                "another folder"
            )


def _infer(
    predictor: CTPredictor, scan: Path, name: str, out: Path | None, args: argparse.Namespace
) -> dict:
    started = time.perf_counter()
    drawn = not (args.no_overlays or out is None)
    with collect_warnings() as notes:
        result = predictor(
            scan,
            series=args.series,
            value_range=args.value_range and tuple(args.value_range),
            method=args.method if drawn else None,
            layer=args.layer if drawn else None,
            explained=args.explained if drawn else None,
            mirrors=not args.no_mirrors,
        )
    seconds = time.perf_counter() - started
    facts = {"model": args.model, "network": predictor.name, "warnings": notes}
    files = [] if out is None else result.save(out, name, facts=facts, montage=args.montage)
    for note in notes:
        warn(note if str(scan) in note else f"{scan}: {note}")
    return {
        **result.summary(),
        **facts,
        "seconds": round(seconds, 3),
        "files": [str(file) for file in files],
    }


def _show(report: dict) -> None:
    if "error" in report:
        return
    shares = sorted(report["probabilities"].items(), key=lambda share: -share[1])
    words = ", ".join(f"{name} {share:.3f}" for name, share in shares)
    used, depth = len(report["slices_from_the_feet"]), report["size"][0]
    low, high = report["window"]
    print(f"{report['scan']}: {report['class']} ({words})")
    print(
        f"  {used} of {depth} slices, window {low:g} to {high:g}, {report['network']}, "
        f"{report['seconds']:.2f} s"
    )
    if "map" in report:
        where = report["map"]
        print(
            f"  {where['method']}, highest at slice {where['peak_slice']} of {depth}, from the feet"
        )
    for file in _condensed(report["files"]):
        print(f"  {file}")


def _condensed(files: list[str]) -> list[str]:
    """The files, those of a folder of slices in one line."""
    lines: dict[str, int] = {}
    for file in files:
        parent = str(Path(file).parent)
        key = f"{parent}/" if parent.endswith("_slices") else file
        lines[key] = lines.get(key, 0) + 1
    return [f"{key} ({count} slices)" if key.endswith("/") else key for key, count in lines.items()]


def _counted(report: dict) -> dict:
    """A report with the columns of the table that it does not have by their names."""
    if "error" in report:
        return report
    counts = {"slices": report["size"][0], "slices_used": len(report["slices_from_the_feet"])}
    return {**report, **counts}
