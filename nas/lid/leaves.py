"""The supernets of a tree's leaves as one network: each architecture runs on its leaf's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..space import Architecture, Scalar, SearchSpace
from ..supernet import activate, search_space
from .tree import ROOT, SplitTree, parent_name

__all__ = ["Leaves"]

Read = Callable[[str], tuple[Mapping[str, Tensor], Any]]
"""A checkpoint's name in the tree to the network's tensors and, if there is one, its mask: what
`SearchSpace.to_json` gave."""


class Leaves:
    """Weights of leaves from disk, one leaf in memory at a time.

    Args:
        tree: its checkpoints have the weights; a leaf without one takes its nearest ancestor's.
        net: the supernet that they fit; its values change.
        read: reads a checkpoint.

    Raises:
        ValueError: the tree's space is no part of the network's, or a leaf is without weights.
    """

    def __init__(self, tree: SplitTree, net: nn.Module, read: Read) -> None:
        if not search_space(net).holds(tree.space):
            raise ValueError("the tree parts another search space than this network's")
        self.tree = tree
        self.net = net
        self.read = read
        self._held: str | None = None
        for leaf in tree.leaves:
            self.node_of(leaf)

    def node_of(self, leaf: str) -> str:
        """The node whose weights a leaf has: its own, or an ancestor's."""
        name = leaf
        while name not in self.tree.checkpoints:
            if name == ROOT:
                raise ValueError(
                    f"leaf {leaf!r} of the tree has no checkpoint, nor has an ancestor"
                )
            name = parent_name(name)
        return name

    def activate(self, architecture: Mapping[str, Scalar | None]) -> Architecture:
        """Let the network run as an architecture, with its leaf's weights.

        Returns:
            The architecture in canonical form.

        Raises:
            ValueError: it is not of this space, or its leaf's checkpoint has another mask.
        """
        node = self.node_of(self.tree.leaf_of(architecture))
        if node != self._held:
            file = self.tree.checkpoints[node]
            state, mask = self.read(file)
            if mask is not None and SearchSpace.from_json(mask) != self.tree.space_of(node):
                raise ValueError(f"{file}: weights of another part of the space than {node!r}")
            self.net.load_state_dict(state)
            self._held = node
        return activate(self.net, architecture)
