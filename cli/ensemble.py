"""`vizoo ensemble`: several classifiers of images as one, calibrated and weighted by validation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..common.extras import from_extra
from ..common.progress import progress

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import Dataset

    from ..classification.members import ImageMember
    from ..datasets.mixture import LabelledSamples

_METHODS = ("mean", "weighted", "vote", "stacking")


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
        choices=_METHODS,
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
    if args.batch < 1:
        raise ValueError(f"--batch {args.batch}: must be at least 1")
    out = Path(args.out)
    if out.suffix.lower() != ".json":
        raise ValueError(f"--out {out}: an ensemble is written as .json; choose such a name")
    # Said before the members are asked, which takes minutes.
    if args.method == "weighted" or not args.no_calibration:
        from_extra("scipy", "scipy.optimize", "vizoo ensemble")
    data = _data(args.data)

    import torch

    from ..classification.calibration import fit_temperature, reliability_picture
    from ..classification.ensemble import align, check_classes, fit_combination, report_on
    from ..classification.ensemble_file import EnsembleFile, ListedMember, write_ensemble
    from ..classification.members import ImageMember
    from ..vision.io.images import write_image

    members = [ImageMember(source, device=args.device) for source in args.members]
    classes = members[0].classes
    for source, member in zip(args.members, members, strict=True):
        check_classes(member.classes, classes, source)
    outputs: dict[str, list[Tensor]] = {role: [] for role in data if data[role]}
    labels = {role: _labels(data[role], classes, args.data) for role in outputs}
    with progress() as bar:
        for source, member in zip(args.members, members, strict=True):
            for role, found in outputs.items():
                logs = _ask(member, data[role], f"{Path(source).name}, {role}", bar, args)
                found.append(align(logs, member.classes, classes))
    temperatures = [1.0] * len(members)
    if not args.no_calibration:
        temperatures = [
            fit_temperature(*_answered(logs, labels["val"], source))
            for logs, source in zip(outputs["val"], args.members, strict=True)
        ]
    calibrated = {
        role: torch.stack(
            [(each / t).log_softmax(1) for each, t in zip(found, temperatures, strict=True)]
        )
        for role, found in outputs.items()
    }
    combination = fit_combination(args.method, calibrated["val"], labels["val"])
    report: dict[str, Any] = {}
    for role, logs in calibrated.items():
        report[role] = report_on(logs, labels[role], combination)
        probabilities = combination(logs)
    listed = tuple(map(ListedMember, args.members, temperatures))
    write_ensemble(out, EnsembleFile(classes, listed, combination, args.tta, report))
    picture = out.with_name(f"{out.stem}_reliability.png")
    write_image(picture, reliability_picture(probabilities, labels[role], f"{out.stem}, {role}"))
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _show(args.members, temperatures, combination.weights, report)
        print(out, picture, sep="\n")
    return 0


def _data(config: str) -> dict[str, list[LabelledSamples]]:
    """The validation and test sets of a config."""
    import yaml

    from ..vision.configs.builtin import resolve_config
    from ..vision.configs.parts import instantiate

    content = yaml.safe_load(Path(resolve_config(config)).read_text(encoding="utf-8"))
    data = instantiate(config, content, ("data",)).data
    if not hasattr(data, "sets"):
        raise ValueError(f"{config}: {type(data).__name__} has no sets of images")
    found = {role: list(data.sets(role)) for role in ("val", "test")}
    if not found["val"]:
        raise ValueError(f"{config}: no validation images: give `val` or `val_share`")
    for dataset in (each for sets in found.values() for each in sets):
        if not hasattr(dataset, "with_preset"):
            raise ValueError(f"{config}: {type(dataset).__name__} holds no images with classes")
    return found


def _labels(sets: list[LabelledSamples], classes: Sequence[str], config: str) -> Tensor:
    """The class of every image, by the members' order."""
    import torch

    from ..classification.ensemble import check_classes

    labels = []
    for dataset in sets:
        check_classes(dataset.classes, classes, config)
        labels += [classes.index(dataset.classes[label]) for label in dataset.labels]
    return torch.tensor(labels)


def _ask(
    member: ImageMember, sets: list[LabelledSamples], what: str, bar: Any, args: argparse.Namespace
) -> Tensor:
    """Log-probabilities of all images, prepared as the member wants them."""
    import torch
    from torch.utils.data import ConcatDataset, DataLoader

    from ..datasets.images.datamodule import collate_images

    prepared = [dataset.with_preset(member.preset) for dataset in sets]
    whole: ConcatDataset = ConcatDataset(cast("list[Dataset]", prepared))
    loader = DataLoader(whole, args.batch, collate_fn=collate_images)
    found, done = [], 0
    for batch in loader:
        found.append(member(batch["image"], args.tta))
        done += len(batch["image"])
        bar(what, done, len(whole))
    return torch.cat(found)


def _answered(logs: Tensor, labels: Tensor, source: str) -> tuple[Tensor, Tensor]:
    there = ~logs.isnan().any(1)
    if not there.any():
        raise ValueError(f"{source} finds no box in any validation image: train it for longer")
    return logs[there], labels[there]


def _show(
    sources: list[str], temperatures: list[float], weights: Sequence[float], report: dict[str, Any]
) -> None:
    width = max(map(len, (*sources, "ensemble")))
    for role, found in report.items():
        print(f"{role}, {found['samples']} images")
        rows = zip(sources, found["members"], strict=True)
        for place, (source, scores) in enumerate(rows):
            extra = f"  temperature {temperatures[place]:.2f}"
            extra += f"  weight {weights[place]:.3f}" if weights else ""
            if "answered" in scores:
                extra += f"  answers {scores['answered']:.1%}"
            print(f"  {source:<{width}}  {_line(scores)}{extra}")
        print(f"  {'ensemble':<{width}}  {_line(found['ensemble'])}")
        print(f"  {'oracle':<{width}}  accuracy {found['oracle']:.3f}")


def _line(scores: dict[str, float]) -> str:
    if "accuracy" not in scores:
        return "no answer"
    return (
        f"accuracy {scores['accuracy']:.3f}  cross-entropy {scores['loss']:.3f}  "
        f"ECE {scores['ece']:.3f}"
    )
