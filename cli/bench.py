"""`vizoo bench`: how fast a model or the operators run on this machine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..common.devices import DTYPES, choose_device
from ..common.quantities import show_joules
from ._work import check_least, parse_size, seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model",
        help="NAME, NAME.TAG, hf-hub:ORG/NAME, or a weight file; ops: the operators, at sizes of "
        "published networks",
    )
    parser.add_argument("--size", metavar="HxW", help="size of the images (default 384x1280)")
    parser.add_argument("--batch", type=int, metavar="N", help="images at once (default 1)")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 … (default cpu)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's own choice)")
    parser.add_argument(
        "--seconds", type=seconds, default=5.0, help="how long to measure each (default 5)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    import torch

    height, width = parse_size(args.size or "384x1280")
    check_least(args, batch=1, threads=1)
    device = choose_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.model == "ops":
        for option in ("json", "size", "batch"):
            if getattr(args, option):
                told = "prints a table" if option == "json" else "has sizes of its own"
                raise ValueError(f"--{option}: ops {told}; leave it out")
        from ._bench_ops import run as run_ops

        return run_ops(device, getattr(torch, args.dtype), args.seconds)

    from ..vision.hub.create import open_model
    from ..vision.speed import benchmark

    net, _ = open_model(args.model, download=False)
    report = benchmark(
        net,
        height,
        width,
        batch=args.batch or 1,
        device=device,
        dtype=getattr(torch, args.dtype),
        seconds=args.seconds,
    )
    print(json.dumps(report, indent=2) if args.json else _lines(report))
    return 0


def _lines(report: dict[str, Any]) -> str:
    height, width = report["size"]
    lines = [
        f"{report['model']}: {report['parameters']:,} parameters, "
        f"{report['macs'] / 1e9:.2f} GMAC an image of {height}x{width}",
        f"batch {report['batch']}, {report['device']}, {report['dtype']}, "
        f"{report['threads']} CPU thread{'s' * (report['threads'] > 1)}",
    ]
    for name, row in report["runs"].items():
        lines.append(
            f"  {name:<10} {row['median_ms']:8.1f} ms  "
            f"(p10 {row['p10_ms']:.1f}, p90 {row['p90_ms']:.1f}, {row['repetitions']} runs)  "
            f"peak {row['peak_bytes'] / 1e6:.0f} MB"
            + ("" if row["joules"] is None else f"  {show_joules(row['joules'])}")
        )
    plain, fast = report["runs"]["plain"], report["runs"]["optimised"]
    lines.append(f"  optimised is {plain['median_ms'] / fast['median_ms']:.2f} times as fast")
    lines.append(f"  energy: {plain['energy']}")
    return "\n".join(lines)
