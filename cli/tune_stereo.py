"""`vizoo tune stereo`: weights tuned on pairs of one's own, without true disparities."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..stereo import DEFAULT_MODEL
from ._items import add_pairs
from ._work import check_file, check_least, warn

if TYPE_CHECKING:
    from ..stereo.tuning import TuningReport

_PASSED = ("minutes", "steps", "lr", "most_pairs", "seed", "device")


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
        help="JSON of measures before and after (default: beside --out, FILE.json, or "
        "FILE.refused.json where no weights are written)",
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

    check_least(args, steps=1, most_pairs=1, seed=0)
    _check_files(args)
    pairs = asked_pairs(args, "vizoo tune stereo")

    from ..common.files import write_json
    from ..common.progress import progress
    from ..stereo.tuning import tune

    if args.out.exists():
        warn(f"{args.out}: is replaced if better weights are found; --from it would go on from it")
    chosen = {name: getattr(args, name) for name in _PASSED}
    images = [(pair.left, pair.right) for pair in pairs]
    try:
        with progress() as tell:
            tuned = tune(args.base, images, report=tell, skip=_say_skipped, **chosen)
    except KeyboardInterrupt:
        warn(
            f"{args.out}: not written: nothing better was found yet; started again, it starts anew"
        )
        raise
    if tuned.improved:
        tuned.save(args.out)
    # What stands beside older weights is about them.
    report = args.report or args.out.with_suffix(".json" if tuned.improved else ".refused.json")
    write_json(report, tuned.to_json())
    print(json.dumps(tuned.to_json(), indent=2) if args.json else _lines(args, tuned, report))
    if tuned.stopped:
        warn(f"{tuned.stopped}: these are the weights of the best check; --from {args.out} goes on")
    if not tuned.improved:
        warn(f"{args.out}: not written: {tuned.verdict}")
    return 130 if tuned.stopped == "interrupted" else int(not tuned.improved)


def _say_skipped(name: str, reason: str) -> None:
    warn(f"skipped: {reason if name in reason else f'{name}: {reason}'}")


def _check_files(args: argparse.Namespace) -> None:
    for option, suffix in (("out", ".safetensors"), ("report", ".json")):
        path = getattr(args, option)
        if path is None:
            continue
        if path.suffix.lower() != suffix:
            raise ValueError(f"--{option} {path}: choose a name that ends in {suffix}")
        check_file(path, option=f"--{option}")
    if Path(args.base).resolve() == args.out.resolve():
        raise ValueError(f"--out {args.out}: would overwrite the weights to tune; name another")


def _lines(args: argparse.Namespace, tuned: TuningReport, report: Path) -> str:
    held = f"{tuned.held_out} held out" if tuned.held_out else "a quarter of it held out"
    lines = [
        f"{args.base}: {tuned.pairs} pair{'s' * (tuned.pairs > 1)} learned from, {held}; "
        f"{100 * tuned.labelled:.0f} % of the pixels had a disparity to learn; "
        f"{tuned.steps} steps, {tuned.seconds:.0f} s",
        f"{'':34} before    after     gain ± standard error",
    ]
    rows = {
        "held-out pairs disagree by": ("disagreement", "gain"),
        "error on generated scenes": ("generated_epe", "generated_gain"),
    }
    for title, (name, gain) in rows.items():
        values = (
            tuned.before[name],
            tuned.after[name],
            tuned.after[gain],
            tuned.after[f"{gain}_error"],
        )
        lines.append("  {:30} {:8.3f} {:8.3f} {:8.3f} ± {:.3f} px".format(title, *values))
    if tuned.improved:
        use = f"--model {shlex.quote(str(args.out))} --guided --out DIR"
        lines += [str(args.out), f"  vizoo infer stereo LEFT RIGHT {use}"]
    return "\n".join([*lines, str(report)])
