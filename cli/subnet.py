"""`vizoo subnet`: the best subnet of a trained supernet that keeps to given limits.

Thousands of architectures are compared by predictions; the winner is extracted, measured and
counted. Where it misses a limit, or stays far below the one that binds, the predicted limit is
moved by the ratio observed, and the search repeated. Without --evaluations the best subnet is the
one with the most multiply-adds: capacity stands in for accuracy, which nobody has measured.
With --architecture nothing is searched: that subnet is extracted, and limits are only checked.
What it gives away is measured beside the largest subnet, on a task's built-in config of generated
data where there is one.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._costs import add_limits, constraints, cost_predictors, limits, open_table
from ._errors import Errors, error_lines, examiner
from ._quantities import show_quantity
from ._supernets import add_conditions, load_supernet, set_up, table_of_weights

if TYPE_CHECKING:
    from torch import nn

    from ..nas.efficiency.regressor import CostRegressor
    from ..nas.efficiency.table import LatencyTable
    from ..nas.space import Architecture, SearchSpace
    from ._supernets import Bench

__all__ = ["add_arguments", "most_macs", "move_table", "run", "search_within"]

_ROUNDS = 5
_SPARE = {"latency": 0.02}  # aimed at this much below the limit, since measurements scatter
_IDLE = 0.05  # further below the limit than this is worth another round
_REPETITIONS, _SECONDS = 15, 2.0  # of each measurement, at least
_OWN_TABLE = 40  # subnets measured where no table was given


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
    parser.add_argument(
        "--table", metavar="FILE", help="of `vizoo latency build`, for this machine"
    )
    add_conditions(parser, defaults=False)
    parser.add_argument(
        "--evaluations",
        metavar="FILE",
        help="evaluations.json of `vizoo search`: the smallest predicted error wins, instead of "
        "the most multiply-adds",
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
    """Search, extract, check, write; return 0, or 1 where a limit is missed all the same.

    Raises:
        ValueError: no or impossible limits, a table of other conditions, another bad option.
    """
    out = Path(args.out)
    bounds = limits(args)
    _check(args, out, bounds)

    from ..common.files import write_json
    from ..nas.efficiency.provenance import software
    from ._task import FitConfig

    start = time.perf_counter()
    config = FitConfig.read(args.recalibrate) if args.recalibrate else None
    net, space, trained = load_supernet(args.supernet)
    judge = examiner(args, net, trained)
    wanted = None if args.architecture is None else _given(args.architecture, space)
    table = open_table(args)
    searched = wanted is None and "latency" in bounds
    # One that an earlier run measured here, for this very file, is better than one moved here.
    near = None
    if searched and table is None and not out.with_suffix(".latency.json").exists():
        near = table_of_weights(args, net, space)
    if near is not None and args.input is None:
        args.input = f"{near.conditions.height}x{near.conditions.width}"
    bench = set_up(args, net, space, table)
    # Before the search, so that a config that will not do costs nothing.
    errors = None if judge is None else Errors(bench, judge, config, args.batches)
    if errors is not None:
        errors.of_largest(remember=args.evaluate is None)
    predictors: dict[str, CostRegressor] = {}
    if wanted is not None:
        architecture, costs, rounds, named = wanted, _costs(bench, wanted), [], None
    else:
        if near is not None:
            table = move_table(near, bench)
        elif searched and table is None:
            args.table = str(out.with_suffix(".latency.json"))
            table = _own_table(bench, args.table)
        predictors = cost_predictors(bench, table)
        objective, named = _objective(args, space, predictors)
        settings = {name: getattr(args, name) for name in ("seed", "population", "generations")}
        architecture, costs, rounds = search_within(
            bench, predictors, objective, bounds, **settings
        )
    subnet = bench.network(architecture)
    vars(subnet).pop("reach", None)  # was measured of the largest; small subnets reach less far
    difference = _difference(bench, subnet, architecture)
    after = subnet if config is not None or errors is None else copy.deepcopy(subnet)
    if errors is not None:
        errors.of_subnet("before", subnet)
    recalibrated = None
    if config is not None:
        recalibrated = config.recalibrate(subnet, args.batches, bench.device)
    elif errors is not None:
        judge.recalibrate(after, args.batches, bench.device)
    if errors is not None:
        errors.of_subnet("after", after)
    missed = [kind for kind, bound in bounds.items() if _figure(costs, kind) > bound]
    report: dict[str, Any] = {
        "supernet": args.supernet,
        "trained": trained,
        "architecture": architecture.to_json(),
        "limits": bounds,
        "met": not missed,
        "missed": missed,
        "predicted": {
            kind: round(predictors[kind](architecture), 4) for kind in bounds if kind in predictors
        },
        **costs,
        "objective": named,
        "rounds": rounds,
        "difference_to_supernet": difference,
        "recalibrated": recalibrated,
        "errors": None if errors is None else errors.report,
        "conditions": bench.conditions.to_json(),
        "described": str(bench.conditions),
        "software": software(),
        "table": args.table,
        "table_moved_from": None if near is None else str(near.conditions),
    }

    from ..vision.hub.weights import save_weights

    kept = ("supernet", "limits", "predicted", "measured", "recalibrated", "errors")
    kept += ("described", "software")
    save_weights(subnet, out, **{name: report[name] for name in kept})
    write_json(out.with_suffix(".json"), report)
    report = {"file": str(out), "seconds": round(time.perf_counter() - start, 1), **report}
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 1 if missed else 0


def _check(args: argparse.Namespace, out: Path, bounds: dict[str, float]) -> None:
    if out.suffix != ".safetensors":
        raise ValueError(f"--out {out}: weights are written as .safetensors; choose such a name")
    if not bounds and args.architecture is None:
        raise ValueError(
            "give a limit: --max-latency, --max-params, --max-macs or --max-memory; or an "
            "--architecture"
        )
    if args.architecture is not None and args.evaluations is not None:
        raise ValueError("--evaluations serve a search, and --architecture asks for none")
    written = {path.resolve() for path in (out, out.with_suffix(".json"))}
    for option in ("supernet", "table", "evaluations", "architecture"):
        given = getattr(args, option)
        if given is not None and Path(given).resolve() in written:
            raise ValueError(f"--out {out}: would overwrite {given}; choose another name")
    for name, least in (("batches", 1), ("generations", 0), ("population", 4)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} {getattr(args, name)}: must be at least {least}")


def _given(source: str, space: SearchSpace) -> Architecture:
    """The architecture that --architecture names."""
    from ..common.files import read_json
    from ..nas.space import Architecture
    from ..nas.training.evaluation import named_subnet

    if not Path(source).suffix and not Path(source).exists():
        return named_subnet(space, source)
    content = read_json(source, "an architecture")
    if isinstance(content, dict) and isinstance(content.get("architecture"), dict):
        content = content["architecture"]
    try:
        if isinstance(content, dict) and "choices" not in content:
            return named_subnet(space, content)
        return space.validate(Architecture.from_json(content))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error


def most_macs(
    predictors: dict[str, CostRegressor],
) -> Callable[[list[Architecture]], list[float]]:
    """The objective that prefers capacity, since nobody has measured accuracy."""
    return lambda found: (-predictors["macs"].predict(found)).tolist()


def move_table(table: LatencyTable, bench: Bench) -> LatencyTable:
    """A table of another machine, scaled by what its reference subnet takes on this one."""
    costs = _costs(bench, bench.space.smallest())
    return table.moved(bench.conditions, costs["measured"]["median"])


def _own_table(bench: Bench, path: str) -> LatencyTable:
    """A small table beside the result, or the one that an earlier run left there."""
    from ..nas.efficiency.provenance import software
    from ..nas.efficiency.table import LatencyTable

    table = LatencyTable(dict(bench.net.architecture), bench.space, bench.conditions, software())
    if Path(path).exists():
        found = LatencyTable.load(path)
        same = found.model == table.model and found.space == table.space
        if same and not found.conditions.difference(bench.conditions):
            table = found
    what = "measuring subnets, since no --table is given"
    return bench.measure(table, what, path=path, samples=_OWN_TABLE, held_out=4)


def _objective(
    args: argparse.Namespace, space: SearchSpace, predictors: dict[str, CostRegressor]
) -> tuple[Callable[[list[Architecture]], list[float]], str]:
    """What is minimised, and its name."""
    if args.evaluations is None:
        return most_macs(predictors), "most multiply-adds"

    from ._evaluations import Evaluations

    evaluations = Evaluations.load(args.evaluations, space)
    predictor = evaluations.predictor(args.seed)
    agreement = f", Kendall tau {predictor.held_out.kendall:.2f}" if predictor.held_out else ""
    best = "largest" if evaluations.origin.get("mode") == "max" else "smallest"
    name = f"{best} {evaluations.metric} predicted from {len(evaluations.errors)} subnets"
    return predictor.predict, f"{name}{agreement}"


def search_within(
    bench: Bench,
    predictors: dict[str, CostRegressor],
    objective: Callable[[list[Architecture]], list[float]],
    bounds: dict[str, float],
    *,
    seed: int = 0,
    population: int = 64,
    generations: int = 30,
    rounds: int = _ROUNDS,
) -> tuple[Architecture, dict[str, Any], list[dict[str, Any]]]:
    """The best architecture whose true costs keep to the limits, else the one that comes nearest.

    Args:
        bench: where subnets are measured.
        predictors: of the costs that are bounded.
        objective: what is minimised.
        bounds: quantity to its limit.
        seed, population, generations: of `evolve`, called once a round.
        rounds: at most so many subnets are measured.

    Returns:
        The architecture, its costs, and what each round aimed at and found.
    """
    from ..nas.search.evolution import evolve

    smallest = bench.space.smallest()
    floors = {kind: predictors[kind](smallest) for kind in bounds}
    aims = {kind: bound * (1 - _SPARE.get(kind, 0.0)) for kind, bound in bounds.items()}
    tried: dict[Architecture, dict[str, Any]] = {}
    told: list[dict[str, Any]] = []
    for _ in range(rounds):
        # A limit within reach stays so, whatever is spared; one out of reach is refused as typed.
        aims = {
            kind: max(aim, floors[kind]) if bounds[kind] >= floors[kind] else bounds[kind]
            for kind, aim in aims.items()
        }
        architecture = evolve(
            bench.space,
            objective,
            constraints=constraints(predictors, aims),
            seed=seed,
            population=population,
            generations=generations,
        ).best
        if architecture in tried:
            break
        tried[architecture] = costs = _costs(bench, architecture)
        predicted = {kind: predictors[kind](architecture) for kind in bounds}
        found = {kind: _figure(costs, kind) for kind in bounds}
        told.append({"aimed_at": dict(aims), "predicted": predicted, "found": found})
        ratios = {kind: found[kind] / bound for kind, bound in bounds.items()}
        worst = max(ratios.values())
        if 1 - _IDLE <= worst <= 1:
            break
        for kind, ratio in ratios.items():
            if ratio > 1 or worst <= 1 and ratio == worst:
                aims[kind] = (1 - _SPARE.get(kind, 0.001)) * predicted[kind] / ratio

    def order(architecture: Architecture) -> tuple[float, float]:
        excess = (_figure(tried[architecture], kind) / bound for kind, bound in bounds.items())
        return max(1.0, *excess), objective([architecture])[0]

    chosen = min(tried, key=order)
    return chosen, tried[chosen], told


def _costs(bench: Bench, architecture: Architecture) -> dict[str, Any]:
    """Counted parameters, multiply-adds and memory, and under `measured` the time."""
    from ..common.counts import count
    from ..common.timing import measure

    subnet, inputs = bench.network(architecture), bench.inputs()
    ready = bench.prepare(subnet)
    timing = measure(
        lambda: ready(*inputs),
        bench.device,
        warmup=3,
        repetitions=_REPETITIONS,
        seconds=_SECONDS,
    )
    return {**count(subnet, *inputs).to_json(), "measured": timing.to_json()}


def _figure(costs: dict[str, Any], kind: str) -> float:
    return costs["measured"]["median"] if kind == "latency" else costs[kind]


def _difference(bench: Bench, subnet: nn.Module, architecture: Architecture) -> float:
    """The largest difference between the subnet's output and the supernet's, on the CPU.

    Raises:
        ValueError: it is more than rounding.
    """
    import torch

    from ..nas.supernet import activate

    inputs = bench.inputs("cpu")
    activate(bench.net, architecture)
    with torch.inference_mode():
        wanted, found = bench.net(*inputs), subnet.eval()(*inputs)
    difference = float((wanted - found).abs().max())
    if difference > 1e-4 * float(wanted.abs().max()) or difference != difference:
        raise ValueError(
            f"the extracted network differs from the supernet by up to {difference:g}: "
            "a fault of the supernet's layers; please report it"
        )
    return difference


def _lines(report: dict[str, Any]) -> str:
    measured = report["measured"]
    found = [
        f"{report['file']}: subnet of {report['supernet']}"
        + ("" if report["trained"] else " (random weights: the supernet is not trained)"),
        f"  chosen for the {report['objective']}" if report["objective"] else "  as was asked for",
        f"  {measured['median']:.1f} ms (p10 {measured['p10']:.1f}, p90 {measured['p90']:.1f}) on "
        f"{report['described']}",
        "  "
        + ", ".join(
            f"{show_quantity(kind, report[kind])} {name}"
            for kind, name in (
                ("parameters", "parameters"),
                ("macs", "multiply-adds"),
                ("memory", "of activations"),
            )
        ),
    ]
    for kind, bound in report["limits"].items():
        value = show_quantity(kind, _figure(report, kind))
        predicted = report["predicted"].get(kind)
        told = f", predicted {show_quantity(kind, predicted)}" if predicted is not None else ""
        if kind == "latency" and report["table_moved_from"]:
            told += f" by a table of {report['table_moved_from'].partition(',')[0]}, moved here"
        met = "met" if kind not in report["missed"] else "MISSED"
        found.append(f"  limit on {kind}: {show_quantity(kind, bound)}, {met} by {value}{told}")
    same = report["difference_to_supernet"]
    found.append("  equals the supernet" + (f" to {same:.1e}" if same else " bit for bit"))
    found += error_lines(report["errors"])
    if report["recalibrated"]:
        found.append(f"  batch norms estimated on {report['recalibrated']['samples']} samples")
    else:
        found.append("  batch norms are the supernet's: --recalibrate CONFIG estimates its own")
    return "\n".join(found)
