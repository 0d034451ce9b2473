"""Splits of labelled samples that keep groups whole and classes balanced."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from ..files import check_choice
from .dataset import ImageRecord

__all__ = ["part_of", "split_groups"]

#: Names of the parts of a split, besides ``all``.
_PARTS = ("train", "val", "test")


def split_groups(
    labels: Sequence[int], groups: Sequence[Hashable], shares: Sequence[float], seed: int = 0
) -> list[list[int]]:
    """Split samples into parts that have about the same shares of every class.

    Groups, from the largest to the smallest and otherwise at random, go one after the other to
    where their classes are wanted most.

    Args:
        labels: the class of each sample.
        groups: what each belongs to and is never split from, such as where it comes from.
        shares: of the parts, in any unit.
        seed: the same one gives the same parts.

    Returns:
        The indices of each part, sorted; together every sample once.

    Raises:
        ValueError: shares that are not positive, or a class of fewer groups than parts.
    """
    if len(shares) < 2 or min(shares) <= 0:
        raise ValueError(f"shares {list(shares)}: want two parts or more, each above 0")
    kinds = sorted(set(labels))
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    counts = np.zeros((len(members), len(kinds)))
    for row, indices in enumerate(members.values()):
        for index in indices:
            counts[row, kinds.index(labels[index])] += 1
    for kind, number in zip(kinds, (counts > 0).sum(0), strict=True):
        if number < len(shares):
            raise ValueError(
                f"class {kind} is in {number} groups, too few for {len(shares)} parts: a group is "
                "never split"
            )
    wanted = np.outer(np.asarray(shares) / sum(shares), counts.sum(0))  # (parts, classes)
    had = np.zeros_like(wanted)
    order = np.random.default_rng(seed).permutation(len(members))
    order = order[np.argsort(-counts[order].sum(1), kind="stable")]
    whole = list(members.values())
    parts: list[list[int]] = [[] for _ in shares]
    for row in order:
        need = ((wanted - had) / wanted) @ counts[row]
        best = int(np.lexsort((-wanted.sum(1), -need.round(9)))[0])
        had[best] += counts[row]
        parts[best] += whole[row]
    return [sorted(part) for part in parts]


def part_of(
    records: list[ImageRecord],
    part: str,
    shares: Sequence[float],
    folds: int | None,
    fold: int,
    seed: int,
) -> list[ImageRecord]:
    """The images of ``train``, ``val`` or ``test``, or ``all``; for arguments see `ImageFolders`.

    Raises:
        ValueError: an unknown part, or numbers out of their range.
    """
    check_choice("part", part, ("all", *_PARTS))
    if part == "all":
        return records
    labels, sources = [r.label for r in records], [r.source for r in records]
    if folds is None:
        if len(shares) != len(_PARTS):
            raise ValueError(f"shares {list(shares)}: want three, of {', '.join(_PARTS)}")
        chosen = split_groups(labels, sources, shares, seed)[_PARTS.index(part)]
        return [records[index] for index in chosen]
    if folds < 3 or not 0 <= fold < folds:
        raise ValueError(f"fold {fold} of {folds}: wants three folds or more, and one of them")
    split = split_groups(labels, sources, [1] * folds, seed)
    test, val, *rest = split[fold:] + split[:fold]
    chosen = {"test": test, "val": val, "train": sorted(itertools.chain(*rest))}[part]
    return [records[index] for index in chosen]
