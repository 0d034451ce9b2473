"""Where subnets get their weights from, as typed: a supernet or a tree of splits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from ..nas.lid.leaves import Leaves
    from ..nas.space import SearchSpace

__all__ = ["add_source", "load_leaves"]


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
    """What --supernet or --tree names, see `open_supernet` and `open_tree`."""
    from ..vision.subnets.leaves import open_supernet, open_tree

    return open_supernet(args.supernet) if args.tree is None else open_tree(args.tree)
