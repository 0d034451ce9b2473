"""What `vizoo search` and `vizoo rank` write and say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import atomic_write, write_csv

if TYPE_CHECKING:
    from ..nas.space import Architecture
    from ..nas.tabular import Tabular
    from ..vision.subnets.front import SearchedFront
    from ..vision.subnets.ranking import Ranked

UNITS = {
    "latency": (1.0, "latency [ms]"),
    "parameters": (1e6, "parameters [millions]"),
    "macs": (1e9, "multiply-adds [billions]"),
    "memory": (1e6, "activations [MB]"),
}
"""Of costs: what they are divided by, and what they are called then."""


def write_table(path: Path, rows: list[dict[str, Any]], choices: Iterable[str]) -> None:
    """Figures of subnets, and each of their choices, empty where it is unused."""
    figures, choices = [name for name in rows[0] if name != "architecture"], list(choices)
    cells = (
        [*(row[f] for f in figures), *(row["architecture"]["choices"][c] for c in choices)]
        for row in rows
    )
    write_csv(path, [*figures, *choices], cells)


def metric_of(report: dict[str, Any], error: float) -> float:
    """The metric that an error stands for."""
    return -error if report["mode"] == "max" else error


def write_picture(path: Path, report: dict[str, Any], searched: SearchedFront) -> None:
    """The front of `vizoo search`, and the other subnets that were evaluated."""
    from matplotlib.figure import Figure

    rows, cost = report["front"][::-1], report["cost"]
    size, label = UNITS[cost]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    front = {row.architecture for row in searched.rows}
    others = {
        a: error
        for a, error in searched.evaluations.errors.items()
        if math.isfinite(error) and a not in front
    }
    if others:
        axes.scatter(
            searched.costs.predict(list(others)) / size,
            [metric_of(report, error) for error in others.values()],
            s=14,
            color="0.7",
            label=f"{len(others)} others evaluated, at predicted costs",
        )
    axes.step(
        [row[cost] / size for row in rows],
        [metric_of(report, row["error"]) for row in rows],
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


def comparisons(
    groups: dict[str, list[Architecture]], ranking: list[Ranked], table: Tabular | None, column: str
) -> dict[str, Any]:
    """The ranking and the parameters' against the truth, for each group."""
    from ..nas.search.predictor import compare

    known = {row.architecture: row for row in ranking}
    worst = max(row.error for row in ranking if math.isfinite(row.error)) + 1
    compared = {}
    for name, group in groups.items():
        if table is None or len(group) < 2:
            continue
        truth = [table.look_up(a, column) for a in group]
        compared[name] = {
            "supernet": compare([-min(known[a].error, worst) for a in group], truth).to_json(),
            "parameters": compare([float(known[a].parameters) for a in group], truth).to_json(),
        }
    return compared


def ranking_lines(report: dict[str, Any]) -> str:
    """What `vizoo rank` says."""
    metric = report["metric"]
    good = "large" if report["mode"] == "max" else "small"
    lines = [
        f"{report['out']}: {report['evaluated']} subnets ranked by {metric} ({good} is good), "
        f"{report['seconds']:.0f} s; the best has {report['best'][metric]:.5g}"
    ]
    if broken := report["not_finite"]:
        first = ", ".join(f"{k} {v}" for k, v in broken[0]["choices"].items())
        lines.append(f"  {len(broken)} without a finite {metric} come last, such as: {first}")
    for name, both in report["comparisons"].items():
        lines.append(
            f"  {name} ({both['supernet']['count']}), against {report['truth']['column']}:"
        )
        for who, figures in both.items():
            numbers = [f"{key} {_shown(figures[key])}" for key in ("kendall", "spearman")]
            numbers += [f"precision@{k} {v:.2f}" for k, v in figures["precision"].items()]
            lines.append(f"    {who:<12} {', '.join(numbers)}")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
