"""Limits as typed, and the latency table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..common.quantities import parse_quantity

if TYPE_CHECKING:
    from ..nas.efficiency.table import LatencyTable

__all__ = ["add_limits", "limits", "open_table"]

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


def open_table(args: argparse.Namespace) -> LatencyTable | None:
    """The table of --table, if there is one."""
    from ..nas.efficiency.table import LatencyTable

    return LatencyTable.load(args.table) if args.table else None
