"""`vizoo compare`: networks made by hand against searched ones, by one recipe and several seeds."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..common.interrupts import ended_by_sigterm, raised_interrupts
from ..common.progress import progress

if TYPE_CHECKING:
    from ..classification.comparison.compare import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--config", metavar="CONFIG", required=True, help="what is compared: a file or a name"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="gets results.csv, report.html, comparison.json and the runs, from which it goes on",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's own choice)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Compare and print; 1 where some runs failed."""
    from ._work import check_folder, check_least

    check_least(args, threads=1)
    out = check_folder(args.out)

    import torch
    from rich.console import Console

    from ..classification.comparison.compare import compare

    shows = Console(stderr=True).is_interactive
    if args.threads:
        torch.set_num_threads(args.threads)
    with ended_by_sigterm(), raised_interrupts(), progress() as report:

        def tell(what: str, done: int, total: int) -> None:
            if what and not shows:  # a line now, since the next call may be hours away
                print(f"vizoo: runs: {done} of {total}, {what}", file=sys.stderr)
            else:
                report("runs", done, total, what)

        made = compare(args.config, out, report=tell)
    print(json.dumps(made.to_json(), indent=2) if args.json else _lines(made))
    return int(bool(made.failed))


def _lines(made: Comparison) -> str:
    width = max(len(row["row"]) for row in made.rows)
    head = f"{'':<{width}}  top 1 [%]        params [k]  MMAC   ms     search  training [CPU min]"
    lines = [f"{made.out / 'report.html'}: {len(made.rows)} rows", head]
    lines += [_line(row, width) for row in made.rows]
    beyond = sum(bool(pair["beyond"]) for pair in made.differences)
    lines.append(f"{beyond} of {len(made.differences)} differences are beyond the scatter of seeds")
    return "\n".join(lines + [f"failed: {name}: {why}" for name, why in made.failed.items()])


def _line(row: dict[str, Any], width: int) -> str:
    spread = "" if row["top1_std"] is None else f"± {row['top1_std']:.1f}"
    return (
        f"{row['row']:<{width}}  {row['top1']:5.1f} {spread:<8} {row['parameters'] / 1e3:11.0f} "
        f"{row['macs'] / 1e6:6.2f} {row['latency']:6.2f} {row['search_minutes']:7.2f} "
        f"{row['train_minutes']:9.2f}"
    )
