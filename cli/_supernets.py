"""What commands on supernets share: the conditions that their subnets are measured under."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from ._sizes import parse_size

if TYPE_CHECKING:
    from torch import nn

    from ..nas.efficiency.table import LatencyTable
    from ..nas.space import SearchSpace
    from ..vision.subnets.bench import Bench

__all__ = ["add_conditions", "set_up", "table_of_weights"]

_DTYPES = ("float32", "bfloat16", "float16")


def add_conditions(parser: argparse.ArgumentParser, *, defaults: bool) -> None:
    """Add --device, --dtype, --input and --threads.

    Args:
        parser: gets them.
        defaults: False adds --table, which says what holds if it is given.
    """
    if not defaults:
        parser.add_argument(
            "--table", metavar="FILE", help="of `vizoo latency build`, for this machine"
        )
    table = "" if defaults else "the table's, given or beside the weights, or "
    parser.add_argument(
        "--device",
        default="cpu" if defaults else None,
        help=f"cpu, cuda, cuda:1 … (default: {table}cpu)",
    )
    parser.add_argument(
        "--dtype",
        choices=_DTYPES,
        default="float32" if defaults else None,
        help=f"of the computation (default: {table}float32)",
    )
    parser.add_argument(
        "--input",
        metavar="HxW",
        default="288x576" if defaults else None,
        help=f"size of the images (default: {table}288x576)",
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
) -> Bench:
    """Set the threads, and with them the conditions under which this process measures.

    Args:
        args: with the options of `add_conditions`.
        net: the supernet.
        space: its search space.
        table: its conditions take the place of options that were not given.
        near: likewise its size of the images alone, as a table of another machine.

    Raises:
        ValueError: a device that is not here, another bad value, or a table of something else.
    """
    import torch

    from ..vision.subnets.bench import Bench

    given = table.conditions if table is not None else None
    threads = args.threads if args.threads is not None else getattr(given, "threads", None)
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads {threads}: must be at least 1")
        torch.set_num_threads(threads)
    sized = given or (near.conditions if near is not None else None)
    if args.input is None and sized is not None:
        size = sized.height, sized.width
    else:
        size = parse_size(args.input or "288x576", "--input", "288x576")
    device = args.device or getattr(given, "device", "cpu")
    dtype = args.dtype or getattr(given, "dtype", "float32")
    bench = Bench.here(net, space, size=size, device=device, dtype=dtype)
    if table is not None:
        bench.check(table, args.table)
    return bench


def table_of_weights(
    args: argparse.Namespace, net: nn.Module, space: SearchSpace
) -> LatencyTable | None:
    """The latency table that lies beside a supernet's weights, where it fits what is asked for.

    Args:
        args: with `supernet` and the options of `add_conditions`.
        net: the supernet.
        space: its search space.
    """
    from ..nas.efficiency.table import LatencyTable
    from ..vision.hub.sources import beside_weights

    path = beside_weights(args.supernet, ".latency.json")
    if path is None or not path.is_file():
        return None
    table = LatencyTable.load(path)
    size = f"{table.conditions.height}x{table.conditions.width}"
    asked = (args.device or "cpu", args.dtype or "float32", args.input or size)
    if asked != (table.conditions.device, table.conditions.dtype, size):
        return None
    model = dict(cast("dict[str, Any]", net.architecture))
    same = table.model == model and table.space.holds(space)
    return table if same and table.complete else None
