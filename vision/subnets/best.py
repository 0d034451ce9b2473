"""The best subnet of a supernet that keeps to given limits, cut out without training.

Thousands of architectures are compared by predictions. Of costs that can be counted, such as
parameters, those of the winners are: predictions learn from them, until a winner is known to keep
to the limits. It is extracted and measured. Where it misses a limit, or stays far below the one
that binds, the predicted limit is moved by the ratio observed, between what was met and what was
missed, and the search repeated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from numbers import Integral
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ...common.arguments import checked
from ...common.counts import Counts
from ...common.files import shortened
from ...common.layers import evaluating
from ...common.quantities import KINDS, parse_quantity, unit_of
from ...nas.efficiency.build import plan
from ...nas.efficiency.provenance import Conditions
from ...nas.efficiency.regressor import CostRegressor
from ...nas.efficiency.table import QUANTITIES, LatencyTable
from ...nas.search.constraints import Constraint, Limits, UnreachableError
from ...nas.search.evolution import SearchResult, evolve
from ...nas.search.population import scored
from ...nas.space import Architecture, SearchSpace
from ...nas.supernet import activate, architecture_of, as_before
from ..export import tensors
from ..hub.create import beside_weights
from .bench import Bench, bench_for, load_supernet, settings_of, without_precisions
from .evaluations import evaluations_beside

__all__ = [
    "OWN_TABLE",
    "Subnet",
    "best_subnet",
    "constraints",
    "cost_predictors",
    "cut",
    "most_macs",
    "moved_table",
    "search_within",
    "table_beside",
    "within_reach",
]

_Objective = Callable[[Sequence[Architecture]], Sequence[float]]
_Report = Callable[[int, int], None]
_Shares = Mapping[Architecture, Mapping[str, float]]
_Figures = dict[str, float]  # by quantity
_ROUNDS = 5
_MARGINS = {"latency": 0.02}  # aimed at this much below the limit, since measurements scatter
_SLACK = 0.05  # further below the limit than this is worth another round
_COUNTED = 100  # subnets that predictions are learned from, and as many while searching
_PROMISES = 8  # what predictions promise to meet limits is counted for so many architectures
_DOUBT = 2  # mean errors by which a count is hoped to stay below its prediction
_WINNERS = 20  # of a search's best at most so many are counted
# Subnets measured where no table is given.
OWN_TABLE: Mapping[str, Any] = {"samples": 40, "held_out": 4}
_NAMES = {
    "latency": "latency",
    "parameters": "number of parameters",
    "macs": "number of multiply-adds",
    "memory": "memory of activations",
}


@dataclass(frozen=True)
class Subnet:
    """A subnet that was cut out for limits, and what it costs."""

    network: nn.Module  #: an ordinary network without a trace of the search, on the CPU
    architecture: Architecture  #: which subnet it is
    limits: dict[str, float]  #: quantity to its limit: milliseconds, values, multiply-adds, bytes
    predicted: dict[str, float]  #: what the search took these quantities for
    #: ``parameters``, ``macs`` and ``memory``, counted, and under ``measured`` the milliseconds of
    #: a forward pass: ``median``, ``p10``, ``p90``, ``repetitions``; its ``joules``, and as
    #: ``energy`` who counted them; where nobody could, None and why
    costs: dict[str, Any]
    rounds: list[dict[str, Any]]  #: what each round of the search aimed at, predicted and measured
    difference: float  #: largest difference of its output to the supernet's
    conditions: Conditions  #: under which it was measured

    @property
    def latency(self) -> float:
        """Median milliseconds of a forward pass."""
        return self.costs["measured"]["median"]

    @property
    def missed(self) -> list[str]:
        """The quantities that are over their limit all the same."""
        return [kind for kind, limit in self.limits.items() if figure(self.costs, kind) > limit]


@checked("predictors", "seed", "report", population=4, generations=0)
def best_subnet(
    net: str | os.PathLike[str] | nn.Module | Bench,
    limits: Mapping[str, float | str],
    *,
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str | None = None,
    table: LatencyTable | None = None,
    objective: _Objective | None = None,
    predictors: Mapping[str, CostRegressor] | None = None,
    seed: int = 0,
    population: int = 64,
    generations: int = 30,
    rounds: int = _ROUNDS,
    report: _Report = lambda done, total: None,
) -> Subnet:
    """Cut the best subnet that keeps to limits out of a trained supernet, without training.

    Args:
        net: the supernet, by the name of its weights or their file; or as a network on the CPU; or
            the bench that it is measured on. What lies beside weights is used: a latency table of
            another machine, scaled by what one subnet takes here, and evaluations of subnets.
        limits: of ``latency`` (milliseconds, or ``"30ms"``), ``parameters``, ``macs`` and
            ``memory`` of activations (bytes) any number.
        size: (height, width) of the images; by default the table's, or 288x576.
        batch: images at once; by default the table's, or one.
        device: ``cpu``, ``cuda``, ``cuda:1`` …; by default the table's, or the CPU with as many
            threads as this process has.
        dtype: see `latency_table`; by default the table's, or ``float32``. In ``int8`` a table's
            parts stay in float, without one none.
        runtime: likewise; by default the table's, or ``torch``.
        table: of `latency_table`, for this machine; by default a small one is measured where the
            latency is limited. With one of mixed precision it is searched, too, which parts are
            in int8; what is in float is said by the conditions of the result.
        objective: what is minimised, of architectures; by default the error predicted from
            evaluations beside the weights, without these the most multiply-adds win: capacity
            stands in for accuracy, which nobody has measured.
        predictors: of `cost_predictors`, in place of a table.
        seed: of the search.
        population: of the search.
        generations: of the search, each time it is called.
        rounds: at most so many subnets are measured.
        report: called as ``report(done, total)`` while subnets are measured or counted.

    Returns:
        The subnet, which misses a limit only where none that was measured keeps it.

    Raises:
        ValueError: no supernet, no or an unknown limit, one that no subnet keeps to, no round, or
            a table of something else.

    Example:
        >>> subnet = vizoo.best_subnet("easnet_scaled", {"latency": "60ms"}, size=(540, 960))
        >>> vizoo.save_weights(subnet.network, "small.safetensors")
    """
    bounds = checked_limits(limits)
    if not isinstance(rounds, Integral) or rounds < 1:
        raise ValueError(f"rounds {rounds}: give a whole number, 1 or more")
    if predictors is not None and (lacking := [kind for kind in bounds if kind not in predictors]):
        raise ValueError(f"predictors: none of {', '.join(lacking)}; give those of cost_predictors")
    space = None
    if isinstance(net, (str, os.PathLike)):
        source = os.fspath(net)
        net, space, _ = load_supernet(source)
        if objective is None and (evaluations := evaluations_beside(source, space)) is not None:
            objective, _ = evaluations.objective(seed)
        if table is None and predictors is None and "latency" in bounds:
            near = table_beside(source, net, space, size, batch, device, dtype, runtime)
            if near is not None:
                net = Bench.here(net, space, **settings_of(near))
                table = moved_table(near, net)
                size = batch = device = dtype = runtime = None
    bench = bench_for(net, table, size, batch, device, dtype, runtime, space)
    if predictors is None:
        if table is None and "latency" in bounds:
            table = bench.complete(bench.table(), report=report, **OWN_TABLE)
        predictors = cost_predictors(bench, table, report)
    how = {"seed": seed, "population": population, "generations": generations, "rounds": rounds}
    with as_before(bench.net):
        architecture, costs, told = search_within(bench, predictors, objective, bounds, **how)
    own = {kind: figure(costs, kind) for kind in bounds}
    taken = next(row["predicted"] for row in told if row["found"] == own)
    predicted = {kind: round(value, 4) for kind, value in taken.items()}
    return cut(bench, architecture, bounds, predicted, costs, told)


def cut(
    bench: Bench,
    architecture: Architecture,
    limits: dict[str, float],
    predicted: dict[str, float],
    costs: dict[str, Any],
    rounds: list[dict[str, Any]],
) -> Subnet:
    """The subnet of an architecture, compared with the supernet that runs as it.

    Raises:
        ValueError: their outputs differ by more than rounding.
    """
    subnet = bench.network(architecture)
    vars(subnet).pop("reach", None)  # was measured of the largest; small subnets reach less far
    inputs = bench.inputs("cpu")
    alone = bench.alone(architecture)
    with as_before(bench.net), torch.inference_mode(), evaluating(bench.net):
        activate(bench.net, alone)
        wanted, gotten = (tensors(net(*inputs)) for net in (bench.net, subnet.eval()))
    pairs = zip(wanted, gotten, strict=True)
    gaps = [(one.double() - other.double()).abs().max() for one, other in pairs]
    difference = float(torch.stack(gaps).max())
    if not difference <= 1e-4 * max(float(one.double().abs().max()) for one in wanted):
        raise ValueError(
            f"the extracted network differs from the supernet by up to {difference:g}: "
            "a fault of the supernet's layers; please report it"
        )
    conditions = bench.under(architecture)
    there = {name for name, part in subnet.named_children() if any(True for _ in part.parameters())}
    kept = tuple(part for part in conditions.float_parts if part in there)
    conditions = replace(conditions, float_parts=kept)
    return Subnet(subnet, alone, limits, predicted, costs, rounds, difference, conditions)


def checked_limits(limits: Mapping[str, float | str]) -> dict[str, float]:
    """Limits as numbers.

    Raises:
        ValueError: no mapping, none, an unknown quantity, or a text that is none of its quantity.
    """
    if not isinstance(limits, Mapping):
        raise ValueError(f"limits {shortened(limits)}: give a mapping, such as {{'macs': '2G'}}")
    unknown = [kind for kind in limits if kind not in KINDS]
    if unknown or not limits:
        what = f"unknown limit {unknown[0]!r}" if unknown else "no limit"
        meant = get_close_matches(str(unknown[0]), KINDS, n=1) if unknown else []
        hint = f"; did you mean {meant[0]!r}?" if meant else ""
        raise ValueError(f"{what}: give some of {', '.join(KINDS)}{hint}")
    bounds = {}
    for kind, value in limits.items():
        try:
            bound = parse_quantity(kind, value, kind) if isinstance(value, str) else float(value)
        except TypeError:
            message = f"{kind} {shortened(value)}: give a number, or a text such as '2G'"
            raise ValueError(message) from None
        if not 0 < bound < math.inf:
            raise ValueError(f"{kind} {bound:g}: must be more than 0, and finite")
        bounds[kind] = bound
    return bounds


def constraints(
    predictors: Mapping[str, Callable[[Architecture], float]],
    bounds: Mapping[str, float],
    known: _Shares = MappingProxyType({}),
) -> list[Constraint]:
    """What a search has to keep to: predictions, but for shares of the bounds that are known."""
    kept = []
    for kind, bound in bounds.items():
        size, unit = unit_of(kind, bound)
        limit = bound / size
        exact = {a: shares[kind] * limit for a, shares in known.items() if kind in shares}
        cost = partial(_cost, predictors[kind], size, exact)
        kept.append(Constraint(_NAMES[kind], cost, limit, unit))
    return kept


def _cost(
    predict: Callable[[Architecture], float],
    size: float,
    exact: Mapping[Architecture, float],
    architecture: Architecture,
) -> float:
    return exact[architecture] if architecture in exact else predict(architecture) / size


def within_reach(
    bench: Bench, predictors: Mapping[str, CostRegressor], bounds: Mapping[str, float]
) -> dict[Architecture, dict[str, float]]:
    """Refuse limits out of reach, counted ones by the exact figures of what comes nearest.

    After a few architectures that were predicted to come near, predictions decide.

    Returns:
        Architectures to their exact counts as shares of the limits, the smallest one among them.

    Raises:
        UnreachableError: no architecture meets the limits.
    """
    counted = [kind for kind in bounds if kind != "latency"]
    known: dict[Architecture, dict[str, float]] = {}
    nearest = bench.space.smallest()
    while True:
        figures = bench.counts(nearest).to_json() if counted else {}
        known[nearest] = {kind: figures[kind] / bounds[kind] for kind in counted}
        enough = len(known) == _PROMISES
        try:
            nearest = Limits(bench.space, constraints(predictors, bounds, known)).refuge()
        except UnreachableError as error:
            nearest = error.architecture
            if enough or nearest in known:
                raise
        else:
            if enough or nearest in known:
                return known


def cost_predictors(
    bench: Bench, table: LatencyTable | None, report: _Report = lambda done, total: None
) -> dict[str, CostRegressor]:
    """Predictors of all quantities from a table, else of all but latency from counting.

    Counting takes a fraction of a second for each of a hundred subnets.
    """
    if table is not None:
        return {kind: table.regressor(kind) for kind in QUANTITIES}
    chosen = [architecture for architecture, _ in plan(bench.space, _COUNTED, 0, 0)]
    counted = []
    for done, architecture in enumerate(chosen, start=1):
        counted.append(bench.counts(architecture))
        report(done, len(chosen))
    return {
        kind: CostRegressor.fit(bench.space, chosen, [getattr(counts, kind) for counts in counted])
        for kind in ("parameters", "macs", "memory")
    }


def most_macs(
    predictors: Mapping[str, CostRegressor],
    counts: Mapping[Architecture, Counts] = MappingProxyType({}),
) -> _Objective:
    """The objective that prefers capacity, since nobody has measured accuracy.

    Multiply-adds are those of `counts` where an architecture is among them, else predicted.
    """

    def objective(architectures: Sequence[Architecture]) -> list[float]:
        predicted = predictors["macs"].predict(architectures).tolist()
        pairs = zip(architectures, predicted, strict=True)
        return [-float(counts[a].macs if a in counts else macs) for a, macs in pairs]

    return objective


def table_beside(
    source: str,
    net: nn.Module,
    space: SearchSpace,
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str | None = None,
    mixed: bool = False,
) -> LatencyTable | None:
    """The complete latency table that lies beside a supernet's weights, if it serves.

    That is NAME.RUNTIME.DTYPE.latency.json, else NAME.RUNTIME.latency.json, else NAME.latency.json.
    The source is what `load_supernet` took, network and space what it gave. The table has to be of
    the size, (height, width), None for any, and of the other conditions, None for one image, on
    ``cpu``, in ``float32``, by ``torch``; and of mixed precision, if that is asked for.

    Raises:
        ValueError: the file there is damaged.
    """
    dtype, runtime = dtype or "float32", runtime or "torch"
    kinds = f".{runtime}.{dtype}", f".{runtime}", ""
    paths = [beside_weights(source, f"{kind}.latency.json") for kind in kinds]
    path = next((path for path in paths if path is not None and path.is_file()), None)
    if path is None:
        return None
    table = LatencyTable.load(path)
    same = table.model == architecture_of(net)
    own = table.conditions
    there = (own.height, own.width), own.batch, own.device, own.dtype, own.runtime
    asked = size or there[0], batch or 1, device or "cpu", dtype, runtime
    serves = same and there == asked and table.complete and (table.mixed or not mixed)
    return table if serves and without_precisions(table.space, table.mixed).holds(space) else None


def moved_table(table: LatencyTable, bench: Bench) -> LatencyTable:
    """A table of another machine, scaled by what its reference subnet takes on this one."""
    costs = bench.costs(bench.space.smallest())
    return table.moved(bench.conditions, costs["measured"]["median"])


def search_within(
    bench: Bench,
    predictors: Mapping[str, CostRegressor],
    objective: _Objective | None,
    bounds: Mapping[str, float],
    *,
    seed: int = 0,
    population: int = 64,
    generations: int = 30,
    rounds: int = _ROUNDS,
) -> tuple[Architecture, dict[str, Any], list[dict[str, Any]]]:
    """The best architecture whose true costs keep to the limits, else the one that comes nearest.

    The objective, by default `most_macs`, is minimised on the bench under `bounds`, quantity to
    limit; at most `rounds` subnets are measured. `evolve` gets the other arguments.

    Returns:
        The architecture, its costs, and what each round aimed at and measured.
    """
    known = within_reach(bench, predictors, bounds)
    predictors = dict(predictors)
    counts = {a: bench.counts(a) for a, shares in known.items() if shares}
    given, objective = objective, objective or most_macs(predictors, counts)
    if bench.mixed:
        objective = _raised_by_int8(bench, objective, alone=given is not None)
    search = partial(
        evolve, bench.space, objective, seed=seed, population=population, generations=generations
    )
    aims = {kind: bound * (1 - _MARGINS.get(kind, 0.0)) for kind, bound in bounds.items()}
    try:
        Limits(bench.space, constraints(predictors, aims, known)).refuge()
    except UnreachableError:  # a limit within reach stays so, whatever the margin
        aims = dict(bounds)
    met, missed = dict.fromkeys(bounds, 0.0), dict.fromkeys(bounds, math.inf)  # the last such aims
    measured: dict[Architecture, dict[str, Any]] = {}
    told: list[dict[str, Any]] = []
    for _ in range(rounds):
        winner = _winner(bench, search, predictors, objective, bounds, aims, known, counts)
        predicted = {kind: predictors[kind](winner) for kind in bounds}
        again = winner in measured
        if not again:
            measured[winner] = costs = bench.costs(winner)
            actual = {kind: figure(costs, kind) for kind in bounds}
            told.append({"aimed_at": dict(aims), "predicted": predicted, "found": actual})
            known[winner] = {kind: actual[kind] / bound for kind, bound in bounds.items()}
        worst = max(known[winner].values())
        if again and worst > 1 or 1 - _SLACK <= worst <= 1:
            break
        _move_aims(aims, met, missed, predicted, known[winner])
        if math.inf in aims.values():  # the best that predictions allow, and it is met
            break

    def order(architecture: Architecture) -> tuple[float, ...]:
        return max(1.0, *known[architecture].values()), *scored([objective], [architecture])[0]

    best = min(measured, key=order)
    return best, measured[best], told


def _raised_by_int8(bench: Bench, objective: _Objective, alone: bool) -> _Objective:
    """An objective raised by what int8 costs; it is asked about architectures alone, or whole."""

    def raised(architectures: Sequence[Architecture]) -> list[float]:
        asked = [bench.alone(a) for a in architectures] if alone else architectures
        pairs = zip(architectures, objective(asked), strict=True)
        factors = [(score, 1 + bench.growth(architecture)) for architecture, score in pairs]
        return [score * factor if score > 0 else score / factor for score, factor in factors]

    return raised


def _move_aims(
    aims: _Figures, met: _Figures, missed: _Figures, predicted: _Figures, shares: _Figures
) -> None:
    """Move those that were missed or, where all are met, that of the limit which binds.

    An aim moves by the ratio of what was `predicted` to the limit's share that was measured, or, if
    that is not between the last aim `met` and the last one `missed`, to their middle.
    """
    worst = max(shares.values())
    for kind, share in shares.items():
        if share > 1:
            missed[kind] = aims[kind]
        elif share == worst:
            met[kind] = aims[kind]
        else:
            continue
        aim = (1 - _MARGINS.get(kind, 0.001)) * predicted[kind] / share if share else 0.0
        between = met[kind] < aim < missed[kind]
        aims[kind] = aim if between else (met[kind] + missed[kind]) / 2


def _winner(
    bench: Bench,
    search: Callable[..., SearchResult],
    predictors: dict[str, CostRegressor],
    objective: _Objective,
    bounds: Mapping[str, float],
    aims: Mapping[str, float],
    known: dict[Architecture, dict[str, float]],
    counts: dict[Architecture, Counts],
) -> Architecture:
    """The best architecture that is found within the aims, by counts where these are bounded.

    What is counted for it is added to `known` and `counts`, and `predictors` learn from it.
    """
    counted = [kind for kind in bounds if kind != "latency"]
    hopeful = False  # once the best by predictions is counted: what they put just above a limit
    while True:
        costs: Mapping[str, Callable[[Architecture], float]] = predictors
        if hopeful:
            costs = {**predictors, **{kind: _hopeful(predictors[kind]) for kind in counted}}
        try:
            result = search(constraints=constraints(costs, aims, known))
        except UnreachableError:  # predictions are wrong by more than the margin
            return bench.space.smallest()
        ranked = sorted(result.evaluated, key=lambda item: item.scores)
        best = [item.architecture for item in ranked[:_WINNERS]]
        if not counted or hopeful and best[0] in known:
            return best[0]
        if best[0] in known:
            hopeful = True
            continue
        more: dict[Architecture, Counts] = {}
        for architecture in best:
            if architecture in known:
                break
            more[architecture] = figures = bench.counts(architecture)
            known[architecture] = {k: getattr(figures, k) / bounds[k] for k in counted}
            if max(known[architecture].values()) <= 1:
                break
        counts |= more
        if len(counts) >= _COUNTED:
            limits = Limits(bench.space, constraints(predictors, aims, known))
            within = [architecture for architecture in counts if limits.satisfied(architecture)]
            return min(within or best[:1], key=lambda a: scored([objective], [a]))
        for kind in predictors.keys() - {"latency"}:
            own = {a: getattr(figures, kind) for a, figures in more.items()}
            predictors[kind] = predictors[kind].refined(own)


def _hopeful(predictor: CostRegressor) -> Callable[[Architecture], float]:
    """A cost that is as far below the prediction as this may be off: counting decides then."""
    return lambda architecture: predictor(architecture) / (1 + _DOUBT * predictor.error)


def figure(costs: Mapping[str, Any], kind: str) -> float:
    """One quantity of a subnet's costs."""
    return costs["measured"]["median"] if kind == "latency" else costs[kind]
