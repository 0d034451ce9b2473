"""The table and the picture of a front that `vizoo search` writes."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import atomic_write

if TYPE_CHECKING:
    from ..vision.subnets.front import SearchedFront

__all__ = ["UNITS", "metric_of", "write_csv", "write_picture"]

UNITS = {
    "latency": (1.0, "latency, ms"),
    "parameters": (1e6, "parameters, millions"),
    "macs": (1e9, "multiply-adds, billions"),
    "memory": (1e6, "activations, MB"),
}


def metric_of(report: dict[str, Any], error: float) -> float:
    """The metric that an error stands for."""
    return -error if report["mode"] == "max" else error


def write_csv(path: Path, report: dict[str, Any]) -> None:
    """Metric, costs (milliseconds, values, bytes), and every choice, empty where it is unused."""
    rows = report["front"]
    names = list(rows[0]["architecture"]["choices"])
    costs = [name for name in rows[0] if name not in ("error", "architecture")]
    with atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([report["metric"], *costs, *names])
        for row in rows:
            choices = row["architecture"]["choices"]
            figures = [metric_of(report, row["error"]), *(row[c] for c in costs)]
            writer.writerow([*figures, *(choices[n] for n in names)])


def write_picture(path: Path, report: dict[str, Any], searched: SearchedFront) -> None:
    from matplotlib.figure import Figure

    rows, cost = report["front"][::-1], report["cost"]
    size, label = UNITS[cost]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    measured = {
        a: error for a, error in searched.evaluations.errors.items() if math.isfinite(error)
    }
    axes.scatter(
        searched.costs.predict(list(measured)) / size,
        [metric_of(report, error) for error in measured.values()],
        s=14,
        color="0.7",
        label=f"{len(measured)} evaluated",
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
