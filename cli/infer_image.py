"""`vizoo infer image`: classes of images, and where the networks looked."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..classification import NOTICE
from ..common.warned import collect_warnings
from ._items import (
    add_map,
    add_model,
    add_run_arguments,
    check_class,
    check_written,
    end_classified,
    infer_items,
)
from ._work import check_apart, check_folder, check_least, warn

if TYPE_CHECKING:
    from ..classification.image_infer import ImagePredictor, ImageResult, PreparedImage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description = f"{parser.description}\n{NOTICE}"
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image, folder, folder of a folder for each class, or quoted glob of images or of "
        "folders; with the folder of the classes' folders, or several of these, it says how many "
        "images are right",
    )
    add_model(parser, told=", or an ensemble of `vizoo ensemble` (.json)")
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
    add_map(
        parser,
        ("auto", "cam", "grad-cam"),
        "cam; grad-cam; auto: cam where it holds and is not too coarse, else grad-cam (default)",
        "body.layer3 (default: chosen)",
    )
    parser.add_argument("--batch", type=int, default=16, help="images at a time (default: 16)")
    parser.add_argument("--csv", metavar="FILE", help="write a table of all images")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Classify all images; return 0, or 1 if any of several failed."""
    from ._pairs import find_sorted

    check_least(args, top=1, batch=1)
    drawn = check_written(args, args.overlays)
    images, sorted_into = find_sorted(args.images)
    out = None if args.out is None else check_folder(args.out)
    if out is not None:
        check_apart(images.values(), out)
    if args.model is None:
        raise ValueError(
            "no --model: this version ships no trained weights for images; `vizoo fit --config "
            "classification/skin_generated.yaml` trains a network; then --model FILE"
        )
    from ..classification.image_infer import ImagePredictor
    from ..common.summaries import item_summary

    predictor = ImagePredictor(args.model, args.device, args.dtype, args.tta or None, args.runtime)
    check_class(args, predictor.classes)
    facts = {"model": args.model, "network": predictor.name}
    truth = {name: folder for name, folder in sorted_into.items() if folder in predictor.classes}
    _say_left_out(truth, sorted_into)
    method = args.method if drawn else None

    def finish(prepared: dict[str, PreparedImage]) -> list[dict[str, Any]]:
        nonlocal method
        started = time.perf_counter()
        results, method = _classify(predictor, list(prepared.values()), method, args)
        seconds = (time.perf_counter() - started) / len(prepared)
        items = []
        for name, result in zip(prepared, results, strict=True):
            silent = "no box above the threshold: the class says nothing"
            notes = [] if result.answered else [silent]
            with collect_warnings() as said:
                files = [] if out is None else result.save(out, name, {**facts, "warnings": notes})
            told = {**result.summary(), **facts}
            told |= {"truth": truth[name]} if name in truth else {}
            items.append(item_summary(name, told, seconds, files, notes + said))
        return items

    sources = {name: {"image": image} for name, image in images.items()}
    items = infer_items(
        "images",
        sources,
        lambda name: predictor.prepare(images[name]),
        None if args.json else partial(_show, args.top),
        out=out,
        finish=finish,
        batch=args.batch,
    )
    return end_classified(args, predictor, "image", items, len(sources), **_scores(items))


def _say_left_out(truth: Mapping[str, str], sorted_into: Mapping[str, str]) -> None:
    left = [folder for name, folder in sorted_into.items() if name not in truth]
    if truth and left:
        folders = sorted(set(left))
        images = f"{len(left)} images do" if len(left) > 1 else "1 image does"
        no_class = "are no classes" if len(folders) > 1 else "is no class"
        warn(f"{images} not count in the accuracy: {', '.join(folders)} {no_class}")


def _scores(items: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of the images whose class is known by their folder are right, if any."""
    known = [item for item in items if "truth" in item and "class" in item]
    if not known:
        return {}
    answered = (item for item in known if any(item.get("members", [True])))
    right = Counter(item["truth"] for item in answered if item["class"] == item["truth"])
    count = Counter(item["truth"] for item in known)
    return {
        "labelled": len(known),
        "accuracy": right.total() / len(known),
        "accuracy_of": {name: right[name] / count[name] for name in sorted(count)},
    }


def _classify(
    predictor: ImagePredictor, images: list, method: str | None, args: argparse.Namespace
) -> tuple[list[ImageResult], str | None]:
    """Results, and the method for what is left: none where the networks have no maps."""
    options = {"method": method, "layer": args.layer, "explained": args.explained}
    try:
        return predictor.many(images, **options), method
    except ValueError as error:
        if args.method != "auto" or args.layer:  # asked for, so that it may not be left out
            raise
        results = predictor.many(images)  # raises again where it was not about maps
        warn(str(error))
        return results, None


def _show(top: int, item: dict[str, Any]) -> None:
    shares = list(item["probabilities"].items())[:top]
    words = ", ".join(f"{name} {share:.3f}" for name, share in shares)
    print(f"{item['image']}: {item['class']} ({words})")
    if "map" in item:
        print(f"  {item['map']['method']}")
    for file in item["files"]:
        print(f"  {file}")
