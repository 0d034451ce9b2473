"""What commands on supernets share: limits, and the conditions that subnets are measured under."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.devices import DTYPES
from ..common.quantities import parse_quantity
from ._int8 import add_int8, calibration, check_int8
from ._work import RUNTIMES, check_least, parse_size, warn

if TYPE_CHECKING:
    from torch import nn

    from ..nas.efficiency.table import LatencyTable
    from ..nas.space import SearchSpace
    from ..vision.subnets.bench import Bench

_LIMITS = {
    "latency": ("--max-latency", "40ms", "of one forward pass under the conditions below"),
    "parameters": ("--max-params", "2M", "values in parameters"),
    "macs": ("--max-macs", "10G", "multiply-adds of one forward pass"),
    "memory": ("--max-memory", "512MB", "activations alive at once; weights are not among them"),
}


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add --max-latency, --max-params, --max-macs and --max-memory."""
    for kind, (option, example, what) in _LIMITS.items():
        told = f"limit, such as {example}: {what}"
        parser.add_argument(option, dest=kind, metavar=example.upper(), help=told)


def limits(args: argparse.Namespace) -> dict[str, float]:
    """Quantity to its limit, for those that were given."""
    return {
        kind: parse_quantity(kind, text, option)
        for kind, (option, *_) in _LIMITS.items()
        if (text := getattr(args, kind)) is not None
    }


def open_table(args: argparse.Namespace) -> LatencyTable | None:
    """The table of --table, if there is one."""
    from ..nas.efficiency.table import LatencyTable

    return LatencyTable.load(args.table) if args.table else None


def add_conditions(parser: argparse.ArgumentParser, *, defaults: bool, mixed: bool = True) -> None:
    """Add the conditions of measurements; without defaults --table, which says them."""
    parser.set_defaults(mixed=False)
    if not defaults:
        parser.add_argument(
            "--table", metavar="FILE", help="of `vizoo latency build`, for this machine"
        )
    table = "" if defaults else "the table's, given or beside the weights, or "
    parser.add_argument("--device", help=f"cpu, cuda, cuda:1 … (default: {table}cpu)")
    parser.add_argument(
        "--dtype",
        "--precision",
        choices=(*DTYPES, "int8"),
        help="of the computation; in int8, of openvino and onnxruntime, the parts that lose too "
        f"much stay in float (default: {table}float32)",
    )
    parser.add_argument(
        "--runtime", choices=RUNTIMES, help=f"what runs the networks (default: {table}torch)"
    )
    parser.add_argument(
        "--input", metavar="HxW", help=f"size of the images (default: {table}288x576)"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help=f"images at once (default: {table}1)"
    )
    add_int8(parser)
    if mixed:
        parser.add_argument(
            "--mixed",
            action="store_true",
            help="in int8, let the search decide for each other part, too, whether it is in int8: "
            "what that costs counts as error",
        )
    parser.add_argument(
        "--threads", type=int, help=f"CPU threads (default: {table}PyTorch's own choice)"
    )


def set_up(
    args: argparse.Namespace,
    net: nn.Module,
    space: SearchSpace,
    table: LatencyTable | None = None,
    near: LatencyTable | None = None,
    *,
    name: str | None = None,
    trained: bool = True,
) -> Bench:
    """Set the threads, and with them the conditions under which this process measures.

    Conditions of a table take the place of options that were not given; of one that is only near,
    as that of another machine, the size of the images alone. In int8 the parts that stay in float
    are those of a table, else found on the largest subnet of the supernet called `name`; without
    one, as nothing will run, there are none.
    """
    import torch

    from ..vision.subnets.bench import Bench, settings_of

    given = table.conditions if table is not None else None
    check_least(args, threads=1, batch=1)
    if threads := args.threads or getattr(given, "threads", None):
        torch.set_num_threads(threads)
    sized = given or (near.conditions if near is not None else None)
    if args.input is None and sized is not None:
        size = sized.height, sized.width
    else:
        size = parse_size(args.input or "288x576", "--input", "288x576")
    usual = {"batch": 1, "device": "cpu", "dtype": "float32", "runtime": "torch"}
    how: dict[str, Any] = {"size": size}
    how |= {name: getattr(args, name) or getattr(given, name, usual[name]) for name in usual}
    bench = Bench.here(net, space, **how)
    check_int8(args, how["dtype"])
    if how["dtype"] == "int8":
        if sized is None and name is not None:
            parts = _int8(args, name, bench, trained)
        elif args.calibrate is not None or args.max_loss is not None:
            why = "nothing runs without a --table" if sized is None else "the table says it"
            raise ValueError(f"--calibrate and --max-loss find what stays in float: {why}")
        else:
            measured = table or near
            if args.mixed and not (measured and measured.mixed):
                raise ValueError(
                    "--mixed: the table is not of mixed precision; `vizoo latency build --mixed` "
                    "measures one"
                )
            parts = {} if measured is None else settings_of(measured)
        how |= {key: parts[key] for key in ("float_parts", "mixed") if key in parts}
        bench = Bench.here(net, space, **how)
    if table is not None:
        bench.check(table, args.table)
    return bench


def bench_and_table(
    args: argparse.Namespace, net: nn.Module, space: SearchSpace, trained: bool, limit: float | None
) -> tuple[Bench, LatencyTable | None, LatencyTable | None, Path | None]:
    """A search's bench, and its latency table, which a limit on latency needs.

    Returns:
        The bench; the table, if there is one; the table of another machine that this was moved
        from; the file in which this has yet to be completed.
    """
    from ..vision.subnets.bench import begun
    from ..vision.subnets.best import cost_predictors, moved_table, table_beside, within_reach

    table, near, own = open_table(args), None, None
    if limit and table is None:
        own = Path(args.out).with_suffix(".latency.json")
        # One that an earlier run measured here, for this very file, is better than one moved here.
        if not own.exists():
            size = parse_size(args.input, "--input", "288x576") if args.input else None
            how = size, args.batch, args.device, args.dtype, args.runtime, args.mixed
            near = table_beside(args.supernet, net, space, *how)
    bench = set_up(args, net, space, table, near, name=args.supernet, trained=trained)
    if near is not None:
        table, own = moved_table(near, bench), None
    if own is not None:
        if (table := begun(bench, own)) is None:
            told = "a latency table of another supernet, size or machine"
            raise ValueError(f"{own}: {told}; name another --out, or remove it")
    elif limit and table is not None:
        within_reach(bench, cost_predictors(bench, table), {"latency": limit})
    return bench, table, near, own


def _int8(args: argparse.Namespace, name: str, bench: Bench, trained: bool) -> dict[str, Any]:
    """Parts of the largest subnet that stay in float, or may; none of random weights."""
    from rich.console import Console

    from ..vision.runtimes import quantized

    if not trained:
        if args.mixed:
            raise ValueError(f"--mixed: {name} has random weights, whose errors say nothing")
        warn(f"{name}: random weights, so no part is found that int8 loses too much in")
        return {}
    largest = bench.network(bench.space.largest())
    how = calibration(args, name, largest, None)
    samples = how.pop("calibrate")
    if args.mixed and any(sample.truth is None for sample in samples):
        raise ValueError(f"--mixed weighs errors, and --calibrate {args.calibrate} has no truth")
    with Console(stderr=True).status("int8") as status:
        how["progress"] = lambda step: status.update(f"the largest subnet: {step}")
        costs = quantized(largest, bench.conditions.runtime, samples, **how)
    return {"float_parts": costs.float_parts, **({"mixed": costs.growth} if args.mixed else {})}
