"""What `vizoo subnet` says."""

from __future__ import annotations

from typing import Any

from ..common.quantities import show_joules, show_quantity

_COSTS = {"parameters": "parameters", "macs": "multiply-adds", "memory": "of activations"}


def lines(report: dict[str, Any]) -> str:
    """What the command says without --json."""
    measured = report["measured"]
    known = "" if report["joules"] is None else f"{show_joules(report['joules'])}, by "
    costs = (f"{show_quantity(kind, report[kind])} {name}" for kind, name in _COSTS.items())
    lines = [
        f"{report['file']}: subnet of {report['supernet']}"
        + ("" if report["trained"] else " (random weights: the supernet is not trained)"),
        f"  chosen for the {report['objective']}" if report["objective"] else "  as was asked for",
        f"  {measured['median']:.1f} ms (p10 {measured['p10']:.1f}, p90 {measured['p90']:.1f}) on "
        f"{report['described']}",
        f"  energy: {known}{report['energy']}",
        f"  {', '.join(costs)}",
    ]
    for kind, bound in report["limits"].items():
        value = show_quantity(kind, measured["median"] if kind == "latency" else report[kind])
        predicted = report["predicted"].get(kind)
        told = f", predicted {show_quantity(kind, predicted)}" if predicted is not None else ""
        if kind == "latency" and report["table_moved_from"]:
            told += f" by a table of {report['table_moved_from'].partition(',')[0]}, moved here"
        met = "met" if kind not in report["missed"] else "MISSED"
        lines.append(f"  limit on {kind}: {show_quantity(kind, bound)}, {met} with {value}{told}")
    same = report["difference_to_supernet"]
    lines.append("  equals the supernet" + (f" to {same:.1e}" if same else " bit for bit"))
    lines += _error_lines(report["errors"])
    if report["recalibrated"]:
        lines.append(f"  batch norms estimated on {report['recalibrated']['samples']} samples")
    else:
        lines.append("  batch norms are the supernet's: --recalibrate CONFIG estimates its own")
    return "\n".join(lines)


def _error_lines(errors: dict[str, Any] | None) -> list[str]:
    """What the command says of them."""
    if errors is None:
        return ["  errors are not measured: --evaluate CONFIG|FOLDER does"]
    lines = []
    for name in errors["shown"]:
        before, after, *largest = (
            "-" if (value := errors[whose][when][name]) is None else f"{value:.3g}"
            for whose in ("subnet", "largest")
            for when in ("before", "after")
        )
        lines.append(
            f"  {name} {before}, with batch norms estimated anew {after}; the largest subnet "
            f"{largest[0]} and {largest[1]} ({errors['config']})"
        )
    return lines
