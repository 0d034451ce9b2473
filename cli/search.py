"""`vizoo search`: the subnets that no other beats in both error and cost.

Errors are measured on the validation data of a config of `vizoo fit`, batch norms being estimated
anew for each subnet. By default a sample of subnets is evaluated, a predictor fitted to it, the
space searched by predictions, and what that finds evaluated; with --direct every subnet that the
search looks at is evaluated. Costs are predicted meanwhile; on the front parameters, multiply-adds
and memory are counted, and what they put over a limit is left out. All evaluations are kept, so a
search that was stopped goes on. With a tree of splits (NAS-LID) each subnet has its leaf's weights.
Where a large metric is good, its sign is turned to make the `error` in JSON files.
Started by torchrun, every process of the job evaluates its share, on a GPU of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.progress import progress_bar
from ..common.quantities import show_quantity
from ._costs import add_limits, limits, open_table
from ._evaluations import add_evaluation, evaluator, mode_of, open_evaluations
from ._leaves import add_source, load_leaves
from ._supernets import add_conditions, set_up

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ..nas.distributed.search.executor import Executor
    from ..nas.efficiency.regressor import CostRegressor
    from ..nas.search.constraints import Constraint
    from ..nas.space import Architecture, SearchSpace
    from ._evaluations import Evaluations

__all__ = ["add_arguments", "run"]

_UNITS = {
    "latency": (1.0, "latency, ms"),
    "parameters": (1e6, "parameters, millions"),
    "macs": (1e9, "multiply-adds, billions"),
    "memory": (1e6, "activations, MB"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_source(parser)
    add_evaluation(parser)
    parser.add_argument(
        "--cost",
        choices=tuple(_UNITS),
        help="what the other axis is (default: latency with a --table, else macs)",
    )
    parser.add_argument(
        "--table", metavar="FILE", help="of `vizoo latency build`, for this machine"
    )
    add_conditions(parser, defaults=False)
    add_limits(parser)
    parser.add_argument(
        "--samples", type=int, default=50, help="subnets evaluated for the predictor (default 50)"
    )
    parser.add_argument("--direct", action="store_true", help="evaluate; do without a predictor")
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
    """Search and write.

    Raises:
        ValueError: no trained supernet, a bad option, an impossible limit, a table of something
            else.
    """
    _check(args)
    bounds = limits(args)

    from ..common.counts import on_meta
    from ..common.files import write_json
    from ..nas.distributed.search.executor import QueueExecutor, SerialExecutor, job_store, serve
    from ..nas.search.constraints import Limits
    from ..vision.subnets.best import constraints, cost_predictors

    start = time.perf_counter()
    leaves, net, space = load_leaves(args)
    table = open_table(args)
    bench = set_up(args, net, space, table)
    cost = args.cost or ("latency" if table else "macs")
    if table is None and "latency" in (cost, *bounds):
        raise ValueError("latency needs --table FILE; `vizoo latency build` makes one")
    device = _own_device(bench.device)
    evaluate, job = evaluator(args, leaves, device), job_store()
    if job is not None and job[0] > 0:
        net.to(device)
        serve(evaluate, job[1])
        return 0
    evaluations, kept_at = open_evaluations(args, leaves, space)
    with progress_bar("counting subnets") as tell:
        predictors = cost_predictors(bench, table, tell)
    kept = constraints(predictors, bounds)
    Limits(space, kept).refuge()  # refuses limits out of reach before hours of evaluation
    # Costs depend on shapes alone, so the supernet itself is free to go where it is evaluated.
    shapes = on_meta(net)
    net.to(device)
    with QueueExecutor(evaluate, job[1]) if job else SerialExecutor(evaluate) as executor:
        errors_of = partial(_errors, evaluations, kept_at, executor)
        agreement = None
        if args.direct:
            _search(args, space, errors_of, predictors[cost], kept)
        else:
            agreement = _predicted(args, space, errors_of, evaluations, predictors[cost], kept)
    figures = partial(_figures, shapes, bench.inputs("meta"), predictors.get("latency"))
    rows, left_out = _front(evaluations, predictors[cost], cost, kept, bounds, figures)
    report = {
        "out": args.out,
        "seconds": round(time.perf_counter() - start, 1),
        "supernet": args.supernet,
        "tree": args.tree,
        "metric": args.metric,
        "mode": mode_of(args),
        "cost": cost,
        "conditions": bench.conditions.to_json(),
        "evaluated": len(evaluations.errors),
        "predictor": agreement,
        "left_out": left_out,
        "front": rows,
    }
    _write_csv(Path(args.out, "front.csv"), report)
    _write_picture(Path(args.out, "front.png"), report, evaluations, predictors[cost])
    write_json(Path(args.out, "front.json"), report)
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _errors(
    evaluations: Evaluations,
    path: Path,
    executor: Executor,
    architectures: list[Architecture],
    what: str = "",
) -> list[float]:
    """Errors of architectures; those that are not known yet are measured and kept."""
    known = evaluations.errors
    new = [item for item in dict.fromkeys(architectures) if item not in known]
    with progress_bar(what) if what else nullcontext(lambda *_: None) as tell:

        def keep(index: int, error: float) -> None:
            known[new[index]] = error
            evaluations.save(path)
            tell(len(known.keys() & new), len(new))

        if new:
            executor.run(new, keep)
    return [known[architecture] for architecture in architectures]


def _metric(report: dict[str, Any], error: float) -> float:
    """The metric that an error stands for."""
    return -error if report["mode"] == "max" else error


def _own_device(device: torch.device) -> torch.device:
    """The GPU of this process where several of a job share a machine."""
    import torch

    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


def _check(args: argparse.Namespace) -> None:
    for name, direct, predicted in (("population", 16, 100), ("generations", 8, 50)):
        if getattr(args, name) is None:
            setattr(args, name, direct if args.direct else predicted)
    least = {"population": 4, "generations": 0, "batches": 1, "val_batches": 0, "verify": 0}
    least["samples"] = 10
    for name, bound in least.items():
        if getattr(args, name) < bound:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} {getattr(args, name)}: must be at least {bound}")
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a folder")


def _search(
    args: argparse.Namespace,
    space: SearchSpace,
    errors: Callable[[list[Architecture]], Sequence[float]],
    costs: CostRegressor,
    kept: list[Constraint],
) -> list[Architecture]:
    from ..nas.search.pareto import evolve_pareto

    with progress_bar("generations") as tell:
        found = evolve_pareto(
            space,
            {"error": errors, "cost": lambda found: costs.predict(found).tolist()},
            constraints=kept,
            seed=args.seed,
            population=args.population,
            generations=args.generations,
            on_generation=lambda step: tell(step.generation + 1, step.generations + 1),
        )
    return [item.architecture for item in found.front]


def _predicted(
    args: argparse.Namespace,
    space: SearchSpace,
    errors_of: Callable[[list[Architecture], str], Sequence[float]],
    evaluations: Evaluations,
    costs: CostRegressor,
    kept: list[Constraint],
) -> dict[str, Any] | None:
    """Evaluate a sample and what a search by predictions finds; how well errors are predicted.

    A space of no more subnets than the sample is evaluated whole, which leaves none to predict.
    """
    from ..nas.efficiency.build import plan

    chosen = [architecture for architecture, _ in plan(space, args.samples, 0, args.seed)]
    errors_of(chosen, "evaluating subnets")
    if len(chosen) == space.count():
        return None
    predictor = evaluations.predictor(args.seed, chosen)
    found = _search(args, space, predictor.predict, costs, kept)
    step = max(1, math.ceil(len(found) / max(1, args.verify)))
    errors_of(found[::step][: args.verify], "evaluating the front")
    return predictor.held_out.to_json() if predictor.held_out else None


def _front(
    evaluations: Evaluations,
    costs: CostRegressor,
    cost: str,
    kept: list[Constraint],
    bounds: dict[str, float],
    figures: Callable[[Architecture], dict[str, float]],
) -> tuple[list[dict[str, Any]], int]:
    """What no other of the evaluated subnets beats, by exact figures, and how many those kept out.

    Raises:
        ValueError: no subnet keeps to the limits.
    """
    from ..nas.search.pareto import pareto_front

    errors = {
        architecture: error
        for architecture, error in evaluations.errors.items()
        if math.isfinite(error) and all(limit.satisfied(architecture) for limit in kept)
    }
    found, left_out = {a: costs(a) for a in errors}, 0
    rows: dict[Architecture, dict[str, Any]] = {}
    while True:
        known = list(found)
        front = [known[i] for i in pareto_front([(errors[a], found[a]) for a in known])]
        new = [a for a in front if a not in rows]
        if not new:
            break
        for architecture in new:
            exact = figures(architecture)
            row = {"error": errors[architecture], **exact, "architecture": architecture.to_json()}
            rows[architecture] = row
            if any(exact[kind] > bound for kind, bound in bounds.items()):
                del found[architecture]
                left_out += 1
            else:
                found[architecture] = exact[cost]
    if not front:
        raise ValueError(
            f"none of {len(evaluations.errors)} evaluated subnets keeps to the limits: evaluate "
            "more, by --samples and --verify, with --direct by --population and --generations"
        )
    return sorted((rows[a] for a in front), key=lambda row: row["error"]), left_out


def _figures(
    shapes: nn.Module,
    inputs: Sequence[Tensor],
    latency: CostRegressor | None,
    architecture: Architecture,
) -> dict[str, float]:
    """Exact counts, and where there is a table the predicted latency."""
    from ..common.counts import count
    from ..nas.supernet import extract

    found = {} if latency is None else {"latency": round(latency(architecture), 4)}
    return found | count(extract(shapes, architecture), *inputs).to_json()


def _write_csv(path: Path, report: dict[str, Any]) -> None:
    """Metric, costs (milliseconds, values, bytes), and every choice, empty where it is unused."""
    from ..common.files import atomic_write

    rows = report["front"]
    names = list(rows[0]["architecture"]["choices"])
    costs = [name for name in rows[0] if name not in ("error", "architecture")]
    with atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([report["metric"], *costs, *names])
        for row in rows:
            choices = row["architecture"]["choices"]
            figures = [_metric(report, row["error"]), *(row[c] for c in costs)]
            writer.writerow([*figures, *(choices[n] for n in names)])


def _write_picture(
    path: Path, report: dict[str, Any], evaluations: Evaluations, costs: CostRegressor
) -> None:
    from matplotlib.figure import Figure

    from ..common.files import atomic_write

    rows, cost = report["front"][::-1], report["cost"]
    size, label = _UNITS[cost]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    measured = {a: error for a, error in evaluations.errors.items() if math.isfinite(error)}
    axes.scatter(
        costs.predict(list(measured)) / size,
        [_metric(report, error) for error in measured.values()],
        s=14,
        color="0.7",
        label=f"{len(measured)} evaluated",
    )
    axes.step(
        [row[cost] / size for row in rows],
        [_metric(report, row["error"]) for row in rows],
        where="post",
        marker="o",
        color="tab:blue",
        label="Pareto front",
    )
    axes.set_xlabel(label)
    axes.set_ylabel(report["metric"])
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _lines(report: dict[str, Any]) -> str:
    found = [
        f"{report['out']}: {len(report['front'])} subnets on the front, "
        f"{report['evaluated']} evaluated, {report['seconds']:.0f} s"
    ]
    if report["predictor"] and report["predictor"]["kendall"] is not None:
        found.append(
            f"  predictor: Kendall tau {report['predictor']['kendall']:.2f} on "
            f"{report['predictor']['count']} held-out subnets"
        )
    if report["left_out"]:
        found.append(f"  {report['left_out']} left out: by exact count they are over a limit")
    good = "large" if report["mode"] == "max" else "small"
    found.append(f"  {report['metric']:>12}  {report['cost']} ({good} {report['metric']} is good)")
    for row in report["front"]:
        cost = show_quantity(report["cost"], row[report["cost"]])
        found.append(f"  {_metric(report, row['error']):>12.5g}  {cost}")
    return "\n".join(found)
