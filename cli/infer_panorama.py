"""`vizoo infer panorama`: depth, a point cloud and a surface of panoramas."""

from __future__ import annotations

import argparse

from ..panorama import DEFAULT_MODEL
from ._items import add_model, add_run_arguments, end_run, infer_items, infer_one
from ._work import check_apart, check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="equirectangular image of the whole sphere, folder or quoted glob",
    )
    add_model(parser, DEFAULT_MODEL)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the results")
    parser.add_argument(
        "--format",
        nargs="+",
        choices=("png", "npy", "exr", "pfm"),
        help="of the depth (default: all)",
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
    add_run_arguments(parser, runtime=False)


def run(args: argparse.Namespace) -> int:
    """Infer all panoramas; return 0, or 1 if any of several failed."""
    from ._pairs import find_images

    if args.max_ratio and not args.max_ratio >= 1:
        raise ValueError(f"--max-ratio {args.max_ratio:g}: must be at least 1, or 0 for no cut")
    images = find_images(args.images)
    out = check_folder(args.out)
    check_apart(images.values(), out)
    from ..common.summaries import run_summary
    from ..panorama.infer import PanoramaPredictor

    predictor = PanoramaPredictor(args.model, device=args.device, dtype=args.dtype)
    options = {"formats": args.format, "max_ratio": args.max_ratio or None}

    def work(name: str) -> dict:
        return infer_one(
            name,
            lambda: predictor(images[name], args.read_back),
            lambda result, _: result.save(out, name, **options),
        )

    sources = {name: {"image": image} for name, image in images.items()}
    items = infer_items("panoramas", sources, work, None if args.json else _show, out=out)
    summary = run_summary(predictor, args.model, "panoramas", items)
    return end_run(summary, out, args.json, len(sources))


def _show(item: dict) -> None:
    low, middle, high = (item["depth"][name] for name in ("min", "median", "max"))
    height, width = item["size"]
    print(
        f"{item['image']}: depth {low:.2f} to {high:.2f} m, median {middle:.2f} m "
        f"({height}x{width}, {item['seconds']:.2f} s)"
    )
    for file in item["files"]:
        print(f"  {file}")
