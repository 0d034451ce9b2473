"""What `vizoo rank` writes and says."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import atomic_write

if TYPE_CHECKING:
    from ..nas.space import Architecture, SearchSpace
    from ..nas.tabular import Tabular

__all__ = ["comparisons", "lines", "write_csv"]


def comparisons(
    groups: dict[str, list[Architecture]],
    errors: dict[Architecture, float],
    parameters: dict[Architecture, int],
    table: Tabular | None,
    column: str,
) -> dict[str, Any]:
    """The ranking and the parameters' against the truth, for each group."""
    from ..nas.search.predictor import compare

    worst = max(filter(math.isfinite, errors.values())) + 1
    compared = {}
    for name, group in groups.items():
        if table is None or len(group) < 2:
            continue
        truth = [table.look_up(a, column) for a in group]
        compared[name] = {
            "supernet": compare([-min(errors[a], worst) for a in group], truth).to_json(),
            "parameters": compare([float(parameters[a]) for a in group], truth).to_json(),
        }
    return compared


def write_csv(path: Path, rows: list[dict[str, Any]], space: SearchSpace) -> None:
    """Rank, metric, leaf, parameters, truth where it is known, every choice (empty if unused)."""
    figures = [name for name in rows[0] if name != "architecture"]
    with atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rank", *figures, *space.names])
        for rank, row in enumerate(rows, start=1):
            choices = row["architecture"]["choices"]
            writer.writerow([rank, *(row[f] for f in figures), *(choices[n] for n in space.names)])


def lines(report: dict[str, Any]) -> str:
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
