"""Measured errors of subnets, kept in a file so that a search goes on where it was stopped."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...common.files import check_version, read_json, write_json
from ...nas.search.predictor import Predictor
from ...nas.space import Architecture, SearchSpace
from ..hub.create import beside_weights

__all__ = ["Evaluations", "evaluations_beside"]

_VERSION = 1
_FORMAT = "vizoo evaluations"
_FIT: dict[str, Any] = {"members": 3}  # how predictors are fitted


@dataclass
class Evaluations:
    """Errors of subnets of one supernet."""

    space: SearchSpace  #: theirs
    metric: str  #: what was measured
    #: what else the figures depend on: whether small or large is good, supernet, its weights,
    #: config, batches
    origin: dict[str, Any]
    #: architecture to error, small is good: the metric, its sign turned where large is good, and
    #: infinite where it is not finite
    errors: dict[Architecture, float] = field(default_factory=dict)

    def predictor(self, seed: int, known: Iterable[Architecture] | None = None) -> Predictor:
        """A predictor fitted to all of them but a fifth, which tells its agreement.

        Args:
            seed: of the fit.
            known: evaluated architectures to fit to; all by default.
        """
        known = self.errors if known is None else known
        pairs = [(a, self.errors[a]) for a in known if math.isfinite(self.errors[a])]
        positive = all(value > 0 for _, value in pairs)
        return Predictor.fit(self.space, pairs, seed=seed, logarithm=positive, **_FIT)

    def objective(self, seed: int) -> tuple[Callable[[Sequence[Architecture]], Any], str]:
        """Errors for a search to minimise, and what they are in words.

        They are predicted, unless all subnets have been evaluated.
        """
        best = "largest" if self.origin.get("mode") == "max" else "smallest"
        if len(self.errors) == self.space.count():
            known = self.errors
            name = f"{best} {self.metric} of all {len(known)} subnets"
            return lambda chosen: [known[architecture] for architecture in chosen], name
        predictor = self.predictor(seed)
        agreement = f", Kendall tau {predictor.held_out.kendall:.2f}" if predictor.held_out else ""
        name = f"{best} {self.metric} predicted from {len(self.errors)} subnets"
        return predictor.predict, f"{name}{agreement}"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write them as JSON, atomically."""
        rows = [
            {"architecture": a.to_json(), "error": error if math.isfinite(error) else None}
            for a, error in self.errors.items()
        ]
        content = {"format": _FORMAT, "version": _VERSION, "metric": self.metric}
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
        check_version(content, _VERSION, f"{path}: evaluations")
        try:
            same = SearchSpace.from_json(content["space"]) == space
            errors = {
                space.validate(Architecture.from_json(row["architecture"])): (
                    math.inf if row["error"] is None else float(row["error"])
                )
                for row in (content["evaluations"] if same else ())
            }
            stored = cls(space, content["metric"], dict(content["origin"]), errors)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: damaged evaluations of subnets: {error!r}") from error
        if not same:
            raise ValueError(f"{path}: evaluations of architectures of another search space")
        return stored


def evaluations_beside(source: str, space: SearchSpace) -> Evaluations | None:
    """The evaluations that lie beside a supernet's weights, if there are any.

    Args:
        source: what `load_supernet` took.
        space: of its architectures.

    Raises:
        ValueError: the file there is damaged, or of another space.
    """
    path = beside_weights(source, ".evaluations.json")
    return None if path is None or not path.is_file() else Evaluations.load(path, space)
