"""`vizoo split`: which choice of a supernet to split, and how, as a tree of splits.

Few-shot training does the same after every level; its config takes a tree of this command by
`tree`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.progress import progress_bar
from ._work import check_file, check_least, refuse

if TYPE_CHECKING:
    from ..nas.lid.tree import SplitTree

_DIMENSIONS = ("measure", "layers", "k", "estimator")
_LIKENESS = ("method", "rule", "batches", "batch_size")
_IGNORED = {"lid": (), "gradient": _DIMENSIONS, "random": (*_DIMENSIONS, *_LIKENESS)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--supernet", metavar="NAME|FILE", required=True, help="a supernet's name or weights"
    )
    parser.add_argument(
        "--data", metavar="CONFIG", required=True, help="config of `vizoo fit`: task and data"
    )
    parser.add_argument(
        "--criterion",
        choices=("lid", "gradient", "random"),
        default="lid",
        help="what makes values alike (default lid)",
    )
    parser.add_argument(
        "--levels", type=int, default=1, help="of splits, all by the same weights (default 1)"
    )
    parser.add_argument(
        "--choices", nargs="+", default=["*"], metavar="PATTERN", help="that may be split"
    )
    parser.add_argument(
        "--layers", nargs="+", metavar="PATTERN", help="that are profiled (default: the blocks)"
    )
    parser.add_argument(
        "--measure",
        choices=("euclidean", "cosine", "pearson"),
        help="of the similarity of dimensions (default euclidean)",
    )
    parser.add_argument(
        "--method",
        choices=("best", "exact", "spectral", "random"),
        help="of partition (default best: exact up to 12 values, spectral above)",
    )
    parser.add_argument(
        "--rule",
        choices=("largest_mean_gap", "largest_intra", "smallest_inter", "released_code"),
        help="by which one choice is split of all (default largest_mean_gap)",
    )
    parser.add_argument(
        "--min-group", type=int, help="values of a group (default: half of them; 1 if spectral)"
    )
    parser.add_argument("--k", type=int, help="neighbours (default 20)")
    parser.add_argument(
        "--estimator",
        choices=("paper", "unbiased", "two_nn"),
        help="of dimensions; two_nn has two neighbours, whatever --k (default paper)",
    )
    parser.add_argument("--batches", type=int, help="at most (default 50)")
    parser.add_argument(
        "--batch-size",
        type=int,
        help="samples, joined from batches (default 128, or all where the data have fewer)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 … (default cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of paths (default 0)")
    parser.add_argument("--out", metavar="FILE", required=True, help="tree.json to write")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    """Split and write."""
    check_least(args, levels=1)
    check_file(Path(args.out), ".json", "a tree is")
    refuse(args, _IGNORED[args.criterion], f"is not for --criterion {args.criterion}: leave it out")

    from ..common.devices import choose_device
    from ..nas.lid.profiles import named_layers
    from ..nas.lid.splitting import Splitter
    from ..nas.lid.tree import ROOT
    from ..nas.recalibration import samples
    from ..vision.configs.task import FitConfig
    from ..vision.subnets.bench import load_supernet
    from ..vision.subnets.ranking import split

    start = time.perf_counter()
    given = {name: getattr(args, name) for name in inspect.signature(Splitter).parameters}
    splitter = Splitter(**{name: value for name, value in given.items() if value is not None})
    net, space, trained = load_supernet(args.supernet)
    if args.criterion == "lid":
        named_layers(net, args.layers)  # refuses patterns before the data are read
    device, config, sizes = choose_device(args.device), FitConfig.read(args.data), set()
    with progress_bar("batches") as tell:
        tree = split(
            net,
            config,
            splitter,
            space=space,
            levels=args.levels,
            device=device,
            seen=lambda batch: sizes.add(samples(batch)),
            report=tell,
        )
    folder = Path(args.out).parent
    source = _from(folder, args.supernet)
    tree.about = {"supernet": source, "data": _from(folder, args.data), "splitter": vars(splitter)}
    if trained:
        tree.checkpoints[ROOT] = source
    tree.save(args.out)
    report = {
        "out": args.out,
        "seconds": round(time.perf_counter() - start, 1),
        "trained": trained,
        "samples": min(sizes, default=0),
        "leaves": {leaf: tree.space_of(leaf).count() for leaf in tree.leaves},
        **tree.to_json(),
    }
    print(json.dumps(report, indent=2) if args.json else _lines(tree, report))
    return 0


def _lines(tree: SplitTree, report: dict[str, Any]) -> str:
    note = "" if report["trained"] else " (random weights: the supernet is not trained)"
    lines = [f"{report['out']}: {len(tree.leaves)} parts, {report['seconds']:.0f} s{note}"]
    wanted = tree.about["splitter"]["batch_size"]
    if 0 < report["samples"] < wanted:
        lines.append(f"  by batches of {report['samples']} samples: the data have no {wanted}")
    for name, split in tree.splits.items():
        lines.append(f"  {name}: {split}")
        if split.scores:
            lines.append(f"    {'choice':<24} {'mean gap':>9} {'inside':>9} {'across':>9}")
        for choice, row in sorted(split.scores.items(), key=lambda item: -item[1]["gap"]):
            # A choice of two values has no pair inside.
            means = (row[key] for key in ("gap", "inside", "across"))
            numbers = " ".join(f"{'-':>9}" if mean is None else f"{mean:9.4f}" for mean in means)
            lines.append(f"    {choice:<24} {numbers}")
    for name, count in report["leaves"].items():
        lines.append(f"  {name}: {count:,} subnets")
    return "\n".join(lines)


def _from(folder: Path, source: str) -> str:
    """A file by its path from a folder, so that both can be moved together; else as it is."""
    return Path(os.path.relpath(source, folder)).as_posix() if Path(source).exists() else source
