"""`vizoo models`: what there is, how large, how costly, with which weights."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ._sizes import add_size, parse_size

__all__ = ["add_arguments", "describe", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "pattern",
        nargs="?",
        default="*",
        help="shell pattern on names ('fadnet_plus_*') or on task/name ('stereo/*')",
    )
    parser.add_argument(
        "--pretrained", action="store_true", help="only models whose trained weights are here"
    )
    add_size(parser, "576x960", "size at which multiply-adds are counted")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        ValueError: no model matches the pattern.
    """
    from ..hub.registry import list_models

    height, width = parse_size(args.size)
    names = list_models(args.pattern, pretrained=args.pretrained)
    if not names:
        which = "model with trained weights" if args.pretrained else "model"
        raise ValueError(
            f"no {which} matches {args.pattern!r}; there are {', '.join(list_models())}"
        )
    rows = [describe(name, height, width) for name in names]
    rows.sort(key=lambda row: (row["task"], row["macs"]))
    print(json.dumps(rows, indent=2) if args.json else _table(rows, f"{height}x{width}"))
    return 0


def describe(name: str, height: int, width: int) -> dict[str, Any]:
    """One row: name, task, parameters, multiply-adds at a size, and weights.

    Nothing is computed or allocated: the network is built on the meta device.
    """
    import torch

    from ..complexity import count_macs, count_parameters, example_inputs
    from ..hub.registry import create_model, model_info

    info = model_info(name)
    with torch.device("meta"):
        net = create_model(name)
    inputs = example_inputs(net, height, width, device="meta")
    return {
        "name": name,
        "task": info.task,
        "parameters": count_parameters(net),
        "macs": count_macs(net, *inputs),
        "size": [height, width],
        "arguments": list(info.arguments),
        "weights": info.weights,
    }


def _table(rows: list[dict[str, Any]], size: str) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=f"GMAC: multiply-adds of convolutions at {size}, batch 1, in 10^9")
    table.add_column("model", no_wrap=True)
    table.add_column("task")
    table.add_column("parameters", justify="right")
    table.add_column("GMAC", justify="right")
    table.add_column("weights")
    for row in rows:
        table.add_row(
            row["name"],
            row["task"],
            f"{row['parameters']:,}",
            f"{row['macs'] / 1e9:.2f}",
            row["weights"] or "-",
        )
    console = Console()
    with console.capture() as text:
        console.print(table)
    return text.get().rstrip()
