"""Evaluations of subnets as typed: whose weights, on which data, and those of an earlier run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..nas.lid.leaves import Leaves
    from ..nas.space import Architecture, SearchSpace
    from ..vision.subnets.evaluations import Evaluations

_LARGE_IS_GOOD = (
    *("*accuracy", "*auc", "*f1", "*precision", "*sensitivity", "*specificity", "*recall"),
    *("map", "map_*", "iou", "dice", "answered", "top[0-9]*", "within_*", "d2*", "d3*"),
    *("*tau", "*kendall", "*spearman", "psnr", "ssim"),
)


def add_evaluation(parser: argparse.ArgumentParser) -> None:
    """Add whose weights are evaluated, --supernet or --tree, and all that this depends on."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--supernet", metavar="NAME|FILE", help="a supernet's name or weights")
    group.add_argument(
        "--tree",
        metavar="FILE",
        help="tree.json of few-shot training or `vizoo split`: each subnet has its leaf's weights",
    )
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
        "--batches",
        type=int,
        default=20,
        help="of training data for batch norms (default 20; 0 leaves them as they are)",
    )
    parser.add_argument(
        "--val-batches", type=int, default=0, help="of validation data (default: all)"
    )


def load_leaves(args: argparse.Namespace) -> tuple[Leaves, nn.Module, SearchSpace]:
    """What --supernet or --tree names, see `open_supernet` and `open_tree`."""
    from ..vision.subnets.leaves import open_supernet, open_tree

    return open_supernet(args.supernet) if args.tree is None else open_tree(args.tree)


def mode_of(args: argparse.Namespace) -> Literal["min", "max"]:
    """`max` where a large metric is good, else `min`: --mode, or what the metric's name says."""
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
    """What measures the error of a subnet on the validation data of --data."""
    from ..vision.configs.task import FitConfig

    return FitConfig.read(args.data).errors(
        leaves,
        args.metric,
        mode=mode_of(args),
        batches=args.batches,
        val_batches=args.val_batches,
        device=device,
    )


def open_evaluations(
    args: argparse.Namespace, leaves: Leaves, space: SearchSpace
) -> tuple[Evaluations, Path]:
    """Those of an earlier run into the same folder, or none yet; and the file to keep them in."""
    from ..nas.architecture import json_digest
    from ..vision.configs.builtin import read_config
    from ..vision.subnets.evaluations import Evaluations
    from ..vision.subnets.leaves import weights_digest

    path, metric = Path(args.out) / "evaluations.json", args.metric
    config = read_config(args.data)
    about = json_digest(repr([config.get("model"), config.get("data")]))[:12]
    origin = {
        "supernet": args.supernet or args.tree,
        "weights": weights_digest(leaves, args.tree),  # a checkpoint keeps its name in training
        "data": args.data,
        "config": about,  # a file keeps its name where it is edited
        "mode": mode_of(args),
        "batches": args.batches,
        "val_batches": args.val_batches,
    }
    if not path.exists():
        return Evaluations(space, metric, origin), path
    kept = Evaluations.load(path, space)
    known = {"config": about, **kept.origin}  # earlier versions did not note it
    if (kept.metric, {**known, "config": about}) != (metric, origin):
        raise ValueError(
            f"{path}: evaluations of another search ({kept.metric}, "
            f"{', '.join(f'{k} {v}' for k, v in kept.origin.items())}); name another --out"
        )
    if known != origin:
        raise ValueError(
            f"{path}: evaluations by {args.data} before its model or data were edited; name "
            "another --out"
        )
    kept.origin = origin
    return kept, path
