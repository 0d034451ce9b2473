"""Supernets by name or file, and their subnets as they are measured."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...common.arguments import checked
from ...common.counts import Counts, count, on_meta
from ...common.devices import DTYPES, choose_device
from ...common.energy import joules
from ...common.files import shortened
from ...common.timing import measure
from ...nas.efficiency.build import build
from ...nas.efficiency.provenance import Conditions, software
from ...nas.efficiency.table import LatencyTable
from ...nas.space import Architecture, Choice, SearchSpace
from ...nas.supernet import architecture_of, extract, search_space
from ..hub.create import open_model
from ..hub.registry import list_models, model_info
from ..inference import optimize
from ..inputs import example_inputs
from ..runtimes import check_runtime, of_one_size

__all__ = [
    "Bench",
    "begun",
    "bench_for",
    "latency_table",
    "load_supernet",
    "space_of",
    "supernets",
    "without_precisions",
]

_SIZE = (288, 576)
_REPETITIONS, _SECONDS = 15, 2.0  # of each measurement, at least
_PRECISION = "precision."
"""Before a part's name: the choice between ``int8`` and ``float``."""


def supernets() -> list[str]:
    """Names of the registered supernets: the models whose argument `subnet` picks one of many."""
    return [name for name in list_models() if "subnet" in model_info(name).arguments]


def load_supernet(source: str, *, download: bool = True) -> tuple[nn.Module, SearchSpace, bool]:
    """A supernet on the CPU in evaluation mode, by what `open_model` takes.

    Returns:
        The network, its search space or the part of it that its weights were trained for, and
        whether they are trained ones.

    Raises:
        ValueError: as there, or a network without anything to choose.
        FileNotFoundError: no such file.
        OSError: its trained weights cannot be had.
    """
    net, trained = open_model(source, untrained=True, download=download)
    try:
        space = space_of(net)
    except ValueError as error:
        message = str(error).removeprefix(f"{source.partition('.')[0]} is ")
        raise ValueError(f"{source}: {message}") from None
    return net, space, trained


def space_of(net: nn.Module) -> SearchSpace:
    """A supernet's search space, or the part of it that its weights were trained for.

    Raises:
        ValueError: it is no network, or there is nothing to choose in it.
    """
    if not isinstance(net, nn.Module):
        raise ValueError(f"net {shortened(net)}: give a network, such as vizoo.load_weights(FILE)")
    part = getattr(net, "subspace", None)
    space = search_space(net) if part is None else SearchSpace.from_json(part)
    if not any(len(choice.values) > 1 for choice in space):
        architecture = architecture_of(net)
        name = architecture.get("name", type(net).__name__)
        what = "a subnet" if "subnet" in architecture else f"{name} is no supernet"
        raise ValueError(
            f"{what}: there is nothing to choose in it; supernets: {', '.join(supernets())}"
        )
    return space


def without_precisions(space: SearchSpace, mixed: Iterable[str]) -> SearchSpace:
    """The space of a table or a bench without the precisions of the parts that are mixed."""
    precisions = {_PRECISION + part for part in mixed}
    own = [choice for choice in space if choice.name not in precisions]
    return SearchSpace(own, space.conditions)


@dataclass(frozen=True)
class Bench:
    """A supernet and where its subnets are measured."""

    net: nn.Module  #: the supernet, on the CPU
    space: SearchSpace  #: its search space, and of int8 the precision of the parts in `mixed`
    device: torch.device  #: where subnets run
    conditions: Conditions  #: of every measurement
    #: parts that a subnet may have in int8 or in float, and by which share int8 raises the error
    mixed: Mapping[str, float] = field(default_factory=dict, hash=False)

    @classmethod
    def here(
        cls,
        net: nn.Module,
        space: SearchSpace | None = None,
        *,
        size: tuple[int, int] = _SIZE,
        batch: int = 1,
        device: str = "cpu",
        dtype: str = "float32",
        runtime: str = "torch",
        float_parts: Sequence[str] = (),
        mixed: Mapping[str, float] = MappingProxyType({}),
    ) -> Bench:
        """A bench of this process, with as many CPU threads as it has now.

        Arguments are those of `latency_table`.

        Raises:
            ValueError: something else than a network or a size; a device that is not here, or
                neither a CPU nor a CUDA device; no such type; no image; or what the runtime cannot
                do.
            ImportError: the runtime is not installed.
        """
        place = choose_device(device)
        if place.type not in ("cpu", "cuda"):
            raise ValueError(f"device {device}: measured are cpu and cuda")
        if dtype not in (types := (*DTYPES, "int8")):
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(types)}")
        kind = getattr(torch, dtype)
        check_runtime(runtime, place, kind)
        if not isinstance(batch, Integral) or batch < 1:
            raise ValueError(f"batch {shortened(batch)}: give a number of images, at least 1")
        whole = isinstance(size, (tuple, list)) and all(isinstance(n, Integral) for n in size)
        if not whole or len(size) != 2 or min(size) < 1:
            raise ValueError(
                f"size {shortened(size)}: give (height, width) in pixels, such as {_SIZE}"
            )
        conditions = Conditions.here(place, kind, *size, runtime, float_parts, batch)
        space = space_of(net) if space is None else space
        if mixed:
            precisions = [Choice(_PRECISION + part, ["int8", "float"]) for part in mixed]
            space = SearchSpace([*space, *precisions], space.conditions)
        return cls(net, space, place, conditions, dict(mixed))

    @property
    def dtype(self) -> torch.dtype:
        """Of the computation."""
        return getattr(torch, self.conditions.dtype)

    def inputs(self, device: torch.device | str | None = None) -> tuple[Tensor, ...]:
        """Random images as the conditions say, on the bench's device unless told otherwise."""
        size = self.conditions
        device = self.device if device is None else device
        return example_inputs(self.net, size.height, size.width, batch=size.batch, device=device)

    @cached_property
    def networks(self) -> SearchSpace:
        """The space without precisions."""
        return without_precisions(self.space, self.mixed)

    def alone(self, architecture: Architecture) -> Architecture:
        """An architecture without precisions."""
        if not self.mixed:
            return architecture
        return self.networks.validate({name: architecture[name] for name in self.networks.names})

    def under(self, architecture: Architecture | None) -> Conditions:
        """The conditions with the parts that an architecture has in float."""
        choices: Mapping[str, Any] = architecture or {}
        own = [part for part in self.mixed if choices.get(_PRECISION + part) == "float"]
        parts = sorted((*self.conditions.float_parts, *own))
        return replace(self.conditions, float_parts=tuple(parts))

    def growth(self, architecture: Architecture) -> float:
        """By which share the error grows by what an architecture has in int8."""
        return sum(x for p, x in self.mixed.items() if architecture[_PRECISION + p] == "int8")

    def network(self, architecture: Architecture) -> nn.Module:
        """The ordinary network of an architecture, on the CPU."""
        return extract(self.net, self.alone(architecture))

    def prepare(
        self, net: nn.Module, architecture: Architecture | None = None
    ) -> Callable[..., Any]:
        """The form in which a network predicts in the runtime, on the device.

        Args:
            net: the network.
            architecture: whose precisions it has; all in int8 that may be by default.
        """
        if self.conditions.runtime != "torch":
            how = self.conditions.runtime, self.dtype, self.under(architecture).float_parts
            return of_one_size(net, self.inputs(), *how)
        if self.device.type != "cpu":
            net = copy.deepcopy(net).to(self.device)
        return optimize(net.eval(), self.dtype)

    def counts(self, architecture: Architecture) -> Counts:
        """Parameters, multiply-adds and memory of an architecture, which does not run for it.

        Raises:
            ValueError: it could not run on such inputs.
        """
        inputs = self.inputs("meta")
        try:
            return count(extract(self._shapes, self.alone(architecture)), *inputs)
        except RuntimeError as error:
            shapes = " and ".join("x".join(map(str, tensor.shape)) for tensor in inputs)
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise ValueError(
                f"{type(self.net).__name__} does not run on {shapes}: {why}; give another size, or "
                "the network a method example_inputs"
            ) from error

    @cached_property
    def _shapes(self) -> nn.Module:
        return on_meta(self.net)

    def costs(self, architecture: Architecture) -> dict[str, Any]:
        """Counted parameters, multiply-adds and memory, under `measured` the time, and energy."""
        subnet, inputs = self.network(architecture), self.inputs()
        run = partial(self.prepare(subnet, architecture), *inputs)
        timing = measure(run, self.device, warmup=3, repetitions=_REPETITIONS, seconds=_SECONDS)
        energy = joules(run, self.device).to_json()
        return {**count(subnet, *inputs).to_json(), "measured": timing.to_json(), **energy}

    def check(self, table: LatencyTable, source: str = "table") -> None:
        """Refuse a latency table of another supernet or other conditions.

        Raises:
            ValueError: in which way it differs.
        """
        counts = self.counts(self.space.smallest())
        table.check(self._architecture, self.space, self.conditions, counts, source)

    def table(self) -> LatencyTable:
        """A latency table of these conditions without any measurement."""
        runtime, facts = self.conditions.runtime, software()
        # Distributions of a module have many names, such as onnxruntime-gpu.
        facts.setdefault(runtime, importlib.import_module(runtime).__version__)
        how = self._architecture, self.space, self.conditions, facts
        return LatencyTable(*how, mixed=dict(self.mixed))

    @property
    def _architecture(self) -> dict[str, Any]:
        return architecture_of(self.net) or {"name": type(self.net).__name__}

    def complete(
        self,
        table: LatencyTable,
        *,
        path: str | os.PathLike[str] | None = None,
        report: Callable[[int, int], None] = lambda done, total: None,
        **settings: Any,
    ) -> LatencyTable:
        """Measure what a table lacks; settings are those of `efficiency.build.build`.

        What is measured stays in the file when it is interrupted.
        """
        try:
            return build(
                table,
                self.network,
                self.prepare,
                self.inputs(),
                self.dtype if self.conditions.runtime == "torch" else None,
                path=path,
                progress=report,
                **settings,
            )
        except KeyboardInterrupt:
            if path is not None:
                table.save(path)
            raise


def settings_of(table: LatencyTable) -> dict[str, Any]:
    """The arguments of `Bench.here` for a bench of the same conditions."""
    names = "batch", "device", "dtype", "runtime", "float_parts"
    own = {name: getattr(table.conditions, name) for name in names}
    size = table.conditions.height, table.conditions.width
    return {**own, "size": size, "mixed": table.mixed}


def bench_for(
    net: nn.Module | Bench,
    table: LatencyTable | None = None,
    size: tuple[int, int] | None = None,
    batch: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    runtime: str | None = None,
    space: SearchSpace | None = None,
) -> Bench:
    """The bench of a supernet: as asked for, else as a table's.

    Without either it is of one image of 288x576, on the CPU, in float32, by torch. A bench is taken
    as it is. A table is checked, and its conditions hold where the others, which are those of
    `latency_table`, are None.

    Raises:
        ValueError: conditions beside a bench, something else than a table, or one of another
            supernet or other conditions.
    """
    given = {"size": size, "batch": batch, "device": device, "dtype": dtype, "runtime": runtime}
    asked = {name: value for name, value in given.items() if value is not None}
    if table is not None and not isinstance(table, LatencyTable):
        raise ValueError(f"table {shortened(table)}: give what `latency_table` returned")
    if isinstance(net, Bench):
        if asked:
            raise ValueError(
                "a bench has its size, batch, device, dtype and runtime: leave these out"
            )
        bench = net
    else:
        known = {} if table is None else settings_of(table)
        bench = Bench.here(net, space, **{**known, **asked})
    if table is not None:
        bench.check(table)
    return bench


@checked("path", "float_parts", "mixed", "seconds", "seed", "report", samples=2, held_out=0)
def latency_table(
    net: nn.Module,
    path: str | os.PathLike[str] | None = None,
    *,
    size: tuple[int, int] = _SIZE,
    batch: int = 1,
    device: str = "cpu",
    dtype: str = "float32",
    runtime: str = "torch",
    float_parts: Sequence[str] = (),
    mixed: Mapping[str, float] = MappingProxyType({}),
    samples: int = 120,
    held_out: int = 20,
    seconds: float = 1.0,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> LatencyTable:
    """Measure subnets of a supernet on this machine, so that those of all others are predicted.

    Args:
        net: the supernet, on the CPU; its weights do not matter.
        path: JSON file to write; one that an interrupted call began is gone on with.
        size: (height, width) of the images.
        batch: images at once.
        device: ``cpu``, ``cuda``, ``cuda:1`` …; on a CPU with this process's threads.
        dtype: ``float32``, ``bfloat16``, ``float16`` or, of other runtimes than torch, ``int8``.
        runtime: the software that runs the subnets, one of `vizoo.vision.runtimes.RUNTIMES`.
        float_parts: of int8, the parts of the network that stay in float32, as `vizoo.export`
            finds them.
        mixed: of int8, parts that each subnet may have in int8 or in float, and by which share of
            itself int8 there raises the error, such as ``exported.quantized.growth``. What a
            search minimises is raised by the shares of the parts that it puts in int8.
        samples: subnets that predictors learn from.
        held_out: more subnets to find their error.
        seconds: for each subnet, at least.
        seed: of the choice of subnets.
        report: called as ``report(done, total)``.

    Raises:
        ValueError: no supernet, a device that is not here, a file of another table, a part that
            the network does not have, or what the runtime cannot do.
        ImportError: the runtime is not installed.

    Example:
        >>> net = vizoo.create_model("easnet_light", pretrained=True)
        >>> table = vizoo.latency_table(net, "table.json", size=(540, 960))
        >>> subnet = vizoo.best_subnet(net, {"latency": "60ms"}, table=table)
    """
    named = (*float_parts, *mixed)
    if named and dtype != "int8":
        raise ValueError(f"float_parts and mixed are of int8, not of {dtype}")
    if both := {*float_parts} & {*mixed}:
        raise ValueError(f"{', '.join(sorted(both))}: in float_parts, and in mixed; take one")
    parts = [name for name, _ in net.named_children()] if named else []
    if unknown := [name for name in named if name not in parts]:
        raise ValueError(
            f"int8: the network has no part {', '.join(unknown)}; it has {', '.join(parts)}"
        )
    how = {"size": size, "batch": batch, "device": device, "dtype": dtype, "runtime": runtime}
    bench = Bench.here(net, **cast("dict[str, Any]", how), float_parts=float_parts, mixed=mixed)
    table = begun(bench, path)
    if table is None:
        raise ValueError(f"{path} holds a table of something else; name another file")
    return bench.complete(
        table,
        path=path,
        report=report,
        samples=samples,
        held_out=held_out,
        seconds=seconds,
        seed=seed,
    )


def begun(bench: Bench, path: str | os.PathLike[str] | None) -> LatencyTable | None:
    """The table that a file holds, an empty one where there is no file; None if it is of others."""
    table = bench.table()
    if path is None or not Path(path).exists():
        return table
    held = LatencyTable.load(path)
    same = held.model == table.model and held.space == table.space
    if not same or held.conditions.difference(bench.conditions):
        return None
    return replace(held, mixed=table.mixed)  # no latency depends on what it costs
