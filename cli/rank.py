"""`vizoo rank`: subnets by what they reach with inherited weights, each judged by its leaf.

Where a benchmark knows what networks reach when trained alone, the ranking is compared with that,
and so is the number of parameters: a supernet that does not beat it has learnt little.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from typing import TYPE_CHECKING, Any

from ..common.interrupts import ended_by_sigterm, raised_interrupts
from ..common.progress import progress_bar
from ._evaluations import add_evaluation, evaluator, load_leaves, mode_of, open_evaluations
from ._tables import comparisons, ranking_lines, write_table
from ._work import check_folder, check_least, refuse

if TYPE_CHECKING:
    from ..nas.space import Architecture, SearchSpace
    from ..nas.tabular import Tabular
    from ..vision.subnets.evaluations import Evaluations
    from ..vision.subnets.ranking import Ranked

_SAMPLES = 200
_SAVE_EVERY = 10.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_evaluation(parser)
    parser.add_argument(
        "--architectures", metavar="FILE", help="JSON list of what to rank (default: a sample)"
    )
    parser.add_argument(
        "--samples", type=int, help=f"subnets drawn; 0 for all (default {_SAMPLES})"
    )
    parser.add_argument(
        "--benchmark",
        choices=("nasbench201", "mbnet"),
        help="the space of --truth, whose best 1 %% are ranked beside a sample",
    )
    parser.add_argument(
        "--truth", metavar="FILE", help="accuracies of networks trained alone, .npz"
    )
    parser.add_argument("--column", help="of the truth (default cifar10_test)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 … (default cpu)")
    parser.add_argument("--seed", type=int, help="of the sample (default 0)")
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="gets rank.csv, rank.json, evaluations.json"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Evaluate, rank, compare and write."""
    check_least(args, samples=0, batches=0, val_batches=0)
    if (args.truth is None) != (args.benchmark is None):
        raise ValueError("--truth and --benchmark go together: a file and what it is of")
    if args.truth is None:
        refuse(args, ["column"], "is of the truth: leave it out without --truth")
    if args.architectures is not None:
        refuse(args, ["samples", "seed"], "is of a sample: leave it out with --architectures")
    out = check_folder(args.out)

    from ..common.devices import choose_device
    from ..common.files import write_json
    from ..vision.subnets.ranking import rank

    start = time.perf_counter()
    device = choose_device(args.device)
    leaves, net, space = load_leaves(args)
    column = args.column or "cifar10_test"
    table = _table(args, space, column)
    groups = _chosen(args, space, table, column)
    evaluate = evaluator(args, leaves, device)
    evaluations, kept_at = open_evaluations(args, leaves, space)
    net.to(device)
    chosen = [item for group in groups.values() for item in group]
    due = start

    def keep(known: Evaluations) -> None:
        nonlocal due
        if time.perf_counter() >= due:  # all are written each time, of which there may be thousands
            known.save(kept_at)
            due = time.perf_counter() + _SAVE_EVERY

    try:
        with ended_by_sigterm(), raised_interrupts(), progress_bar("evaluating subnets") as tell:
            ranking = rank(
                leaves, evaluate, chosen, evaluations=evaluations, keep=keep, report=tell
            )
    finally:
        if evaluations.errors:
            evaluations.save(kept_at)
    rows = _rows(ranking, table, column, args)
    write_table(out / "rank.csv", rows, space.names)
    report = {
        "out": str(out),
        "seconds": round(time.perf_counter() - start, 1),
        "metric": args.metric,
        "mode": mode_of(args),
        "evaluated": len(ranking),
        "best": {"architecture": rows[0]["architecture"], args.metric: rows[0][args.metric]},
        "not_finite": [row["architecture"] for row in rows if row[args.metric] is None],
        "truth": None if table is None else {"benchmark": args.benchmark, "column": column},
        "comparisons": comparisons(groups, ranking, table, column),
    }
    write_json(out / "rank.json", report)
    print(json.dumps(report, indent=2) if args.json else ranking_lines(report))
    return 0


def _table(args: argparse.Namespace, space: SearchSpace, column: str) -> Tabular | None:
    from ..nas import tabular

    if args.truth is None:
        return None
    table = getattr(tabular, args.benchmark)(args.truth)
    if not table.space.holds(space):
        raise ValueError(f"--benchmark {args.benchmark}: its networks are not of this supernet")
    if column not in table.columns:
        raise ValueError(f"--column {column}: {args.truth} has {', '.join(table.columns)}")
    return table


def _chosen(
    args: argparse.Namespace, space: SearchSpace, table: Tabular | None, column: str
) -> dict[str, list[Architecture]]:
    """What to rank, by what it is called: given, a sample or all; and the truth's best."""
    if args.architectures is not None:
        return {"given": _given(args.architectures, space)}
    count = space.count()
    samples = _SAMPLES if args.samples is None else args.samples
    if samples == 0 or samples >= count:
        if count > 100_000:
            raise ValueError(f"--samples {samples}: the space has {count:.3g} subnets")
        chosen = {"all": list(space.enumerate())}
    else:
        rng = random.Random(args.seed or 0)
        drawn: dict[Architecture, None] = {}
        while len(drawn) < samples:
            drawn[space.sample(rng)] = None
        chosen = {f"{samples} drawn": list(drawn)}
    if table is not None:
        values = table.columns[column]
        best = sorted(filter(space.__contains__, table.rows), key=lambda a: -values[table.rows[a]])
        chosen["true best 1 %"] = best[: max(2, len(best) // 100)]
    return chosen


def _given(path: str, space: SearchSpace) -> list[Architecture]:
    from ..common.files import read_json
    from ..nas.space import Architecture

    content = read_json(path, "architectures")
    listed = isinstance(content, list) and all(isinstance(item, dict) for item in content)
    if not listed or len(content) < 2:
        raise ValueError(f"{path}: wanted a JSON list of two architectures or more")
    try:
        read = (Architecture.from_json(c) if "choices" in c else c for c in content)
        return list(dict.fromkeys(map(space.validate, read)))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _rows(
    ranking: list[Ranked], table: Tabular | None, column: str, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Best first; last those whose metric is None, since it was not finite."""
    sign, rows = -1 if mode_of(args) == "max" else 1, []
    for place, ranked in enumerate(ranking, start=1):
        row: dict[str, Any] = {
            "rank": place,
            args.metric: sign * ranked.error if math.isfinite(ranked.error) else None,
            "leaf": ranked.leaf,
            "parameters": ranked.parameters,
        }
        if table is not None:
            row[column] = table.look_up(ranked.architecture, column)
        rows.append({**row, "architecture": ranked.architecture.to_json()})
    if rows[0][args.metric] is None:
        raise ValueError(f"--metric {args.metric}: not finite for any of {len(rows)} subnets")
    return rows
