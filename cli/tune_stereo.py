"""`vizoo tune stereo`: weights tuned on pairs of one's own, without true disparities."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..stereo import DEFAULT_MODEL
from ._items import add_pairs
from ._work import check_folder, check_least, say_warnings, warn

if TYPE_CHECKING:
    from ..stereo.tuning import TuningReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_pairs(parser)
    parser.add_argument(
        "--from",
        dest="base",
        metavar="NAME|FILE",
        default=DEFAULT_MODEL,
        help="weights to tune: NAME or NAME.TAG of `vizoo models --pretrained`, hf-hub:ORG/NAME, "
        f"or a weight file (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="tuned weights (.safetensors); written only where they are an improvement",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="JSON of measures before and after (default: beside --out)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="M",
        help="of training; reading and checking come on top (default: 10)",
    )
    length.add_argument("--steps", type=int, metavar="N", help="of training, instead of minutes")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate (default: 1e-4)")
    parser.add_argument(
        "--most-pairs",
        type=int,
        default=40,
        metavar="N",
        help="of more pairs so many are taken, evenly (default: 40)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of crops and scenes (default: 0)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Tune and write what is better; return 0, or 1 where nothing is."""
    from ._pairs import asked_pairs

    check_least(args, steps=1, most_pairs=1)
    report = args.out.with_suffix(".json") if args.report is None else args.report
    _check_files(args, report)
    with say_warnings():
        pairs = asked_pairs(args, "vizoo tune stereo")

    from ..common.files import write_json
    from ..common.progress import progress
    from ..stereo.tuning import tune

    chosen = {name: getattr(args, name) for name in ("minutes", "steps", "lr", "seed", "device")}
    images = [(pair.left, pair.right) for pair in pairs]
    with progress() as tell:
        tuned = tune(args.base, images, most_pairs=args.most_pairs, report=tell, **chosen)
    for name, reason in tuned.skipped.items():
        warn(f"skipped: {reason if name in reason else f'{name}: {reason}'}")
    if tuned.improved:
        tuned.save(args.out)
    write_json(report, tuned.to_json())
    print(json.dumps(tuned.to_json(), indent=2) if args.json else _lines(args, tuned, report))
    if not tuned.improved:
        warn(f"{args.out}: not written: {tuned.verdict}")
    return int(not tuned.improved)


def _check_files(args: argparse.Namespace, report: Path) -> None:
    for option, path, suffix in (("out", args.out, ".safetensors"), ("report", report, ".json")):
        if path.suffix != suffix:
            raise ValueError(f"--{option} {path}: choose a name that ends in {suffix}")
        if path.is_dir():
            raise ValueError(f"--{option} {path}: a folder of that name is there")
        check_folder(str(path.parent))
    if Path(args.base).resolve() == args.out.resolve():
        raise ValueError(f"--out {args.out}: would overwrite the weights to tune; name another")


def _lines(args: argparse.Namespace, tuned: TuningReport, report: Path) -> str:
    held = f"{tuned.held_out} held out" if tuned.held_out else "a quarter of it held out"
    lines = [
        f"{args.base}: {tuned.pairs} pair{'s' * (tuned.pairs > 1)} learned from, {held}; "
        f"{100 * tuned.labelled:.0f} % of the pixels had a disparity to learn; "
        f"{tuned.steps} steps, {tuned.seconds:.0f} s",
        f"{'':34} before    after",
    ]
    rows = {
        "held-out pixels that agree": ("agreement", 100, "%"),
        "held-out pixels that match": ("matched", 100, "%"),
        "error on generated scenes": ("generated_epe", 1, "px"),
    }
    for title, (name, factor, unit) in rows.items():
        values = (f"{factor * found[name]:.2f}" for found in (tuned.before, tuned.after))
        lines.append("  {:30} {:>8} {:>8} {}".format(title, *values, unit))
    return "\n".join([*lines, *([str(args.out)] if tuned.improved else []), str(report)])
