"""The supernets of a tree's leaves as one network: each architecture runs on its leaf's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..space import Architecture, Scalar, SearchSpace
from ..supernet import activate, as_before, search_space
from .tree import SplitTree

__all__ = ["Leaves"]

_Read = Callable[[str], tuple[Mapping[str, Tensor], Any]]
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

    def __init__(self, tree: SplitTree, net: nn.Module, read: _Read) -> None:
        if not search_space(net).holds(tree.space):
            raise ValueError("the tree parts another search space than this network's")
        self.tree = tree
        self.net = net
        self.read = read
        self._held: str | None = None
        for leaf in tree.leaves:
            tree.weights_of(leaf)

    def activate(self, architecture: Mapping[str, Scalar | None]) -> Architecture:
        """Let the network run as an architecture, by its leaf's weights; gives its canonical form.

        Raises:
            ValueError: it is not of this space, or as `load` says.
        """
        self.load(self.tree.leaf_of(architecture))
        return activate(self.net, architecture)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Let the network have at the end the leaf's weights that it has now, and run what it runs.

        Weights that are no leaf's, before the first is loaded, are not kept.
        """
        held = self._held
        with as_before(self.net):
            try:
                yield
            finally:
                if held is not None:
                    self.load(held)

    def load(self, leaf: str) -> None:
        """Let the network have a leaf's weights.

        Raises:
            ValueError: its checkpoint has another mask, or tensors that do not fit the network.
        """
        node = self.tree.weights_of(leaf)
        if node != self._held:
            file = self.tree.checkpoints[node]
            state, mask = self.read(file)
            if mask is not None and SearchSpace.from_json(mask) != self.tree.space_of(node):
                raise ValueError(f"{file}: weights of another part of the space than {node!r}")
            own = {name: tensor.shape for name, tensor in self.net.state_dict().items()}
            given = {name: tensor.shape for name, tensor in state.items()}
            if differing := [n for n in {**own, **given} if own.get(n) != given.get(n)]:
                raise ValueError(
                    f"{file}: weights of another network: {len(differing)} tensors are missing, "
                    f"surplus or of another shape, such as {differing[0]}"
                )
            self.net.load_state_dict(state)
            self._held = node
