"""`vizoo subnet`: the best subnet of a trained supernet that keeps to given limits.

The best subnet is that with the smallest error predicted from --evaluations, or from those that lie
beside the weights; without any it is that with the most multiply-adds: capacity stands in for
accuracy, which nobody has measured.
With --architecture nothing is searched: that subnet is extracted, and limits are only checked.
What it gives away is measured beside the largest subnet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import Errors, examiner, recalibrated
from ._subnet import lines
from ._supernets import add_conditions, add_limits, bench_and_table, limits
from ._work import check_file, check_least

if TYPE_CHECKING:
    from ..nas.efficiency.table import LatencyTable
    from ..vision.subnets.bench import Bench
    from ..vision.subnets.best import Subnet
    from ..vision.subnets.evaluations import Evaluations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--supernet", metavar="NAME|FILE", required=True, help="a supernet's name or weights"
    )
    add_limits(parser)
    parser.add_argument(
        "--architecture",
        metavar="WORD|FILE",
        help="this subnet instead of a searched one: largest, middle, smallest, or JSON of an "
        "architecture (also that beside a subnet), or of patterns of choices and allowed values",
    )
    add_conditions(parser, defaults=False)
    parser.add_argument(
        "--evaluations",
        metavar="FILE",
        help="evaluations.json of `vizoo search`: the smallest predicted error wins (default: "
        "those beside the weights; where there are none, the most multiply-adds win)",
    )
    parser.add_argument(
        "--recalibrate",
        metavar="CONFIG",
        help="config of `vizoo fit` on whose training data batch norms are estimated anew",
    )
    parser.add_argument(
        "--batches", type=int, default=20, help="of training data to do so (default 20)"
    )
    evaluated = parser.add_mutually_exclusive_group()
    evaluated.add_argument(
        "--evaluate",
        metavar="CONFIG|FOLDER",
        help="config of `vizoo fit` on whose validation data the subnet is compared with the "
        "largest, or of a stereo supernet a folder of pairs with true disparities (left.png, "
        "right.png and truth.png in folders of their own, or folders left, right and disparity; "
        "default: a hundred generated pairs for trained stereo supernets, nothing for others)",
    )
    evaluated.add_argument("--no-evaluate", action="store_true", help="leave that out")
    parser.add_argument("--seed", type=int, default=0, help="of the search (default 0)")
    parser.add_argument("--generations", type=int, default=30, help="of the search (default 30)")
    parser.add_argument("--population", type=int, default=64, help="of the search (default 64)")
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="weights (.safetensors); a .json goes with it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Search, extract, check, write; return 0, or 1 where a limit is missed all the same."""
    out = Path(args.out)
    bounds = limits(args)
    _check(args, out, bounds)

    from ..common.files import write_json
    from ..common.progress import progress_bar
    from ..nas.efficiency.provenance import software
    from ..nas.training.evaluation import open_subnet
    from ..vision.configs.task import FitConfig
    from ..vision.hub.weights import save_weights
    from ..vision.subnets.bench import load_supernet
    from ..vision.subnets.best import OWN_TABLE, cut

    start = time.perf_counter()
    config = FitConfig.read(args.recalibrate) if args.recalibrate else None
    net, space, trained = load_supernet(args.supernet)
    judge = examiner(args, net, trained)
    wanted = None if args.architecture is None else open_subnet(space, args.architecture)
    limit = bounds.get("latency") if wanted is None else None
    bench, table, near, own = bench_and_table(args, net, space, trained, limit)
    # Before the search, so that a file that will not do costs nothing.
    evaluations = None if wanted is not None else _evaluations(args, bench)
    errors = None if judge is None else Errors(bench, judge, config, args.batches)
    if errors is not None:
        errors.of_largest(remember=args.evaluate is None)
    if table is not None and own is not None:
        with progress_bar("measuring subnets, since no --table is given") as tell:
            table = bench.complete(table, path=own, report=tell, **OWN_TABLE)
    objective = None
    if wanted is None:
        subnet, objective = _searched(args, bench, bounds, table, evaluations)
    else:
        subnet = cut(bench, wanted, bounds, {}, bench.costs(wanted), [])
    estimated = recalibrated(subnet.network, errors, config, args.batches, bench)
    report: dict[str, Any] = {
        "supernet": args.supernet,
        "trained": trained,
        "architecture": subnet.architecture.to_json(),
        "limits": bounds,
        "met": not subnet.missed,
        "missed": subnet.missed,
        "predicted": subnet.predicted,
        **subnet.costs,
        "objective": objective,
        "rounds": subnet.rounds,
        "difference_to_supernet": subnet.difference,
        "recalibrated": estimated,
        "errors": None if errors is None else errors.report,
        "conditions": subnet.conditions.to_json(),
        "described": str(subnet.conditions),
        "software": software(),
        "table": args.table if own is None else str(own),
        "table_moved_from": None if near is None else str(near.conditions),
    }
    kept = "supernet limits predicted measured recalibrated errors described software".split()
    save_weights(subnet.network, out, **{name: report[name] for name in kept})
    write_json(out.with_suffix(".json"), report)
    report = {"file": str(out), "seconds": round(time.perf_counter() - start, 1), **report}
    print(json.dumps(report, indent=2) if args.json else lines(report))
    return 1 if subnet.missed else 0


def _evaluations(args: argparse.Namespace, bench: Bench) -> Evaluations | None:
    """Those of --evaluations, or the ones that lie beside the weights."""
    from ..vision.subnets.evaluations import Evaluations, evaluations_beside

    if args.evaluations is None:
        return evaluations_beside(args.supernet, bench.networks)
    return Evaluations.load(args.evaluations, bench.networks)


def _searched(
    args: argparse.Namespace,
    bench: Bench,
    bounds: dict[str, float],
    table: LatencyTable | None,
    evaluations: Evaluations | None,
) -> tuple[Subnet, str]:
    """The best subnet, and what it was chosen for."""
    from ..common.progress import progress_bar
    from ..vision.subnets.best import best_subnet, cost_predictors

    objective, named = None, "most multiply-adds"
    if evaluations is not None:
        objective, named = evaluations.objective(args.seed)
    settings = {name: getattr(args, name) for name in ("seed", "population", "generations")}
    if table is None:
        with progress_bar("counting subnets") as tell:
            predictors = cost_predictors(bench, None, tell)
    else:
        predictors = cost_predictors(bench, table)
    # No bar from here on: it would take time from what is measured.
    if sys.stderr.isatty():
        print("searching; the best are measured", file=sys.stderr)
    return best_subnet(bench, bounds, objective=objective, predictors=predictors, **settings), named


def _check(args: argparse.Namespace, out: Path, bounds: dict[str, float]) -> None:
    check_file(out, ".safetensors", "weights are")
    if not bounds and args.architecture is None:
        raise ValueError(
            "give a limit: --max-latency, --max-params, --max-macs or --max-memory; or an "
            "--architecture"
        )
    if args.architecture is not None and (args.evaluations is not None or args.mixed):
        raise ValueError("--evaluations and --mixed serve a search; --architecture asks for none")
    written = {path.resolve() for path in (out, out.with_suffix(".json"))}
    for option in ("supernet", "table", "evaluations", "architecture"):
        given = getattr(args, option)
        if given is not None and Path(given).resolve() in written:
            raise ValueError(f"--out {out}: would overwrite {given}; choose another name")
    check_least(args, batches=1, generations=0, population=4)
