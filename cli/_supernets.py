"""Supernets by name or file, and their subnets as they are measured."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..common.progress import progress_bar

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ..nas.efficiency.provenance import Conditions
    from ..nas.efficiency.table import LatencyTable
    from ..nas.space import Architecture, SearchSpace

__all__ = [
    "Bench",
    "add_conditions",
    "load_supernet",
    "set_up",
    "supernets",
    "table_of_weights",
]

DTYPES = ("float32", "bfloat16", "float16")


def supernets() -> list[str]:
    """Names of the registered supernets: the models whose argument `subnet` picks one of many."""
    from ..vision.hub.registry import list_models, model_info

    return [name for name in list_models() if "subnet" in model_info(name).arguments]


def load_supernet(source: str, *, download: bool = True) -> tuple[nn.Module, SearchSpace, bool]:
    """A supernet on the CPU in evaluation mode.

    Args:
        source: what `open_model` takes: a model's name (with its trained weights, if it has any),
            name and tag, repository, folder or file.
        download: see there.

    Returns:
        The network, its search space or the part of it that its weights were trained for, and
        whether they are trained ones.

    Raises:
        ValueError: unknown, a damaged file, or a network without anything to choose.
        FileNotFoundError: no such file.
        OSError: its trained weights cannot be had.
    """
    from ..nas.space import SearchSpace
    from ..nas.supernet import search_space
    from ..vision.hub.create import open_model

    net, trained = open_model(source, untrained=True, download=download)
    space = search_space(net)
    if (mask := vars(net).pop("subspace", None)) is not None:
        space = SearchSpace.from_json(mask)
    if not any(len(choice.values) > 1 for choice in space):
        name = net.architecture["name"]
        what = f"{source}: a subnet" if "subnet" in net.architecture else f"{name} is no supernet"
        raise ValueError(
            f"{what}: there is nothing to choose in it; supernets: {', '.join(supernets())}"
        )
    return net, space, trained


def add_conditions(parser: argparse.ArgumentParser, *, defaults: bool) -> None:
    """Add --device, --dtype, --input and --threads.

    Args:
        parser: gets them.
        defaults: False where a table, if there is one, says what holds.
    """
    table = "" if defaults else "the table's, given or beside the weights, or "
    parser.add_argument(
        "--device",
        default="cpu" if defaults else None,
        help=f"cpu, cuda, cuda:1 … (default: {table}cpu)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
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
) -> Bench:
    """Set the threads, and with them the conditions under which this process measures.

    Args:
        args: with the options of `add_conditions`.
        net: the supernet.
        space: its search space.
        table: its conditions take the place of options that were not given.

    Raises:
        ValueError: a device that is not here, another bad value, or a table of something else.
    """
    import torch

    from ..common.counts import count, on_meta
    from ..common.devices import choose_device
    from ..nas.efficiency.provenance import Conditions
    from ..nas.supernet import extract

    given = table.conditions if table is not None else None
    threads = args.threads if args.threads is not None else getattr(given, "threads", None)
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads {threads}: must be at least 1")
        torch.set_num_threads(threads)
    device = choose_device(args.device or getattr(given, "device", "cpu"))
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {device}: measured are cpu and cuda")
    dtype = getattr(torch, args.dtype or getattr(given, "dtype", "float32"))
    if args.input is None and given is not None:
        height, width = given.height, given.width
    else:
        height, width = _size(args.input or "288x576")
    bench = Bench(net, space, device, dtype, Conditions.here(device, dtype, height, width))
    if table is not None:
        smallest = count(extract(on_meta(net), space.smallest()), *bench.inputs("meta"))
        table.check(net.architecture, space, bench.conditions, smallest, args.table)
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
    same = table.model == dict(net.architecture) and table.space.holds(space)
    return table if same and table.complete else None


@dataclass(frozen=True)
class Bench:
    """A supernet and where its subnets are measured.

    Attributes:
        net: the supernet, on the CPU.
        space: its search space.
        device: where subnets run.
        dtype: of the computation.
        conditions: of every measurement.
    """

    net: nn.Module
    space: SearchSpace
    device: torch.device
    dtype: torch.dtype
    conditions: Conditions

    def inputs(self, device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """Random images as the conditions say, on the bench's device unless told otherwise."""
        from ..vision.inputs import example_inputs

        size = self.conditions
        device = self.device if device is None else device
        return example_inputs(self.net, size.height, size.width, batch=size.batch, device=device)

    def network(self, architecture: Architecture) -> nn.Module:
        """The ordinary network of an architecture, on the CPU."""
        from ..nas.supernet import extract

        return extract(self.net, architecture)

    def prepare(self, net: nn.Module) -> Callable[..., Any]:
        """The form in which a network predicts, on the device: `vision.inference.optimize`'s."""
        from ..vision.inference import optimize

        if self.device.type != "cpu":
            net = copy.deepcopy(net).to(self.device)
        return optimize(net.eval(), self.dtype)

    def measure(self, table: LatencyTable, what: str, **settings: Any) -> LatencyTable:
        """Complete a table under a progress bar; settings are those of `efficiency.build.build`.

        What is measured stays in the file when it is interrupted.
        """
        from ..nas.efficiency.build import build

        with progress_bar(what) as tell:
            try:
                return build(
                    table,
                    self.network,
                    self.prepare,
                    self.inputs(),
                    self.dtype,
                    progress=tell,
                    **settings,
                )
            except KeyboardInterrupt:
                table.save(settings["path"])
                raise


def _size(text: str) -> tuple[int, int]:
    from ._sizes import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise ValueError(f"--input {text}: give height and width as in --input 288x576") from None
