"""Epochs and learning rates of a tree of nodes that are trained level by level."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, product

from torch.optim.lr_scheduler import LambdaLR

from .tree import ROOT, SplitTree, depth

__all__ = ["LevelSchedule", "set_step"]


class LevelSchedule:
    """Consecutive epochs for the nodes of a tree whose nodes are all split in two.

    Args:
        epochs: of a node, for each level.
        inherit: whether the rate falls by one cosine from the root to a leaf, else in each node.
        final_lr: the share of the learning rate that is left at the end.

    Raises:
        ValueError: a level without epochs, or no such share.
    """

    def __init__(self, epochs: Sequence[int], inherit: bool = True, final_lr: float = 0.1) -> None:
        if not epochs or min(epochs) < 1 or not 0 <= final_lr <= 1:
            raise ValueError(
                f"epochs {epochs} need one positive number a level, and final_lr {final_lr} is a "
                "share from 0 to 1"
            )
        self.epochs = list(epochs)
        self.inherit = inherit
        self.final_lr = final_lr
        self.nodes = [ROOT]  #: names, level by level
        for level in range(1, len(epochs)):
            self.nodes += map("".join, product("01", repeat=level))
        self._starts = [0, *accumulate(epochs[depth(name)] for name in self.nodes)]

    def check(self, tree: SplitTree) -> None:
        """Raise a ValueError where a tree is not split in two on all levels above the last."""
        splits = len(self.epochs) - 1
        for name in self.nodes:
            split = tree.splits.get(name)
            if depth(name) < splits and (split is None or len(split.groups) != 2):
                raise ValueError(
                    f"epochs {self.epochs} ask for {splits} levels of splits in two, but node "
                    f"{name!r} of the tree has none"
                )

    @property
    def total(self) -> int:
        """Epochs of all nodes."""
        return self._starts[-1]

    def of(self, name: str) -> range:
        """A node's epochs."""
        index = self.nodes.index(name)
        return range(self._starts[index], self._starts[index + 1])

    def before(self, name: str) -> int:
        """Epochs of a node's ancestors."""
        return sum(self.epochs[: depth(name)])

    def rate(self, epoch: float) -> float:
        """The share of the learning rate after so many epochs."""
        index = min(bisect_right(self._starts, epoch), len(self.nodes)) - 1
        name = self.nodes[index]
        done, whole = epoch - self._starts[index], self.epochs[depth(name)]
        if self.inherit:
            done, whole = done + self.before(name), sum(self.epochs)
        share = 0.5 * (1 + math.cos(math.pi * min(1.0, done / whole)))
        return self.final_lr + (1 - self.final_lr) * share


def set_step(scheduler: LambdaLR, step: int) -> None:
    """Let the learning rates be those of a step, as if all before it had been taken."""
    rates = [
        base * factor(step)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": step, "_last_lr": rates})
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
