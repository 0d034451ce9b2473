"""Spaces whose every network has been trained: files of accuracies as evaluators.

The files are NumPy's `.npz` with a row for each network: `arch`, the operation's code at each
place, and accuracies by data set. Readers for NASBench-201 (Dong and Yang, ICLR 2020; its
topologies as in NATS-Bench) and for the MobileNet-like space of hyperbox (`mbnet`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..common.files import existing
from .space import Architecture, Choice, SearchSpace

__all__ = [
    "BLOCK_OPERATIONS",
    "CELL_EDGES",
    "CELL_OPERATIONS",
    "Tabular",
    "cell_architecture",
    "mbnet",
    "nasbench201",
]

CELL_EDGES = ("0_1", "0_2", "1_2", "0_3", "1_3", "2_3")  #: of NASBench-201: source and target node
CELL_OPERATIONS = ("none", "skip_connect", "avg_pool_3x3", "nor_conv_1x1", "nor_conv_3x3")
"""Of an edge, smallest first."""
BLOCK_OPERATIONS = ("skip", "mb3x3e3", "mb5x5e6")
"""Of an MBNet's block, smallest first, which is also their order in its table."""
_CELL_CODES = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")


@dataclass(frozen=True)
class Tabular:
    """All networks of a space and what is known of each."""

    space: SearchSpace  #: the choices
    #: name → (N,), such as `cifar10_test` in per cent, `params`, `macs`
    columns: Mapping[str, NDArray]
    rows: Mapping[Architecture, int]  #: architecture → its row

    def look_up(self, architecture: Architecture, column: str) -> float:
        """A figure of one architecture.

        Raises:
            ValueError: there is no such column, or the architecture is of another space.
        """
        if column not in self.columns:
            raise ValueError(
                f"no column {column!r} in this table; it has {', '.join(self.columns)}"
            )
        return float(self.columns[column][self.rows[self.space.validate(architecture)]])

    def errors(self, column: str) -> Callable[[list[Architecture]], list[float]]:
        """100 − accuracy as an objective for the searches, which minimise."""
        return lambda networks: [100 - self.look_up(a, column) for a in networks]


def nasbench201(path: str | os.PathLike[str]) -> Tabular:
    """The 15,625 cells of NASBench-201.

    Choices are the edges `edges.0_1` … `edges.2_3` of the cell. Columns: test accuracies
    `cifar10_test`, `cifar100_test`, `imagenet16_120_test`, and for CIFAR-10 `params` and `flops` as
    the benchmark counts them.

    Args:
        path: `.npz` with `arch` (15625, 6), codes none, skip_connect, nor_conv_1x1, nor_conv_3x3,
            avg_pool_3x3 of the edges 0→1, 0→2, 1→2, 0→3, 1→3, 2→3, and the accuracies.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not such a table.
    """
    names = dict.fromkeys(("cifar10_test", "cifar100_test", "imagenet16_120_test"), ())
    codes, columns = _read(path, (15625, len(CELL_EDGES)), len(_CELL_CODES), names)
    ones, threes, pools = ((codes == code).sum(1) for code in (2, 3, 4))
    columns["params"] = 73_306 + 28_000 * ones + 243_040 * threes
    columns["flops"] = 7_943_872 + 4_362_240 * ones + 35_819_520 * threes + 1_290_240 * pools
    space = SearchSpace([Choice(f"edges.{edge}", CELL_OPERATIONS) for edge in CELL_EDGES])
    return _table(space, codes, _CELL_CODES, columns)


def mbnet(path: str | os.PathLike[str]) -> Tabular:
    """The 6,561 networks of eight blocks, each a skip or one of two MobileNet blocks.

    Choices are `blocks.0` … `blocks.7`: `skip`, `mb3x3e3`, `mb5x5e6` (kernel and expansion).
    Columns: `cifar10_test`, the mean of three trainings, `cifar10_run0` … `cifar10_run2`,
    `params`, `macs`.

    Args:
        path: `.npz` with `arch` (6561, 8), `cifar10_test` (6561, 3), `params` and `macs`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not such a table.
    """
    names = {"cifar10_test": (3,), "params": (), "macs": ()}
    codes, columns = _read(path, (6561, 8), len(BLOCK_OPERATIONS), names)
    runs = columns["cifar10_test"]
    columns["cifar10_test"] = runs.mean(1)
    columns |= {f"cifar10_run{i}": run for i, run in enumerate(runs.T)}
    space = SearchSpace([Choice(f"blocks.{i}", BLOCK_OPERATIONS) for i in range(8)])
    return _table(space, codes, BLOCK_OPERATIONS, columns)


def cell_architecture(text: str) -> Architecture:
    """The architecture of a cell in NASBench-201's own words.

    Raises:
        ValueError: it is no such name.
    """
    values = {}
    for node, inputs in enumerate(text.split("+"), start=1):
        for part in inputs.strip("|").split("|"):
            operation, _, source = part.partition("~")
            values[f"edges.{source}_{node}"] = operation
    wanted = {f"edges.{edge}" for edge in CELL_EDGES}
    if set(values) != wanted or not set(values.values()) <= set(_CELL_CODES):
        raise ValueError(
            f"{text!r} names no cell: wanted |op~0|+|op~0|op~1|+|op~0|op~1|op~2| with operations "
            f"{', '.join(_CELL_CODES)}"
        )
    return Architecture({f"edges.{edge}": values[f"edges.{edge}"] for edge in CELL_EDGES})


def _read(
    path: str | os.PathLike[str],
    shape: tuple[int, int],
    codes: int,
    names: Mapping[str, tuple[int, ...]],
) -> tuple[NDArray, dict[str, NDArray]]:
    """The codes, and of each name a figure, or as many as it says, for each network."""
    existing(path, "a table of accuracies")
    try:
        with np.load(path, allow_pickle=False) as file:
            arch, *values = (file[name] for name in ("arch", *names))
    except Exception as error:  # of NumPy, or of what unpacks its archives
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not a table of accuracies ({reason})") from error
    if (
        arch.shape != shape
        or not np.isin(arch, np.arange(codes)).all()
        or len(np.unique(arch, axis=0)) != len(arch)
    ):
        raise ValueError(
            f"{path}: arch has the shape {arch.shape} and values such as {arch.flat[:3].tolist()}; "
            f"wanted are all {shape[0]} networks of {shape[1]} places, each once, with codes from "
            f"0 to {codes - 1}"
        )
    columns = dict(zip(names, values, strict=True))
    for name, column in columns.items():
        fits = column.shape == (wanted := (shape[0], *names[name])) and column.dtype.kind in "fiu"
        if not (fits and np.isfinite(column).all()):
            kind = f"{name} has the shape {column.shape} and the type {column.dtype}"
            raise ValueError(f"{path}: {kind}; wanted are {wanted} finite numbers")
    return arch.astype(np.intp), columns


def _table(
    space: SearchSpace, codes: NDArray, words: Sequence[str], columns: dict[str, NDArray]
) -> Tabular:
    rows = {
        space.validate({n: words[c] for n, c in zip(space.names, row, strict=True)}): index
        for index, row in enumerate(codes.tolist())
    }
    return Tabular(space, columns, rows)
