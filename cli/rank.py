"""`vizoo rank`: subnets by what they reach with inherited weights, each judged by its leaf.

Batch norms are estimated anew for each. Where a benchmark knows what networks reach when trained
alone, the ranking is compared with that, and so is the number of parameters: a supernet that does
not beat it has learnt little. All evaluations are kept, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.progress import progress_bar
from ._evaluations import add_evaluation, evaluator, mode_of, open_evaluations
from ._leaves import add_source, load_leaves

if TYPE_CHECKING:
    from ..nas.space import Architecture, SearchSpace
    from ..nas.tabular import Tabular

__all__ = ["add_arguments", "run"]

_BENCHMARKS = ("nasbench201", "mbnet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_source(parser)
    add_evaluation(parser)
    parser.add_argument(
        "--architectures", metavar="FILE", help="JSON list of what to rank (default: a sample)"
    )
    parser.add_argument(
        "--samples", type=int, default=200, help="subnets drawn; 0 for all (default 200)"
    )
    parser.add_argument(
        "--benchmark",
        choices=_BENCHMARKS,
        help="the space of --truth, whose best 1 %% are ranked as well",
    )
    parser.add_argument(
        "--truth", metavar="FILE", help="accuracies of networks trained alone, .npz"
    )
    parser.add_argument(
        "--column", default="cifar10_test", help="of the truth (default cifar10_test)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 … (default cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="gets rank.csv, rank.json, evaluations.json"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Evaluate, rank, compare and write.

    Raises:
        ValueError: no trained supernet or tree, a bad option, or a benchmark of another space.
        FileNotFoundError: no such file.
    """
    _check(args)

    from ..common.devices import choose_device
    from ..common.files import write_json

    start = time.perf_counter()
    device = choose_device(args.device)
    leaves, net, space = load_leaves(args)
    table = _table(args, space)
    groups = _chosen(args, space, table)
    evaluate = evaluator(args, leaves, device)
    evaluations, kept_at = open_evaluations(args, leaves, space)
    net.to(device)
    every = list(dict.fromkeys(item for group in groups.values() for item in group))
    with progress_bar("evaluating subnets") as tell:
        # Leaf by leaf, so that each is read once.
        by_leaf = sorted(every, key=leaves.tree.leaf_of)
        for done, architecture in enumerate(by_leaf, start=1):
            if architecture not in evaluations.errors:
                evaluations.errors[architecture] = evaluate(architecture)
                evaluations.save(kept_at)
            tell(done, len(by_leaf))
    errors = {a: evaluations.errors[a] for a in every}
    parameters = _parameters(net, every)
    rows = _rows(errors, parameters, leaves.tree, table, args)
    out = Path(args.out)
    _write_csv(out / "rank.csv", rows, space)
    report = {
        "out": str(out),
        "seconds": round(time.perf_counter() - start, 1),
        "metric": args.metric,
        "mode": mode_of(args),
        "evaluated": len(every),
        "best": {"architecture": rows[0]["architecture"], args.metric: rows[0][args.metric]},
        "not_finite": [row["architecture"] for row in rows if row[args.metric] is None],
        "truth": None if table is None else {"benchmark": args.benchmark, "column": args.column},
        "comparisons": _comparisons(groups, errors, parameters, table, args.column),
    }
    write_json(out / "rank.json", report)
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _check(args: argparse.Namespace) -> None:
    for name, least in (("samples", 0), ("batches", 1), ("val_batches", 0)):
        if getattr(args, name) < least:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} {getattr(args, name)}: must be at least {least}")
    if (args.truth is None) != (args.benchmark is None):
        raise ValueError("--truth and --benchmark go together: a file and what it is of")
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a folder")


def _table(args: argparse.Namespace, space: SearchSpace) -> Tabular | None:
    from ..nas import tabular

    if args.truth is None:
        return None
    table = getattr(tabular, args.benchmark)(args.truth)
    if not table.space.holds(space):
        raise ValueError(f"--benchmark {args.benchmark}: its networks are not of this supernet")
    if args.column not in table.columns:
        raise ValueError(f"--column {args.column}: {args.truth} has {', '.join(table.columns)}")
    return table


def _chosen(
    args: argparse.Namespace, space: SearchSpace, table: Tabular | None
) -> dict[str, list[Architecture]]:
    """What to rank, by what it is called: given, a sample or all; and the truth's best."""
    if args.architectures is not None:
        return {"given": _given(args.architectures, space)}
    count = space.count()
    if args.samples == 0 or args.samples >= count:
        if count > 100_000:
            raise ValueError(f"--samples {args.samples}: the space has {count:.3g} subnets")
        chosen = {"all": list(space.enumerate())}
    else:
        rng, drawn = random.Random(args.seed), {}
        while len(drawn) < args.samples:
            drawn[space.sample(rng)] = None
        chosen = {f"{args.samples} drawn": list(drawn)}
    if table is not None:
        values = table.columns[args.column]
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


def _parameters(net: Any, architectures: list[Architecture]) -> dict[Architecture, int]:
    from ..common.counts import on_meta
    from ..nas.supernet import extract

    shapes = on_meta(net)
    return {a: sum(p.numel() for p in extract(shapes, a).parameters()) for a in architectures}


def _rows(
    errors: dict[Architecture, float],
    parameters: dict[Architecture, int],
    tree: Any,
    table: Tabular | None,
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Best first; last those whose metric is None, since it was not finite."""
    sign, rows = -1 if mode_of(args) == "max" else 1, []
    for architecture, error in sorted(errors.items(), key=lambda item: item[1]):
        row = {args.metric: sign * error if math.isfinite(error) else None}
        row |= {"leaf": tree.leaf_of(architecture), "parameters": parameters[architecture]}
        if table is not None:
            row[args.column] = table.look_up(architecture, args.column)
        rows.append({**row, "architecture": architecture.to_json()})
    if rows[0][args.metric] is None:
        raise ValueError(f"--metric {args.metric}: not finite for any of {len(rows)} subnets")
    return rows


def _comparisons(
    groups: dict[str, list[Architecture]],
    errors: dict[Architecture, float],
    parameters: dict[Architecture, int],
    table: Tabular | None,
    column: str,
) -> dict[str, Any]:
    """The ranking and the parameters' against the truth, for each group."""
    from ..nas.lid.ranking import compare

    worst = max(filter(math.isfinite, errors.values())) + 1
    found = {}
    for name, group in groups.items():
        if table is None or len(group) < 2:
            continue
        truth = [table.look_up(a, column) for a in group]
        found[name] = {
            "supernet": compare([-min(errors[a], worst) for a in group], truth).to_json(),
            "parameters": compare([float(parameters[a]) for a in group], truth).to_json(),
        }
    return found


def _write_csv(path: Path, rows: list[dict[str, Any]], space: SearchSpace) -> None:
    """Rank, metric, leaf, parameters, truth where it is known, every choice (empty if unused)."""
    from ..common.files import atomic_write

    figures = [name for name in rows[0] if name != "architecture"]
    with atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rank", *figures, *space.names])
        for rank, row in enumerate(rows, start=1):
            choices = row["architecture"]["choices"]
            writer.writerow([rank, *(row[f] for f in figures), *(choices[n] for n in space.names)])


def _lines(report: dict[str, Any]) -> str:
    metric = report["metric"]
    good = "large" if report["mode"] == "max" else "small"
    found = [
        f"{report['out']}: {report['evaluated']} subnets ranked by {metric} ({good} is good), "
        f"{report['seconds']:.0f} s; the best has {report['best'][metric]:.5g}"
    ]
    if broken := report["not_finite"]:
        first = ", ".join(f"{k} {v}" for k, v in broken[0]["choices"].items())
        found.append(f"  {len(broken)} without a finite {metric} come last, such as: {first}")
    for name, both in report["comparisons"].items():
        found.append(
            f"  {name} ({both['supernet']['count']}), against {report['truth']['column']}:"
        )
        for who, figures in both.items():
            numbers = [f"{key} {_shown(figures[key])}" for key in ("kendall", "spearman")]
            numbers += [f"precision@{k} {v:.2f}" for k, v in figures["precision"].items()]
            found.append(f"    {who:<12} {', '.join(numbers)}")
    return "\n".join(found)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
