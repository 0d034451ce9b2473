"""Measured errors of subnets, kept in a file so that a search goes on where it was stopped."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import read_json, write_json
from ..space import Architecture, SearchSpace

if TYPE_CHECKING:
    from ..search.predictor import Predictor

__all__ = ["Evaluations", "open_evaluations"]

VERSION = 1
_FORMAT = "vizoo evaluations"


@dataclass
class Evaluations:
    """Errors of subnets of one supernet.

    Attributes:
        space: theirs.
        metric: what was measured; small is good.
        origin: what else the figures depend on: supernet, its weights, config, batches.
        errors: architecture to error.
    """

    space: SearchSpace
    metric: str
    origin: dict[str, Any]
    errors: dict[Architecture, float] = field(default_factory=dict)

    def predictor(self, seed: int, known: Iterable[Architecture] | None = None) -> Predictor:
        """A predictor fitted to all of them but a fifth, which tells its agreement.

        Args:
            seed: of the fit.
            known: evaluated architectures to fit to; all by default.
        """
        from ..search.predictor import Predictor

        known = self.errors if known is None else known
        pairs = [(a, self.errors[a]) for a in known if math.isfinite(self.errors[a])]
        positive = all(value > 0 for _, value in pairs)
        return Predictor.fit(self.space, pairs, seed=seed, logarithm=positive, members=3)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write them as JSON, atomically."""
        rows = [
            {
                "architecture": architecture.to_json(),
                "error": error if math.isfinite(error) else None,
            }
            for architecture, error in self.errors.items()
        ]
        content = {"format": _FORMAT, "version": VERSION, "metric": self.metric}
        content |= {"origin": self.origin, "space": self.space.to_json(), "evaluations": rows}
        return write_json(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str], space: SearchSpace) -> Evaluations:
        """Read what `save` wrote.

        Args:
            path: the file.
            space: that the architectures have to be of.

        Raises:
            FileNotFoundError: no such file.
            ValueError: another kind of file, or architectures of another space.
        """
        content = read_json(path, "evaluations of subnets")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"{path}: no evaluations of subnets; `vizoo search` writes them")
        if content.get("version") != VERSION:
            raise ValueError(
                f"{path}: evaluations of version {content.get('version')}; "
                f"this vizoo reads {VERSION}"
            )
        try:
            found = SearchSpace.from_json(content["space"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: damaged evaluations of subnets: {error!r}") from error
        if found != space:
            raise ValueError(f"{path}: evaluations of architectures of another search space")
        try:
            errors = {
                space.validate(Architecture.from_json(row["architecture"])): (
                    math.inf if row["error"] is None else float(row["error"])
                )
                for row in content["evaluations"]
            }
            return cls(space, content["metric"], dict(content["origin"]), errors)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: damaged evaluations of subnets: {error!r}") from error


def open_evaluations(
    path: Path, space: SearchSpace, metric: str, origin: dict[str, Any]
) -> Evaluations:
    """Those of an earlier run into the same folder, or none yet.

    Raises:
        ValueError: they are of other weights, other data or another metric.
    """
    if not path.exists():
        return Evaluations(space, metric, origin)
    found = Evaluations.load(path, space)
    if (found.metric, found.origin) != (metric, origin):
        raise ValueError(
            f"{path}: evaluations of another search ({found.metric}, "
            f"{', '.join(f'{k} {v}' for k, v in found.origin.items())}); name another --out"
        )
    return found
