"""A supernet or the leaves of a tree of splits: what gives each architecture its weights."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, cast

from torch import nn

from ...common.arguments import checked
from ...common.ranks import tensor_digest
from ...nas.lid.leaves import Leaves
from ...nas.lid.tree import ROOT, SplitTree
from ...nas.space import SearchSpace
from ..hub.create import read_source
from ..hub.registry import REMOTE, is_path
from .bench import load_supernet

__all__ = ["open_supernet", "open_tree", "unsplit", "weights_digest"]


@checked("source")
def open_supernet(
    source: str | os.PathLike[str],
) -> tuple[Leaves, nn.Module, SearchSpace]:
    """A trained supernet, by what `load_supernet` takes, as a tree without a split.

    Returns:
        What activates architectures, its network and the search space: of a leaf's file its part.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no supernet, or weights that are not trained.
    """
    source = os.fspath(source)
    net, space, trained = load_supernet(source)
    if not trained:
        raise ValueError(
            f"{source} is not trained: errors of random weights say nothing of its "
            "subnets; give the file of a trained supernet"
        )
    return unsplit(net, space, source), net, space


def unsplit(net: nn.Module, space: SearchSpace, source: str = ROOT) -> Leaves:
    """A supernet in memory, as a tree without a split, whose weights are called by their source."""
    tree, state = SplitTree(space), {k: v.clone() for k, v in net.state_dict().items()}
    tree.checkpoints[ROOT] = source
    return Leaves(tree, net, lambda _: (state, None))


@checked("path")
def open_tree(path: str | os.PathLike[str]) -> tuple[Leaves, nn.Module, SearchSpace]:
    """The leaves of a tree of splits with their weights, on the CPU in evaluation mode.

    Args:
        path: ``tree.json`` of few-shot training or `vizoo split`.

    Returns:
        As `open_supernet`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no tree, or weights that are missing or not of this tree.
    """
    tree, folder = SplitTree.load(path), Path(path).parent
    if not tree.checkpoints:
        raise ValueError(
            f"{path}: a tree without weights; its leaves are trained by a config of "
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
        cast("Any", net).subspace = tree.space.to_json()  # in place of that leaf's part
        return leaves, net, tree.space
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def weights_digest(leaves: Leaves, tree: str | os.PathLike[str] | None) -> str:
    """Names the weights of `open_supernet`, or of `open_tree` and its file.

    A checkpoint keeps its name while training goes on.
    """
    if tree is None:
        return f"{tensor_digest(leaves.net.state_dict().values()):016x}"
    digest = hashlib.sha256(Path(tree).read_bytes())
    for file in leaves.tree.checkpoints.values():
        path = Path(tree).parent / file
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
