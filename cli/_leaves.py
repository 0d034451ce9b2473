"""A supernet or the leaves of a tree of splits: what gives each architecture its weights."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from ..nas.lid.leaves import Leaves
    from ..nas.space import SearchSpace

__all__ = ["add_source", "load_leaves", "weights_digest"]


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add --supernet and --tree, of which one is needed."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--supernet", metavar="NAME|FILE", help="a supernet's name or weights")
    group.add_argument(
        "--tree",
        metavar="FILE",
        help="tree.json of few-shot training or `vizoo split`: each subnet has its leaf's weights",
    )


def load_leaves(args: argparse.Namespace) -> tuple[Leaves, nn.Module, SearchSpace]:
    """What --supernet or --tree names, with trained weights, on the CPU in evaluation mode.

    Returns:
        What activates architectures, its network and the search space: of a leaf's file its part.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no tree, no supernet, or weights that are not trained or not of this tree.
    """
    from ..nas.lid.leaves import Leaves
    from ..nas.lid.tree import ROOT, SplitTree
    from ..vision.hub.registry import REMOTE, is_path
    from ..vision.hub.sources import read_source
    from ..vision.subnets.bench import load_supernet

    if args.tree is None:
        net, space, trained = load_supernet(args.supernet)
        if not trained:
            raise ValueError(
                f"{args.supernet} is not trained: errors of random weights say nothing of its "
                "subnets; give the file of a trained supernet"
            )
        tree, state = SplitTree(space), {k: v.clone() for k, v in net.state_dict().items()}
        tree.checkpoints[ROOT] = args.supernet
        return Leaves(tree, net, lambda _: (state, None)), net, space
    tree, folder = SplitTree.load(args.tree), Path(args.tree).parent
    if not tree.checkpoints:
        raise ValueError(
            f"{args.tree}: a tree without weights; its leaves are trained by a config of "
            "FewShotTraining with `tree` set to this file"
        )

    def source(file: str) -> str:
        named = file.startswith(REMOTE) or not (is_path(file) or (folder / file).exists())
        return file if named else str(folder / file)

    def read(file: str) -> tuple[Any, Any]:
        stored = read_source(source(file))
        return stored.state, stored.facts.get("subspace")

    try:
        net, _, _ = load_supernet(source(tree.checkpoints[tree.weights_of(tree.leaves[0])]))
        leaves = Leaves(tree, net, read)
        for leaf in tree.leaves:  # refuses a file before hours of evaluating other leaves
            leaves.load(leaf)
        return leaves, net, tree.space
    except ValueError as error:
        raise ValueError(f"{args.tree}: {error}") from error


def weights_digest(leaves: Leaves, args: argparse.Namespace) -> str:
    """Names the weights: a checkpoint keeps its name while training goes on."""
    from ..common.ranks import tensor_digest

    if args.tree is None:
        return f"{tensor_digest(leaves.net.state_dict().values()):016x}"
    found = hashlib.sha256(Path(args.tree).read_bytes())
    for file in leaves.tree.checkpoints.values():
        path = Path(args.tree).parent / file
        if path.is_file():
            with open(path, "rb") as content:
                while block := content.read(1 << 20):
                    found.update(block)
    return found.hexdigest()[:12]
