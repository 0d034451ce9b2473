"""What `vizoo infer ct` and `vizoo infer image` share beyond the other `infer` commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..classification import NOTICE
from ._items import end_run

if TYPE_CHECKING:
    from ..classification.ct_infer import CTPredictor
    from ..classification.image_infer import ImagePredictor

__all__ = ["add_class", "check_class", "check_map", "end_classified"]


def add_class(parser: argparse.ArgumentParser) -> None:
    """Add --class."""
    parser.add_argument(
        "--class",
        dest="explained",
        metavar="NAME",
        help="the class that the map is for (default: the most probable one)",
    )


def check_map(args: argparse.Namespace, overlays: bool) -> bool:
    """Whether maps are drawn.

    Raises:
        ValueError: they are not, and an option is for them.
    """
    drawn = overlays and args.out is not None
    if not drawn and (args.layer or args.explained or args.method != "auto"):
        raise ValueError(
            "--method, --layer and --class are for the map: give --out DIR, without --no-overlays"
        )
    return drawn


def check_class(args: argparse.Namespace, classes: Sequence[str]) -> None:
    """Raise a ValueError where --class is none of the network's."""
    if args.explained is not None and args.explained not in classes:
        raise ValueError(f"--class {args.explained}: none of {', '.join(classes)}")


def end_classified(
    args: argparse.Namespace,
    predictor: CTPredictor | ImagePredictor,
    what: str,
    items: list[dict[str, Any]],
    out: Path | None,
    counts: Sequence[str] = (),
) -> int:
    """Write the table of --csv, then as `end_run`; `counts` are further columns of the table."""
    from ..common.summaries import run_summary

    if args.csv is not None:
        from ..classification.reports import write_results

        write_results(args.csv, what, predictor.classes, items, predictor.name, counts)
    facts = {"network": predictor.name, "notice": NOTICE}
    status = end_run(run_summary(predictor, args.model, f"{what}s", items, **facts), out, args.json)
    if not args.json:
        print(*([args.csv] if args.csv else []), NOTICE, sep="\n")
    return status
