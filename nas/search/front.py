"""What `vizoo search` found, read back: the subnets that no other beats in both error and cost."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...common.files import read_json
from ...common.quantities import KINDS
from ..space import Architecture, SearchSpace

__all__ = ["Front", "FrontRow"]


@dataclass(frozen=True)
class FrontRow:
    """One subnet of a front."""

    architecture: Architecture
    error: float  #: small is good
    costs: Mapping[str, float]  #: those of `KINDS` that are known


@dataclass(frozen=True)
class Front:
    """A Pareto front, the smallest error first."""

    metric: str  #: what was measured, such as ``val/epe``
    cost: str  #: which of `KINDS` was traded against it
    evaluated: int  #: how many subnets were measured in all
    rows: tuple[FrontRow, ...]  #: the front; at least one
    #: of the latencies: device, device_name, dtype, threads, height, width, batch
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | os.PathLike[str], space: SearchSpace | None = None) -> Front:
        """Read ``front.json`` of `vizoo search`, which is also what its ``--json`` prints.

        Raises:
            FileNotFoundError: no such file.
            ValueError: another kind of file, or architectures that are not of `space`.
        """
        content = read_json(path, "a front of `vizoo search`")
        try:
            rows = sorted(map(_row, content["front"]), key=lambda row: row.error)
            front = cls(
                str(content["metric"]),
                str(content["cost"]),
                int(content["evaluated"]),
                tuple(rows),
                dict(content.get("conditions") or {}),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: no front of `vizoo search`, or a damaged one: {error!r}"
            ) from error
        if not rows:
            raise ValueError(f"{path}: the front is empty")
        if any(front.cost not in row.costs for row in rows):
            raise ValueError(f"{path}: no cost {front.cost!r} in every row; known: {tuple(KINDS)}")
        if space is not None:
            for row in rows:
                try:
                    space.validate(row.architecture)
                except ValueError as error:
                    raise ValueError(f"{path}: a front of another supernet: {error}") from error
        return front

    def spread(self, count: int) -> list[FrontRow]:
        """Rows from the smallest error to the smallest cost, evenly spread by their rank.

        Args:
            count: how many at most, 2 or more.
        """
        last = min(count, len(self.rows)) - 1
        if last == 0:
            return [self.rows[0]]
        places = {round(index * (len(self.rows) - 1) / last) for index in range(last + 1)}
        ranked = sorted(self.rows, key=lambda row: (-row.costs[self.cost], row.error))
        return [ranked[place] for place in sorted(places)]


def _row(content: Mapping[str, Any]) -> FrontRow:
    error = float(content["error"])
    costs = {name: float(content[name]) for name in KINDS if content.get(name) is not None}
    if not all(map(math.isfinite, (error, *costs.values()))):
        raise ValueError("a figure that is not finite")
    return FrontRow(Architecture.from_json(content["architecture"]), error, costs)
