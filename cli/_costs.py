"""Limits as typed, and what predicts a subnet's costs while a search looks at thousands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..common.progress import progress_bar
from ._quantities import parse_quantity, unit_of

if TYPE_CHECKING:
    from ..nas.efficiency.regressor import CostRegressor
    from ..nas.efficiency.table import LatencyTable
    from ..nas.search.constraints import Constraint
    from ..nas.space import Architecture
    from ._supernets import Bench

__all__ = ["add_limits", "constraints", "cost_predictors", "limits", "open_table"]

_COUNTED = 100
_NAMES = {
    "latency": "latency",
    "parameters": "number of parameters",
    "macs": "number of multiply-adds",
    "memory": "memory of activations",
}
_OPTIONS = {
    "latency": ("--max-latency", "40ms"),
    "parameters": ("--max-params", "2M"),
    "macs": ("--max-macs", "10G"),
    "memory": ("--max-memory", "512MB"),
}


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add --max-latency, --max-params, --max-macs and --max-memory."""
    what = {
        "latency": "of one forward pass under the conditions below",
        "parameters": "values in parameters",
        "macs": "multiply-adds of one forward pass",
        "memory": "activations alive at once; weights are not among them",
    }
    for kind, (option, example) in _OPTIONS.items():
        parser.add_argument(
            option,
            dest=kind,
            metavar=example.upper(),
            help=f"limit, such as {example}: {what[kind]}",
        )


def limits(args: argparse.Namespace) -> dict[str, float]:
    """Quantity to its limit, for those that were given."""
    return {
        kind: parse_quantity(kind, text, option)
        for kind, (option, _) in _OPTIONS.items()
        if (text := getattr(args, kind)) is not None
    }


def constraints(
    predictors: Mapping[str, Callable[[Architecture], float]], bounds: Mapping[str, float]
) -> list[Constraint]:
    """What a search has to keep to."""
    from ..nas.search.constraints import Constraint

    found = []
    for kind, bound in bounds.items():
        size, unit = unit_of(kind, bound)
        found.append(
            Constraint(
                _NAMES[kind],
                lambda architecture, kind=kind, size=size: predictors[kind](architecture) / size,
                bound / size,
                unit,
            )
        )
    return found


def open_table(args: argparse.Namespace) -> LatencyTable | None:
    """The table of --table, if there is one."""
    from ..nas.efficiency.table import LatencyTable

    return LatencyTable.load(args.table) if args.table else None


def cost_predictors(bench: Bench, table: LatencyTable | None) -> dict[str, CostRegressor]:
    """Predictors of all quantities from a table, else of all but latency from counting.

    Counting takes a fraction of a second for each of a hundred subnets.
    """
    from ..common.counts import count, on_meta
    from ..nas.efficiency.build import plan
    from ..nas.efficiency.regressor import CostRegressor
    from ..nas.efficiency.table import QUANTITIES
    from ..nas.supernet import extract

    if table is not None:
        return {kind: table.regressor(kind) for kind in QUANTITIES}
    shapes, inputs = on_meta(bench.net), bench.inputs("meta")
    chosen = [architecture for architecture, _ in plan(bench.space, _COUNTED, 0, 0)]
    counted = []
    with progress_bar("counting subnets") as tell:
        for done, architecture in enumerate(chosen, start=1):
            counted.append(count(extract(shapes, architecture), *inputs))
            tell(done, len(chosen))
    return {
        kind: CostRegressor.fit(bench.space, chosen, [getattr(counts, kind) for counts in counted])
        for kind in ("parameters", "macs", "memory")
    }
