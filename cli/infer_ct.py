"""`vizoo infer ct`: classes of chest CT scans, and where the network looked."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ..classification import NOTICE
from ._items import (
    add_map,
    add_model,
    add_run_arguments,
    check_class,
    check_written,
    end_classified,
    infer_items,
    infer_one,
)
from ._work import check_apart, check_folder, check_least, unique_names

if TYPE_CHECKING:
    from ..classification.ct_infer import CTResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = f"{parser.description}\n{NOTICE}"
    parser.add_argument(
        "scans",
        nargs="+",
        metavar="SERIES",
        help="folder of a DICOM series or of PNG or TIFF slices, NIfTI file, folder of such, or "
        "quoted glob",
    )
    add_model(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="folder of the results: JSON, overlays as PNG, map as NIfTI"
    )
    parser.add_argument("--no-overlays", action="store_true", help="no maps: probabilities alone")
    add_map(
        parser,
        ("auto", "cam", "grad-cam", "windows", "occlusion"),
        "cam, as published; grad-cam; windows (CAM of windows of slices); occlusion (of covered "
        "parts: slow, and true to any network); auto: cam where it tells slices apart, else "
        "grad-cam (default)",
        "stages.1 (default: chosen by depth)",
    )
    parser.add_argument(
        "--no-mirrors",
        action="store_true",
        help="the map of the scan alone, not the mean over its eight mirror images: faster, and "
        "as published",
    )
    parser.add_argument(
        "--montage", type=int, metavar="K", help="slices in the montage (default: 8)"
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
    parser.add_argument(
        "--slices",
        choices=("feet-first", "head-first"),
        help="how PNG or TIFF slices run, also beside other scans; without, no map as NIfTI",
    )
    parser.add_argument(
        "--no-resample",
        action="store_true",
        help="refuse DICOM slices at uneven distances, and keep those of a tilted gantry aslant",
    )
    parser.add_argument("--csv", metavar="FILE", help="write a table of all scans")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Classify all scans; return 0, or 1 if any of several failed."""
    check_least(args, montage=1)
    drawn = check_written(args, not args.no_overlays)
    if not drawn and (args.no_mirrors or args.montage is not None):
        raise ValueError(
            "--no-mirrors and --montage are for the map: give --out DIR, without --no-overlays"
        )
    out = None if args.out is None else check_folder(args.out)
    scans = _scans(args, out)
    if out is not None:
        check_apart(scans.values(), out)
    if args.model is None:
        raise ValueError(
            "no --model: this version ships no trained weights for CT; `vizoo fit` finds and "
            "trains a network (classification/covidnet3d_search_generated.yaml, then "
            "covidnet3d_retrain_generated.yaml); then --model FILE"
        )
    from ..classification.ct_infer import CTPredictor

    predictor = CTPredictor(args.model, args.device, args.dtype, args.runtime)
    check_class(args, predictor.classes)
    options = {
        "series": args.series,
        "resample": not args.no_resample,
        "method": args.method if drawn else None,
        "layer": args.layer,
        "explained": args.explained,
        "mirrors": not args.no_mirrors,
    }
    pictures = _of_pictures(args, scans)
    facts = {"model": args.model, "network": predictor.name}

    def work(name: str) -> dict:
        def save(result: CTResult, notes: list[str]) -> list[Path]:
            if out is None:
                return []
            montage = 8 if args.montage is None else args.montage
            return result.save(out, name, facts={**facts, "warnings": notes}, montage=montage)

        how = {**options, **pictures.get(name, {})}
        return {**infer_one(name, lambda: predictor(scans[name], **how), save), **facts}

    sources = {name: {"scan": scan} for name, scan in scans.items()}
    items = infer_items("scans", sources, work, None if args.json else _show, out=out)
    return end_classified(args, predictor, "scan", items, len(sources), ("slices", "slices_used"))


def _scans(args: argparse.Namespace, out: Path | None) -> dict[str, Path]:
    from ._scans import find_scans

    if args.series is None:
        return find_scans(args.scans, out)
    if len(args.scans) > 1:
        raise ValueError("--series names one series: give the one folder that holds it")
    folder = Path(args.scans[0])
    return {unique_names([folder], lambda path: path.name)[0]: folder}


def _of_pictures(args: argparse.Namespace, scans: dict[str, Path]) -> dict[str, dict]:
    """What is said of pictures, for each scan of such; for all where none is, to be refused."""
    from ._scans import of_pictures

    told = {"order": args.slices, "value_range": args.value_range and tuple(args.value_range)}
    if not any(told.values()):
        return {}
    return dict.fromkeys([name for name in scans if of_pictures(scans[name])] or scans, told)


def _show(item: dict) -> None:
    shares = sorted(item["probabilities"].items(), key=lambda share: -share[1])
    words = ", ".join(f"{name} {share:.3f}" for name, share in shares)
    used, depth = item["slices_used"], item["slices"]
    low, high = item["window"]
    print(f"{item['scan']}: {item['class']} ({words})")
    print(
        f"  {used} of {depth} slices, window {low:g} to {high:g}, {item['network']}, "
        f"{item['seconds']:.2f} s"
    )
    if "map" in item:
        where = item["map"]
        end = "from the feet" if item["ends_known"] else "from the first"
        highest = f"highest at slice {where['peak_slice']} of {depth}, {end}"
        print(f"  {where['method']}, {highest if where['peak_slice'] else '0 everywhere'}")
    home = {Path(file).parent for file in item["files"][:1]}
    lines = Counter(f if Path(f).parent in home else f"{Path(f).parent}/" for f in item["files"])
    for line, count in lines.items():
        print(f"  {line} ({count} slices)" if line.endswith("/") else f"  {line}")
