"""`vizoo latency build`: measure subnets of a supernet on this machine, as a table for others."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ._supernets import add_conditions, set_up
from ._work import check_file, check_least, seconds
from .latency_show import lines, summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        required=True,
        help="a supernet; weights matter to int8 alone",
    )
    add_conditions(parser, defaults=True)
    parser.add_argument(
        "--samples", type=int, default=120, help="subnets that predictors learn from (default 120)"
    )
    parser.add_argument(
        "--held-out", type=int, default=20, help="more subnets to find their error (default 20)"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=1.0, help="for each subnet, at least (default 1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice of subnets (default 0)")
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="the table (JSON); one begun here is gone on"
    )
    parser.add_argument("--force", action="store_true", help="begin anew, whatever FILE holds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Measure, write and show the table."""
    check_least(args, samples=8, held_out=2)
    out = Path(args.out)
    check_file(out, ".json", "a table is")

    from ..common.progress import progress_bar
    from ..nas.efficiency.table import LatencyTable
    from ..vision.subnets.bench import begun, load_supernet

    net, space, trained = load_supernet(args.model, download=args.dtype == "int8")
    bench = set_up(args, net, space, name=args.model, trained=trained)
    table = bench.table() if args.force else begun(bench, out)
    if table is None:
        table = LatencyTable.load(out)
        differs = table.conditions.difference(bench.conditions)
        what = differs or f"it is of {table.model.get('name')} with other choices or arguments"
        raise ValueError(f"{out} holds another table ({what}); --force replaces it")
    start = time.perf_counter()
    with progress_bar("subnets") as tell:
        table = bench.complete(
            table,
            path=out,
            report=tell,
            samples=args.samples,
            held_out=args.held_out,
            seed=args.seed,
            seconds=args.seconds,
        )
    report = {"file": str(out), "seconds": round(time.perf_counter() - start, 1), **summary(table)}
    print(json.dumps(report, indent=2) if args.json else "\n".join((f"{out}:", *lines(report))))
    return 0
