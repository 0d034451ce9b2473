"""Which channels are one: a label for each, what ties labels to each other, what must stay.

The channels of a tensor lie along one of its dimensions, and each entry there carries a label. A
label of −1 stands for a place that always stays.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Channels", "Ledger", "Mismatch", "Ties"]


class Channels(NamedTuple):
    """Where a tensor's channels lie, and which they are."""

    dim: int
    labels: Tensor  #: (size of the dimension,) int64


class Ties:
    """Collects what is told about labels while a network runs."""

    def __init__(self) -> None:
        self.count = 0
        self._starts: list[int] = []  # of labels that were new together
        self._ties: list[tuple[Tensor, Tensor]] = []
        self._fixed: list[tuple[Tensor, str]] = []

    def new(self, count: int) -> Tensor:
        """(count,) labels that nothing has yet."""
        self._starts.append(self.count)
        self.count += count
        return torch.arange(self.count - count, self.count)

    def unite(self, one: Tensor, other: Tensor, why: str) -> None:
        """Say that labels are those of the same channels, place by place."""
        one, other = torch.broadcast_tensors(one, other)
        known = (one >= 0) & (other >= 0)
        self._ties.append((one[known], other[known]))
        self.fix(torch.maximum(one, other)[~known], why)

    def fix(self, labels: Tensor, why: str) -> None:
        """Say that channels have to stay."""
        labels = labels[labels >= 0]
        if len(labels):
            self._fixed.append((labels.flatten(), why))

    def classes(self) -> tuple[Tensor, dict[int, str]]:
        """The class of each label, a number that classes do not share; reasons of fixed ones."""
        roots = np.arange(self.count)
        if self._ties:
            ones, others = (torch.cat(side).numpy() for side in zip(*self._ties, strict=True))
            while not np.array_equal(roots[ones], roots[others]):
                low = np.minimum(roots[ones], roots[others])
                np.minimum.at(roots, np.maximum(roots[ones], roots[others]), low)
                while not np.array_equal(roots, roots[roots]):
                    roots = roots[roots]
        reasons: dict[int, str] = {}
        for labels, why in self._fixed:
            for root in np.unique(roots[labels.numpy()]).tolist():
                reasons.setdefault(root, why)
        return torch.from_numpy(roots), reasons

    def kinds(self, classes: Tensor) -> Tensor:
        """(labels,) the kind of each one's class; those of one kind can change places.

        Label by label, in ascending order, they lie in the same tensors and are tied alike.
        """
        order, sizes = classes.argsort(stable=True), classes.bincount()
        ranks = torch.empty_like(order)
        ranks[order] = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[classes[order]]
        places, ties = defaultdict[int, list[int]](list), defaultdict[int, set](set)
        where = np.searchsorted(self._starts, np.arange(self.count), side="right")
        for index, place in zip(classes.tolist(), where.tolist(), strict=True):
            places[index].append(place)
        for one, other in self._ties:
            pairs = zip(ranks[one].tolist(), ranks[other].tolist(), strict=True)
            for index, pair in zip(classes[one].tolist(), pairs, strict=True):
                ties[index].add(pair)
        known: dict[object, int] = {}
        kinds = {
            index: known.setdefault((tuple(own), frozenset(ties[index])), len(known))
            for index, own in places.items()
        }
        return torch.tensor([kinds[index] for index in classes.tolist()])


class Mismatch(Exception):
    """Channels met that were of different classes, or had to stay and do not."""

    def __init__(self, classes: Tensor, why: str) -> None:
        super().__init__(why)
        self.classes = classes


class Checked:
    """Holds what is told against the classes that are known; labels are classes here."""

    def __init__(self, fixed: Tensor) -> None:
        self._fixed = fixed  # (count,) bool, of each class

    def new(self, count: int) -> Tensor:
        """None: all are known."""
        raise RuntimeError("a channel that was not there before")

    def unite(self, one: Tensor, other: Tensor, why: str) -> None:
        """Raise a Mismatch unless these are the same channels."""
        one, other = torch.broadcast_tensors(one, other)
        differ = (one != other) & ~(self._stays(one) & self._stays(other))
        if bool(differ.any()):
            raise Mismatch(torch.cat([one[differ], other[differ]]), why)

    def fix(self, labels: Tensor, why: str) -> None:
        """Raise a Mismatch unless they stay."""
        moving = ~self._stays(labels)
        if bool(moving.any()):
            raise Mismatch(labels[moving], why)

    def _stays(self, classes: Tensor) -> Tensor:
        return (classes < 0) | self._fixed[classes.clamp(min=0)]


Ledger = Ties | Checked  #: is told about labels
