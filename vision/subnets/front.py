"""The subnets of a supernet that no other beats in both error and cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...common.arguments import checked
from ...common.quantities import KINDS
from ...nas.distributed.search.executor import Executor, SerialExecutor
from ...nas.efficiency.build import plan
from ...nas.efficiency.regressor import CostRegressor
from ...nas.efficiency.table import LatencyTable
from ...nas.search.constraints import Constraint
from ...nas.search.evolution import evolve_pareto, pareto_front
from ...nas.search.front import FrontRow
from ...nas.search.optuna import Mirror, installed, propose
from ...nas.search.population import Settings
from ...nas.search.predictor import FEWEST
from ...nas.space import Architecture
from ...nas.supernet import as_before
from .bench import Bench, bench_for
from .best import checked_limits, constraints, cost_predictors, within_reach
from .evaluations import Evaluations

__all__ = ["SearchedFront", "search"]

_Report = Callable[[str, int, int], None]
_Errors = Callable[[list[Architecture]], Sequence[float]]


@dataclass(frozen=True)
class SearchedFront:
    """What a search has come to."""

    #: the front, the smallest error first; costs are exact counts, latencies predicted
    rows: list[FrontRow]
    evaluations: Evaluations  #: all subnets that were evaluated, and their errors
    cost: str  #: which cost was traded against the error
    costs: CostRegressor  #: predicts it
    #: how well errors were predicted on held-out subnets, see `Agreement.to_json`; None where none
    #: were
    predictor: dict[str, Any] | None
    left_out: int  #: how many that were predicted to meet the limits are over one by exact count


@checked(
    "samples",
    "direct",
    "sampler",
    "seed",
    "evaluations",
    "executor",
    "storage",
    "keep",
    "report",
    population=4,
    generations=0,
    verify=0,
)
def search(
    net: nn.Module | Bench,
    evaluate: Callable[[Architecture], float],
    *,
    cost: str | None = None,
    limits: Mapping[str, float | str] | None = None,
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str | None = None,
    table: LatencyTable | None = None,
    samples: int = 50,
    direct: bool = False,
    sampler: str = "evolution",
    population: int | None = None,
    generations: int | None = None,
    verify: int = 10,
    seed: int = 0,
    evaluations: Evaluations | None = None,
    executor: Executor | None = None,
    storage: str | os.PathLike[str] | None = None,
    keep: Callable[[Evaluations], Any] = lambda evaluations: None,
    report: _Report = lambda what, done, total: None,
) -> SearchedFront:
    """Search a supernet for the subnets that no other beats in both error and cost.

    A sample of subnets is evaluated, a predictor fitted to it, the space searched by predictions,
    and what that finds evaluated. Costs are predicted meanwhile; of all that was evaluated
    parameters, multiply-adds and memory are counted, by which the front is made and limits kept.

    Args:
        net: the supernet, or the bench of its costs.
        evaluate: architecture, which it has to activate, to error; small is good, infinite where
            there is none. See `FitConfig.errors` for that of a config's validation.
        cost: ``latency`` (needs the table), ``parameters``, ``macs`` or ``memory``; by default the
            latency with a table, else multiply-adds.
        limits: as those of `best_subnet`.
        size: as that of `best_subnet`; the costs are of this size, batch, device, type and runtime.
        batch: likewise.
        device: likewise.
        dtype: likewise.
        runtime: likewise.
        table: of `latency_table`, for this machine.
        samples: subnets evaluated for the predictor, 10 or more.
        direct: evaluate every subnet that the search looks at, without a predictor.
        sampler: ``evolution``, or what of Optuna proposes in its place: ``tpe``, ``gp`` or
            ``nsga2``. These evaluate directly, as many as evolution would: one after the other, or
            as many at once as a generation has children where another executor is given.
        population: of the search; 100 by default, 16 if direct.
        generations: of the search; 50 by default, 8 if direct.
        verify: predicted subnets evaluated at last.
        seed: of samples and search.
        evaluations: of an earlier search, which are not done again.
        executor: where architectures are evaluated; by default here, one after the other.
        storage: journal of Optuna that gets all evaluations as they come, for `optuna-dashboard`.
        keep: called after each evaluation with all of them.
        report: called as ``report(what, done, total)``.

    Raises:
        ImportError: Optuna is asked for, and not installed.
        ValueError: no supernet, an unknown cost, too few samples, limits out of reach, latency
            without a table, a storage of another search, an error that is no number, or none that
            is finite.

    Example:
        >>> leaves, net, space = vizoo.open_supernet("supernet.safetensors")
        >>> errors = vizoo.FitConfig.read("mine.yaml").errors(leaves, "val/epe")
        >>> front = vizoo.search(net, errors, limits={"parameters": "2M"})
        >>> cheapest = vizoo.nas.extract(net, front.rows[-1].architecture)
    """
    cost = cost or ("macs" if table is None else "latency")
    if cost not in KINDS:
        raise ValueError(f"cost {cost!r} is unknown: choose {', '.join(KINDS)}")
    if proposed := sampler != "evolution":
        installed(sampler)
        direct = True
    if storage is not None:
        installed()
    bounds = checked_limits(limits) if limits else {}
    if table is None and "latency" in (cost, *bounds):
        raise ValueError("latency needs a table of latencies; `latency_table` measures one")
    bench = bench_for(net, table, size, batch, device, dtype, runtime)
    if bench.mixed:
        raise ValueError("a table of mixed precision is for `best_subnet` (`vizoo subnet`) alone")
    space = bench.space
    if not direct and samples < min(FEWEST, space.count()):
        raise ValueError(f"samples {samples}: a predictor takes {FEWEST} or more")
    predictors = cost_predictors(
        bench, table, lambda done, total: report("counting subnets", done, total)
    )
    # Refuses limits out of reach before hours of evaluation.
    kept = constraints(predictors, bounds, within_reach(bench, predictors, bounds))
    evaluations = Evaluations(space, "error", {}) if evaluations is None else evaluations
    costs = predictors[cost]
    keeps = [keep]
    if storage is not None:
        keeps.append(_shown(storage, bench, evaluations, predictors, cost, kept))
    executor = executor or SerialExecutor(evaluate)
    population = population or (16 if direct else 100)
    generations = (8 if direct else 50) if generations is None else generations
    children = population - Settings(seed, population, 0.5, 0.1).survivors

    def errors(architectures: list[Architecture], what: str = "") -> list[float]:
        """Errors of architectures; those that are not known yet are measured and kept."""
        known = evaluations.errors
        new = [item for item in dict.fromkeys(architectures) if item not in known]

        def told(index: int, error: float) -> None:
            known[new[index]] = error
            for tell in keeps:
                tell(evaluations)
            if what:
                report(what, len(known.keys() & new), len(new))

        if new:
            executor.run(new, told)
        return [known[architecture] for architecture in architectures]

    def evolve(error: _Errors) -> list[Architecture]:
        objectives = {"error": error, "cost": lambda chosen: costs.predict(chosen).tolist()}
        settings: dict[str, Any] = {"constraints": kept, "seed": seed, "population": population}
        settings["on_generation"] = lambda step: report(
            "evaluations" if proposed else "generations", step.generation + 1, step.generations + 1
        )
        if proposed:
            settings["at_once"] = 1 if isinstance(executor, SerialExecutor) else children
            settings["evaluations"] = population + generations * children
            result = propose(space, objectives, sampler=sampler, **settings)
        else:
            result = evolve_pareto(space, objectives, generations=generations, **settings)
        return [item.architecture for item in result.front]

    agreement = None
    with as_before(bench.net):
        if direct:
            evolve(errors)
        else:
            agreement = _by_predictions(evaluations, errors, evolve, samples, verify, seed)
    rows, left_out = _front(bench, evaluations, predictors, cost, kept, bounds, report)
    return SearchedFront(rows, evaluations, cost, costs, agreement, left_out)


def _by_predictions(
    evaluations: Evaluations,
    errors: Callable[..., Sequence[float]],
    evolve: Callable[[_Errors], list[Architecture]],
    samples: int,
    verify: int,
    seed: int,
) -> dict[str, Any] | None:
    """Evaluate a sample and what a search by its predictor finds; return how well it predicts."""
    space = evaluations.space
    chosen = [architecture for architecture, _ in plan(space, samples, 0, seed)]
    finite = sum(map(math.isfinite, errors(chosen, "evaluating subnets")))
    told = f"{evaluations.metric}: finite for {finite or 'none'} of {len(chosen)} subnets"
    if not finite:
        raise ValueError(told)
    if len(chosen) == space.count():  # none is left to predict
        return None
    if finite < FEWEST:
        raise ValueError(f"{told}, and a predictor takes {FEWEST}: give more samples")
    predictor = evaluations.predictor(seed, chosen)
    front = evolve(predictor.predict)
    step = max(1, math.ceil(len(front) / max(1, verify)))
    errors(front[::step][:verify], "evaluating the front")
    return predictor.held_out.to_json() if predictor.held_out else None


def _shown(
    storage: str | os.PathLike[str],
    bench: Bench,
    evaluations: Evaluations,
    predictors: Mapping[str, CostRegressor],
    cost: str,
    kept: list[Constraint],
) -> Callable[[Evaluations], None]:
    """Adds evaluations to a study that has those known so far; with the metric's own sign."""
    largest = evaluations.origin.get("mode") == "max"
    conditions = bench.conditions.compared()
    if "latency" not in predictors:  # counts depend on the images alone
        conditions = {"input": conditions["input"]}
    mirror = Mirror(
        storage,
        bench.space,
        {evaluations.metric: "maximize" if largest else "minimize", cost: "minimize"},
        kept,
        {**evaluations.origin, **conditions},
    )

    def show(known: Evaluations) -> None:
        for architecture, error in known.errors.items():
            if architecture not in mirror:
                costs = {kind: round(told(architecture), 4) for kind, told in predictors.items()}
                mirror.add(architecture, (-error if largest else error, costs[cost]), costs)

    show(evaluations)
    return show


def _front(
    bench: Bench,
    evaluations: Evaluations,
    predictors: Mapping[str, CostRegressor],
    cost: str,
    kept: list[Constraint],
    bounds: Mapping[str, float],
    report: _Report,
) -> tuple[list[FrontRow], int]:
    """What no other of the evaluated subnets beats, by exact figures, and how many those kept out.

    Raises:
        ValueError: no subnet keeps to the limits.
    """
    errors = {a: error for a, error in evaluations.errors.items() if math.isfinite(error)}
    if {cost, *bounds} == {"latency"}:  # counts, which take a second each, would decide nothing
        chosen = [a for a in errors if all(limit.satisfied(a) for limit in kept)]
        places = pareto_front([(errors[a], predictors[cost](a)) for a in chosen])
        errors = {chosen[place]: errors[chosen[place]] for place in places}
    within, left_out = [], 0
    for done, (architecture, error) in enumerate(errors.items(), start=1):
        known = {}
        if "latency" in predictors:
            known["latency"] = round(predictors["latency"](architecture), 4)
        row = FrontRow(architecture, error, known | bench.counts(architecture).to_json())
        if all(row.costs[kind] <= bound for kind, bound in bounds.items()):
            within.append(row)
        elif all(limit.satisfied(architecture) for limit in kept):
            left_out += 1
        report("counting what was evaluated", done, len(errors))
    if not within:
        raise ValueError(
            f"none of {len(evaluations.errors)} evaluated subnets keeps to the limits: evaluate "
            "more, by samples and verify, if direct by population and generations"
        )
    front = [within[i] for i in pareto_front([(row.error, row.costs[cost]) for row in within])]
    return sorted(front, key=lambda row: row.error), left_out
