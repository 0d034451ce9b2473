"""What few-shot training left of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vizoo.nas.lid import SplitTree

__all__ = ["read", "same_nodes"]


def read(folder: Path, name: str) -> dict[str, Any]:
    """The checkpoint of a node."""
    return torch.load(folder / f"{name}.ckpt", weights_only=True)


def same_nodes(one: Path, other: Path) -> None:
    """Check that two folders hold the same tree and, bit for bit, the same weights."""
    trees = [SplitTree.load(folder / "tree.json") for folder in (one, other)]
    assert trees[0].to_json() == trees[1].to_json()
    for name in trees[0].names:
        for key, value in read(one, name)["state_dict"].items():
            assert torch.equal(value, read(other, name)["state_dict"][key]), (name, key)
