"""Measured errors of subnets, kept in a file so that a search goes on where it was stopped."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import read_json, write_json
from ..nas.space import Architecture, SearchSpace
from ._leaves import weights_digest

if TYPE_CHECKING:
    import torch

    from ..nas.lid.leaves import Leaves
    from ..nas.search.predictor import Predictor

__all__ = ["Evaluations", "add_evaluation", "evaluator", "mode_of", "open_evaluations"]

VERSION = 1
_FORMAT = "vizoo evaluations"
_LARGE_IS_GOOD = (
    *("*accuracy", "*auc", "*f1", "*precision", "*sensitivity", "*specificity", "*recall"),
    *("map", "map_*", "iou", "dice", "answered", "top[0-9]*", "within_*", "d2*", "d3*"),
    *("*tau", "*kendall", "*spearman", "psnr", "ssim"),
)


@dataclass
class Evaluations:
    """Errors of subnets of one supernet.

    Attributes:
        space: theirs.
        metric: what was measured.
        origin: what else the figures depend on: whether small or large is good, supernet, its
            weights, config, batches.
        errors: architecture to error, small is good: the metric, its sign turned where large is
            good, and infinite where it is not finite.
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
        from ..nas.search.predictor import Predictor

        known = self.errors if known is None else known
        pairs = [(a, self.errors[a]) for a in known if math.isfinite(self.errors[a])]
        positive = all(value > 0 for _, value in pairs)
        return Predictor.fit(self.space, pairs, seed=seed, logarithm=positive, members=3)

    def objective(self, seed: int) -> tuple[Callable[[Sequence[Architecture]], Any], str]:
        """Predicted errors, for a search to minimise, and what they are in words."""
        predictor = self.predictor(seed)
        agreement = f", Kendall tau {predictor.held_out.kendall:.2f}" if predictor.held_out else ""
        best = "largest" if self.origin.get("mode") == "max" else "smallest"
        name = f"{best} {self.metric} predicted from {len(self.errors)} subnets"
        return predictor.predict, f"{name}{agreement}"

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


def add_evaluation(parser: argparse.ArgumentParser) -> None:
    """Add what an evaluation depends on: --data, --metric, --mode, --batches, --val-batches."""
    parser.add_argument(
        "--data", metavar="CONFIG", required=True, help="config of `vizoo fit`: task and data"
    )
    parser.add_argument(
        "--metric", required=True, help="of the validation, such as val/accuracy or val/epe"
    )
    parser.add_argument(
        "--mode",
        choices=("min", "max"),
        help="what is good (default: max for accuracy, AUC, precision and their like, else min)",
    )
    parser.add_argument(
        "--batches", type=int, default=20, help="of training data for batch norms (default 20)"
    )
    parser.add_argument(
        "--val-batches", type=int, default=0, help="of validation data (default: all)"
    )


def mode_of(args: argparse.Namespace) -> str:
    """`max` where a large metric is good, else `min`: --mode, or what the metric's name says.

    Raises:
        ValueError: the name means an error to some tasks and a score to others.
    """
    if args.mode is not None:
        return args.mode
    name = args.metric.rpartition("/")[2]
    if fnmatchcase(name, "d1*"):
        raise ValueError(
            f"--metric {args.metric}: of disparities the share of bad pixels, of panoramas that of "
            "good ones: say which by --mode min or --mode max"
        )
    return "max" if any(fnmatchcase(name, pattern) for pattern in _LARGE_IS_GOOD) else "min"


def evaluator(
    args: argparse.Namespace, leaves: Leaves, device: torch.device
) -> Callable[[Architecture], float]:
    """What measures the error of an architecture on its leaf's weights, recalibrated."""
    from ._task import FitConfig

    config, sign = FitConfig.read(args.data), -1 if mode_of(args) == "max" else 1
    net = leaves.net

    def error(architecture: Architecture) -> float:
        leaves.activate(architecture)
        config.recalibrate(net, args.batches, device)
        value = config.evaluate(net, args.metric, device, args.val_batches)
        return sign * value if math.isfinite(value) else math.inf

    return error


def open_evaluations(
    args: argparse.Namespace, leaves: Leaves, space: SearchSpace
) -> tuple[Evaluations, Path]:
    """Those of an earlier run into the same folder, or none yet; and the file to keep them in.

    Raises:
        ValueError: they are of other weights, other data or another metric.
    """
    path, metric = Path(args.out) / "evaluations.json", args.metric
    origin = {
        "supernet": args.supernet or args.tree,
        "weights": weights_digest(leaves, args),  # a checkpoint keeps its name in training
        "data": args.data,
        "mode": mode_of(args),
        "batches": args.batches,
        "val_batches": args.val_batches,
    }
    if not path.exists():
        return Evaluations(space, metric, origin), path
    found = Evaluations.load(path, space)
    if (found.metric, found.origin) != (metric, origin):
        raise ValueError(
            f"{path}: evaluations of another search ({found.metric}, "
            f"{', '.join(f'{k} {v}' for k, v in found.origin.items())}); name another --out"
        )
    return found, path
