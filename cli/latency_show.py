"""`vizoo latency show`: what a latency table says, and how well it predicts."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..common.files import few
from ..common.quantities import show_joules, show_quantity

if TYPE_CHECKING:
    from ..nas.efficiency.table import LatencyTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a table of `vizoo latency build`")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Print the table's provenance, ranges, errors and dearest operators."""
    from ..nas.efficiency.table import LatencyTable

    report = summary(LatencyTable.load(args.file))
    print(json.dumps(report, indent=2) if args.json else "\n".join(lines(report)))
    return 0


def summary(table: LatencyTable) -> dict[str, Any]:
    """What there is to say of a table, as plain values."""
    from ..nas.efficiency.table import QUANTITIES

    samples = table.samples
    ranges = {
        quantity: [min(values), max(values)]
        for quantity in QUANTITIES
        if (values := [table.of(sample, quantity) for sample in samples])
    }
    used = [sample.joules for sample in samples if sample.joules is not None]
    dearest = sorted(table.entries.items(), key=lambda row: -(row[1] or 0.0))
    errors = table.errors() if table.complete else {}
    return {
        "model": table.model,
        "conditions": table.conditions.to_json(),
        "described": str(table.conditions),
        "software": table.software,
        "complete": table.complete,
        "planned": table.planned,
        "samples": len(table.seen),
        "held_out": len(table.held_out),
        "ranges": ranges,
        "joules": [min(used), max(used)] if used else None,
        "energy": table.energy,
        "mixed": table.mixed,
        "errors": {name: value.to_json() for name, value in errors.items()},
        "operators": len(table.entries),
        "not_measured_alone": [key for key, value in table.entries.items() if value is None],
        "dearest_operators": dict(dearest[:8]),
    }


def lines(report: dict[str, Any]) -> list[str]:
    """A summary for people."""
    facts, runtime = report["software"], report["conditions"]["runtime"]
    names = dict.fromkeys(("torch", "cuda", runtime))
    versions = ", ".join(f"{name} {facts[name]}" for name in names if name in facts)
    lines = [
        f"latency of subnets of {report['model'].get('name')}",
        f"  on {report['described']}",
        f"  {facts.get('date', 'date unknown')}, {versions}",
        f"  {report['samples']} subnets, {report['held_out']} more held out"
        + ("" if report["complete"] else f" of {report['planned']} planned: unfinished"),
    ]
    for part, growth in report["mixed"].items():
        lines.append(f"  {part} in int8 or float; int8 raises the error by {growth:.1%}")
    for quantity, (low, high) in report["ranges"].items():
        low, high = show_quantity(quantity, low), show_quantity(quantity, high)
        lines.append(f"  {quantity:<10} {low} to {high}")
    used = [show_joules(value) for value in report["joules"] or ()]
    lines.append(f"  {'energy':<10} {' to '.join(used)}{', by ' if used else ''}{report['energy']}")
    names = {"regressor": "whole networks", "operators": "sum of operators"}
    for name, row in report["errors"].items():
        rank = "unknown" if row["spearman"] is None else f"{row['spearman']:.3f}"
        lines.append(
            f"  predicted from {names[name]}: Spearman {rank}, "
            f"relative error {row['median_relative_error']:.1%} (median)"
        )
    if report["operators"]:
        lines.append(f"  {report['operators']} operators; the dearest:")
    for key, value in report["dearest_operators"].items():
        shown = key if len(key) <= 80 else f"{key[:79]}…"
        lines.append(f"    {value or 0.0:9.3f} ms  {shown}")
    if left := report["not_measured_alone"]:
        lines.append(f"  not measured alone and counted as nothing: {few(left)}")
    return lines
