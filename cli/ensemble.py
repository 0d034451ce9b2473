"""`vizoo ensemble`: several classifiers of images as one, calibrated and weighted by validation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.progress import progress
from ._work import check_file, check_least

if TYPE_CHECKING:
    from ..classification.ensemble_file import EnsembleFile
    from ..datasets.mixture import LabelledSamples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "members",
        nargs="+",
        metavar="MODEL",
        help="a checkpoint of `vizoo fit` (of a classifier or a detector), a weight file, or a "
        "name of `vizoo models --pretrained`; one alone is calibrated",
    )
    parser.add_argument(
        "--data",
        metavar="CONFIG",
        required=True,
        help="a config of `vizoo fit`: its validation images fit, its test images, if any, measure",
    )
    parser.add_argument("--out", metavar="FILE", required=True, help="the ensemble, .json")
    parser.add_argument(
        "--method",
        default="mean",
        choices=("mean", "weighted", "vote", "stacking"),
        help="mean of the probabilities (default); weighted mean; vote; stacking: a logistic "
        "regression on all members",
    )
    parser.add_argument(
        "--tta", action="store_true", help="ask about each image and its three mirror images"
    )
    parser.add_argument("--no-calibration", action="store_true", help="leave the temperatures at 1")
    parser.add_argument("--batch", type=int, default=32, help="images at a time (default: 32)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Fit an ensemble, write it with a reliability diagram beside it, print its scores."""
    check_least(args, batch=1)
    out = Path(args.out)
    check_file(out, ".json", "an ensemble is")
    data = _data(args.data)

    from ..classification.calibration import reliability_picture
    from ..classification.ensemble_file import write_ensemble
    from ..classification.ensemble_fit import fit_ensemble
    from ..vision.io.images import write_image

    with progress() as bar:
        ensemble, judged = fit_ensemble(
            args.members,
            data["val"],
            data["test"],
            method=args.method,
            flips=args.tta,
            calibrate=not args.no_calibration,
            batch=args.batch,
            device=args.device,
            report=bar,
        )
    write_ensemble(out, ensemble)
    picture = out.with_name(f"{out.stem}_reliability.png")
    role = list(ensemble.report)[-1]
    write_image(picture, reliability_picture(*judged, f"{out.stem}, {role}"))
    if args.json:
        print(json.dumps(ensemble.report, indent=2))
    else:
        _show(ensemble)
        print(out, picture, sep="\n")
    return 0


def _data(config: str) -> dict[str, list[LabelledSamples]]:
    """The validation and test sets of a config."""
    from ..vision.configs.builtin import read_config
    from ..vision.configs.task import instantiate

    data = instantiate(config, read_config(config), ("data",)).data
    if not hasattr(data, "sets"):
        raise ValueError(f"{config}: {type(data).__name__} has no sets of images")
    images = {role: list(data.sets(role)) for role in ("val", "test")}
    if not images["val"]:
        raise ValueError(f"{config}: no validation images: give `val` or `val_share`")
    for dataset in (each for sets in images.values() for each in sets):
        if not hasattr(dataset, "with_preset"):
            raise ValueError(f"{config}: {type(dataset).__name__} holds no images with classes")
    return images


def _show(ensemble: EnsembleFile) -> None:
    sources = [member.source for member in ensemble.members]
    width = max(map(len, (*sources, "ensemble")))
    weights = ensemble.combination.weights or [None] * len(sources)
    for role, scores in ensemble.report.items():
        print(f"{role}, {scores['samples']} images")
        for member, row, weight in zip(ensemble.members, scores["members"], weights, strict=True):
            extra = f"  temperature {member.temperature:.2f}"
            extra += "" if weight is None else f"  weight {weight:.3f}"
            if "answered" in row:
                extra += f"  answers {row['answered']:.1%}"
            print(f"  {member.source:<{width}}  {_line(row)}{extra}")
        print(f"  {'ensemble':<{width}}  {_line(scores['ensemble'])}")
        print(f"  {'oracle':<{width}}  accuracy {scores['oracle']:.3f}")


def _line(scores: dict[str, float]) -> str:
    if "accuracy" not in scores:
        return "no answer"
    return (
        f"accuracy {scores['accuracy']:.3f}  cross-entropy {scores['loss']:.3f}  "
        f"ECE {scores['ece']:.3f}"
    )
