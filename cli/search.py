"""`vizoo search`: the subnets that no other beats in both error and cost.

All evaluations are kept, so a search that was stopped goes on. Where a large metric is good, its
sign is turned to make the `error` in JSON files. Started by torchrun, every process of the job
evaluates its share, on a GPU of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..common.interrupts import ended_by_sigterm, raised_interrupts
from ..common.progress import progress
from ..common.quantities import show_quantity
from ._evaluations import add_evaluation, evaluator, load_leaves, mode_of, open_evaluations
from ._supernets import add_conditions, add_limits, limits, open_table, set_up
from ._tables import UNITS, metric_of, write_picture, write_table
from ._work import check_folder, check_least

if TYPE_CHECKING:
    import torch

    from ..vision.subnets.front import SearchedFront


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_evaluation(parser)
    parser.add_argument(
        "--cost",
        choices=tuple(UNITS),
        help="what the other axis is (default: latency with a --table, else macs)",
    )
    add_conditions(parser, defaults=False, mixed=False)
    add_limits(parser)
    parser.add_argument(
        "--samples", type=int, default=50, help="subnets evaluated for the predictor (default 50)"
    )
    parser.add_argument("--direct", action="store_true", help="evaluate; do without a predictor")
    parser.add_argument(
        "--sampler",
        choices=("evolution", "tpe", "gp", "nsga2"),
        default="evolution",
        help="what proposes subnets: evolution (default), or a sampler of Optuna, which evaluates "
        "directly",
    )
    parser.add_argument(
        "--storage",
        metavar="FILE",
        help="journal of Optuna that gets every evaluation as it comes: `optuna-dashboard FILE`",
    )
    parser.add_argument(
        "--population", type=int, help="of the search (default 100, with --direct 16)"
    )
    parser.add_argument(
        "--generations", type=int, help="of the search (default 50, with --direct 8)"
    )
    parser.add_argument(
        "--verify", type=int, default=10, help="predicted subnets evaluated at last (default 10)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of samples and search (default 0)")
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="gets front.csv, front.json, front.png, evaluations.json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Search and write."""
    check_least(args, population=4, generations=0, batches=0, val_batches=0, verify=0, samples=10)
    out, bounds = check_folder(args.out), limits(args)

    from ..common.files import write_json
    from ..nas.distributed.search.executor import QueueExecutor, SerialExecutor, job_store, serve
    from ..vision.subnets.front import search

    start = time.perf_counter()
    leaves, net, space = load_leaves(args)
    table = open_table(args)
    cost, mode = args.cost or ("latency" if table else "macs"), mode_of(args)
    if table is None and "latency" in (cost, *bounds):
        raise ValueError("latency needs --table FILE; `vizoo latency build` makes one")
    bench = set_up(args, net, space, table)
    device = _own_device(bench.device)
    evaluate = evaluator(args, leaves, device)
    # Costs depend on shapes alone, so the supernet itself is free to go where it is evaluated.
    net.to(device)
    if (job := job_store()) is not None and job[0] > 0:
        with ended_by_sigterm():
            serve(evaluate, job[1])
        return 0
    evaluations, kept_at = open_evaluations(args, leaves, space)
    executor = QueueExecutor(evaluate, job[1]) if job else SerialExecutor(evaluate)
    with ended_by_sigterm(), raised_interrupts(), executor, progress() as report:
        searched = search(
            bench,
            evaluate,
            cost=cost,
            limits=bounds,
            table=table,
            samples=args.samples,
            direct=args.direct,
            sampler=args.sampler,
            storage=args.storage,
            population=args.population,
            generations=args.generations,
            verify=args.verify,
            seed=args.seed,
            evaluations=evaluations,
            executor=executor,
            keep=lambda known: known.save(kept_at),
            report=report,
        )
    content = {
        "out": args.out,
        "seconds": round(time.perf_counter() - start, 1),
        "supernet": args.supernet,
        "tree": args.tree,
        "metric": args.metric,
        "mode": mode,
        "cost": cost,
        "conditions": bench.conditions.to_json(),
        "evaluated": len(evaluations.errors),
        "predictor": searched.predictor,
        "left_out": searched.left_out,
        "front": _rows(searched, lambda error: {"error": error}),
    }
    rows = _rows(searched, lambda error: {args.metric: metric_of(content, error)})
    write_table(out / "front.csv", rows, space.names)
    write_picture(out / "front.png", content, searched)
    write_json(out / "front.json", content)
    print(json.dumps(content, indent=2) if args.json else _lines(content))
    return 0


def _rows(searched: SearchedFront, told: Callable[[float], dict]) -> list[dict[str, Any]]:
    return [
        {**told(row.error), **row.costs, "architecture": row.architecture.to_json()}
        for row in searched.rows
    ]


def _own_device(device: torch.device) -> torch.device:
    """The GPU of this process where several of a job share a machine."""
    import torch

    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


def _lines(report: dict[str, Any]) -> str:
    lines = [
        f"{report['out']}: {len(report['front'])} subnets on the front, "
        f"{report['evaluated']} evaluated, {report['seconds']:.0f} s"
    ]
    if report["predictor"] and report["predictor"]["kendall"] is not None:
        lines.append(
            f"  predictor: Kendall tau {report['predictor']['kendall']:.2f} on "
            f"{report['predictor']['count']} held-out subnets"
        )
    if report["left_out"]:
        lines.append(f"  {report['left_out']} left out: by exact count they are over a limit")
    good = "large" if report["mode"] == "max" else "small"
    lines.append(f"  {report['metric']:>12}  {report['cost']} ({good} {report['metric']} is good)")
    for row in report["front"]:
        cost = show_quantity(report["cost"], row[report["cost"]])
        lines.append(f"  {metric_of(report, row['error']):>12.5g}  {cost}")
    return "\n".join(lines)
