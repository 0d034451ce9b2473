"""`vizoo models`: what there is, how large, how costly, with which weights."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ._work import add_size, parse_size

if TYPE_CHECKING:
    from ..vision.hub.record import WeightsRecord
    from ..vision.hub.registry import ModelEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "pattern",
        nargs="?",
        default="*",
        help="shell pattern on names ('fadnet_plus_*') or on task/name ('stereo/*'); NAME.TAG "
        "shows all that is known of these weights",
    )
    parser.add_argument(
        "--pretrained", action="store_true", help="only models that have trained weights"
    )
    parser.add_argument(
        "--fetch", action="store_true", help="download the weights, for use without a network later"
    )
    add_size(parser, "576x960", "size at which multiply-adds are counted")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the table, or the record of ``NAME.TAG``."""
    from ..vision.hub.costs import registered_costs
    from ..vision.hub.download import fetch, find_local
    from ..vision.hub.registry import list_models, model_info, refusal

    height, width = parse_size(args.size)
    tagged = list_models(args.pattern, pretrained=True)
    names = list_models(args.pattern)
    if args.pretrained or (tagged and not names):
        names = list(dict.fromkeys(model_info(name).name for name in tagged))
    if not names:
        if not (set("*?[") & set(args.pattern) or list_models(args.pattern)):
            raise ValueError(refusal(args.pattern))
        which = "model with trained weights" if args.pretrained else "model"
        known = list_models(pretrained=args.pretrained) or ["none"]
        raise ValueError(f"no {which} matches {args.pattern!r}; there are {', '.join(known)}")
    if args.fetch:
        if not tagged:
            raise ValueError(f"--fetch: no model that matches {args.pattern!r} has trained weights")
        fetched = 0
        for name in tagged:
            record = cast("WeightsRecord", model_info(name).record)
            fetched += find_local(record) is None
            fetch(record, name)
        told = f"{fetched} downloaded, {len(tagged) - fetched} here before"
        print(f"vizoo: trained weights: {told}", file=sys.stderr)
    if tagged == [args.pattern]:
        row = _describe_weights(model_info(args.pattern))
        print(json.dumps(row, indent=2) if args.json else _lines(row))
        return 0
    costs = registered_costs(names, height, width)
    rows = [_row(model_info(name), costs[name], (height, width)) for name in names]
    rows.sort(key=lambda row: (row["task"], row["macs"]))
    print(json.dumps(rows, indent=2) if args.json else _table(rows, f"{height}x{width}"))
    return 0


def _row(info: ModelEntry, costs: Sequence[int], size: Sequence[int]) -> dict[str, Any]:
    """What is known of a network; costs are parameters, and multiply-adds at that size."""
    return {
        "name": info.name,
        "task": info.task,
        "parameters": costs[0],
        "macs": costs[1],
        "size": [*size],
        "arguments": list(info.arguments),
        "weights": [_describe_weights(replace(info, tag=tag)) for tag in info.weights],
    }


def _describe_weights(info: ModelEntry) -> dict[str, Any]:
    """What is known of one set of weights; no ``path`` where the file would be downloaded."""
    from ..vision.hub.download import find_local

    record = cast("WeightsRecord", info.record)
    path = find_local(record)
    return {
        "name": f"{info.name}.{info.tag}",
        "model": info.name,
        "tag": info.tag,
        "task": info.task,
        "path": None if path is None else str(path),
        "record": record.to_json(),
    }


def _lines(row: dict[str, Any]) -> str:
    record = row["record"]
    lines = [f"{row['name']}: {row['task']}, {record['size'] / 1e6:.1f} MB, {record['licence']}"]
    lines += [f"  trained on    {record['trained_on']}"]
    for data, values in record.get("metrics", {}).items():
        scores = ", ".join(f"{name} {value:g}" for name, value in values.items())
        lines.append(f"  {data:<12}  {scores}")
    titles = {"command": "measured by", "training": "trained by"}
    for key in ("command", "training", "origin", "input", "architecture", "subnet"):
        if key in record:
            value, title = record[key], titles.get(key, key)
            lines.append(f"  {title:<12}  {value if isinstance(value, str) else json.dumps(value)}")
    if "reach" in record:
        lines.append(f"  {'reach':<12}  disparities up to {record['reach']} px")
    lines += [f"  {'source':<12}  {source}" for source in record["sources"]]
    lines.append(f"  {'SHA-256':<12}  {record['sha256']}")
    lines.append(f"  {'here':<12}  {row['path'] or 'no; downloaded on first use'}")
    return "\n".join(lines)


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
            "\n".join(_weights(weights) for weights in row["weights"]) or "-",
        )
    console = Console()
    with console.capture() as text:
        console.print(table)
    return text.get().rstrip()


def _weights(row: dict[str, Any]) -> str:
    record = row["record"]
    here = "" if row["path"] else ", to download"
    return f".{row['tag']} {record['size'] / 1e6:.1f} MB, {record['licence']}{here}"
