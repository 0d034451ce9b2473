"""The tree of splits: a search space parted again and again, each time by the values of a choice.

Its leaves are search spaces that `SearchSpace.restrict` makes; they share no architecture, and
together they hold all. The root is called `root`, its children `0` and `1`, theirs `00`, `01` …
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...common.files import JsonFile, check_version
from ..architecture import near
from ..space import Scalar, SearchSpace

__all__ = ["ROOT", "Split", "SplitTree", "depth", "parent_name", "splittable"]

ROOT = "root"
_VERSION = 1
_FORMAT = "vizoo split tree"


@dataclass(frozen=True)
class Split:
    """A choice whose values part a space."""

    choice: str  #: its name
    groups: tuple[tuple[Scalar, ...], ...]  #: values of the parts, two to ten; each value once
    #: what decided, as plain values: choice to figures
    scores: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        """Such as `blocks.0.width: 4 | 16, 64`."""
        groups = " | ".join(", ".join(map(str, group)) for group in self.groups)
        return f"{self.choice}: {groups}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for `from_json`: choice, groups and scores."""
        return {
            "choice": self.choice,
            "groups": [list(group) for group in self.groups],
            "scores": dict(self.scores),
        }

    @classmethod
    def from_json(cls, data: Any) -> Split:
        """Read what `to_json` gave.

        Raises:
            ValueError: it is not that.
        """
        try:
            groups = tuple(tuple(group) for group in data["groups"])
            return cls(data["choice"], groups, dict(data.get("scores", {})))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a split: {error!r}") from error


class SplitTree(JsonFile):
    """A search space and its splits.

    Args:
        space: of the root.
    """

    called = "a tree of splits"

    def __init__(self, space: SearchSpace) -> None:
        self.space = space  #: of the root
        self.splits: dict[str, Split] = {}  #: node's name to its split; nodes without are leaves
        #: node's name to the file of its weights, from the tree's folder
        self.checkpoints: dict[str, str] = {}
        self.about: dict[str, Any] = {}  #: what else is known, as plain values: how it was trained
        self._spaces = {ROOT: space}

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes, parents first, level by level."""
        return tuple(sorted(self._spaces, key=lambda name: (depth(name), name)))

    @property
    def leaves(self) -> tuple[str, ...]:
        """The nodes that are not split."""
        return tuple(name for name in self.names if name not in self.splits)

    def space_of(self, name: str) -> SearchSpace:
        """The space of a node.

        Raises:
            ValueError: there is no such node.
        """
        if name not in self._spaces:
            raise ValueError(f"the tree has no node {name!r}{near(name, self.names)}")
        return self._spaces[name]

    def split(self, name: str, split: Split) -> tuple[str, ...]:
        """Split a leaf; gives the names of its children.

        Raises:
            ValueError: it is no leaf, the choice does not matter in all of its architectures, or
                the groups do not hold each of the choice's values once.
        """
        space = self.space_of(name)
        if name in self.splits:
            raise ValueError(f"node {name!r} is split already")
        if split.choice not in splittable(space):
            raise ValueError(
                f"node {name!r} cannot be split by {split.choice!r}: only by a choice that matters "
                "in all of its architectures and has several values"
                f"{near(split.choice, splittable(space))}"
            )
        values = [value for group in split.groups for value in group]
        own = space.choices[split.choice].values
        if (
            not 2 <= len(split.groups) <= 10  # a digit names a child
            or not all(split.groups)
            or sorted(map(repr, values)) != sorted(map(repr, own))
        ):
            raise ValueError(
                f"node {name!r}: {[list(g) for g in split.groups]} are not two to ten groups that "
                f"hold each value of {split.choice!r} once; it has {list(own)}"
            )
        children = _child_names(name, len(split.groups))
        for child, group in zip(children, split.groups, strict=True):
            self._spaces[child] = space.restrict({split.choice: group})
        self.splits[name] = split
        return children

    def leaf_of(self, architecture: Mapping[str, Scalar | None]) -> str:
        """The leaf that holds an architecture.

        Raises:
            ValueError: it is not of this space.
        """
        architecture, name = self.space.validate(architecture), ROOT
        while name in self.splits:
            split = self.splits[name]
            value = architecture[split.choice]
            index = next(i for i, group in enumerate(split.groups) if value in group)
            name = _child_names(name, len(split.groups))[index]
        return name

    def weights_of(self, name: str) -> str:
        """The node whose weights a node has: its own, or its nearest ancestor's that has any.

        Raises:
            ValueError: there is no such node, or it is without weights.
        """
        self.space_of(name)
        node = name
        while node not in self.checkpoints:
            if node == ROOT:
                raise ValueError(
                    f"node {name!r} of the tree has no checkpoint, nor has an ancestor"
                )
            node = parent_name(node)
        return node

    def path_splits(self, name: str) -> list[Split]:
        """The splits that lead to a node, the root's first."""
        self.space_of(name)
        return [self.splits[name[:level] or ROOT] for level in range(depth(name))]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `from_json`: space, splits by node and files."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "space": self.space.to_json(),
            "splits": {n: self.splits[n].to_json() for n in self.names if n in self.splits},
            "checkpoints": {n: self.checkpoints[n] for n in self.names if n in self.checkpoints},
            "about": self.about,
        }

    @classmethod
    def from_json(cls, data: Any) -> SplitTree:
        """Read what `to_json` gave.

        Raises:
            ValueError: it is not that, or of a version that this program does not know.
        """
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError("not a tree of splits; `vizoo split` writes one")
        check_version(data, _VERSION, cls.called)
        parts: list[Any] = [data.get(key) for key in ("splits", "checkpoints", "about")]
        splits, files, about = parts
        if not all(isinstance(part, dict) for part in parts):
            raise ValueError("a damaged tree of splits: no splits, checkpoints and about by name")
        tree = cls(SearchSpace.from_json(data.get("space")))
        for name in sorted(splits, key=lambda name: (depth(name), name)):
            tree.split(name, Split.from_json(splits[name]))
        for name, file in files.items():
            tree.space_of(name)
            if not isinstance(file, str):
                raise ValueError(f"a damaged tree of splits: {file!r} is no file of node {name!r}")
            tree.checkpoints[name] = file
        tree.about = about
        return tree

    @classmethod
    def load(cls, path: str | os.PathLike[str], space: SearchSpace | None = None) -> SplitTree:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it holds no tree, or one of another space than that which is given.
        """
        tree = super().load(path)
        if space is not None and tree.space != space:
            raise ValueError(f"{path}: this tree parts another search space")
        return tree


def splittable(space: SearchSpace) -> tuple[str, ...]:
    """The choices that part a space: several values, and in use in every architecture.

    An architecture in which a choice does not matter would belong to all parts.
    """
    return tuple(c.name for c in space if len(c.values) > 1 and c.name not in space.conditions)


def _child_names(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{'' if name == ROOT else name}{index}" for index in range(count))


def parent_name(name: str) -> str:
    """The name of a node's parent, which the root has not."""
    return name[:-1] or ROOT


def depth(name: str) -> int:
    """Splits between the root and a node."""
    return 0 if name == ROOT else len(name)
