"""Stereo pairs of your own: three glob patterns, or a list file.

A list file has one pair a line: ``left right [disparity [normal]]``, with blanks or tabs between,
a path with blanks in quotes, comments after ``#``, paths relative to a root; the fourth column is
not used. This is also the format of the list files published with FADNet
(``driving_release.list`` and others). Where the maps named there are ``.npy``, FADNet's authors
stored the lowest row first, which no suffix tells: such a list needs
``encoding="npy-bottom-up"``. PFM needs none.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from ...vision.io.pairing import doubtful_pairing, read_columns
from ..files import check_files, expand_path
from .base import StereoDataset, StereoRecord

__all__ = ["PairList", "StereoPairs", "find_pairs"]


class StereoPairs(StereoDataset):
    """Pairs found by glob patterns, matched in sorted order.

    Args:
        left: pattern of the left images, such as ``/data/mine/left/*.png``; ``**`` crosses folders.
        right: pattern of the right images.
        disparity: pattern of the left disparity maps; None without ground truth.
        encoding: how the maps are stored (see ``vizoo.vision.io.disparity``); None: by suffix,
            PFM, NPY or KITTI's 16-bit PNG.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: a pattern matches nothing.
        ValueError: the patterns match different numbers of files.
    """

    def __init__(
        self,
        left: str,
        right: str,
        disparity: str | None = None,
        encoding: str | None = None,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        super().__init__(find_pairs(left, right, disparity, encoding), transform)


class PairList(StereoDataset):
    """Pairs named by a list file.

    Args:
        list_file: the list.
        root: what its paths are relative to; None: the folder of the list.
        encoding: as in ``StereoPairs``; ``npy-bottom-up`` for lists of FADNet's with ``.npy`` maps.
        transform: called with each sample, returns the sample to use.

    Raises:
        FileNotFoundError: the list or a file in it is missing; the message counts and names them.
        ValueError: a line does not name two to four files.
    """

    def __init__(
        self,
        list_file: str | os.PathLike,
        root: str | os.PathLike | None = None,
        encoding: str | None = None,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        path = expand_path(list_file)
        base = path.parent if root is None else expand_path(root)
        records = _read_pair_list(path, base, encoding)
        check_files(
            f"list {path}",
            base,
            {
                "left images": [record.left for record in records],
                "right images": [record.right for record in records],
                "disparity maps": [record.disparity for record in records if record.disparity],
            },
            expected="lines 'left right [disparity]'",
        )
        super().__init__(records, transform)


def find_pairs(
    left: str, right: str, disparity: str | None = None, encoding: str | None = None
) -> list[StereoRecord]:
    """Match files of two or three patterns in sorted order (see ``StereoPairs``).

    Warns (``UserWarning``) where their names do not agree.
    """
    patterns = {"left": left, "right": right}
    if disparity is not None:
        patterns["disparity"] = disparity
    found = {
        kind: sorted(glob.glob(str(expand_path(pattern)), recursive=True))
        for kind, pattern in patterns.items()
    }
    for kind, files in found.items():
        if not files:
            raise FileNotFoundError(f"no {kind} files match {patterns[kind]}")
    counts = {kind: len(files) for kind, files in found.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{counts[kind]} match {patterns[kind]}" for kind in patterns)
        raise ValueError(f"the patterns match different numbers of files: {listed}")
    for kind in list(patterns)[1:]:
        doubt = doubtful_pairing(found["left"], found[kind])
        if doubt:
            warnings.warn(doubt, stacklevel=3)
    names = _names(found["left"])
    maps = found.get("disparity", [None] * len(names))
    pairs = zip(names, found["left"], found["right"], maps, strict=True)
    return [StereoRecord(*pair, encoding) for pair in pairs]


def _read_pair_list(list_file: Path, root: Path, encoding: str | None = None) -> list[StereoRecord]:
    """Read a list file (see the module's text) without checking that its files exist."""
    lines = read_columns(list_file, 2, 4, "left right [disparity [normal]]")
    rows = [[os.path.normpath(root / word) for word in words[:3]] for _, words in lines]
    names = _names([row[0] for row in rows])
    return [
        StereoRecord(name, row[0], row[1], row[2] if len(row) > 2 else None, encoding)
        for name, row in zip(names, rows, strict=True)
    ]


def _names(paths: list[str]) -> list[str]:
    """Name files by what tells them apart: the path below their common folder, without suffix."""
    if not paths:
        return []
    common = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    return [os.path.splitext(os.path.relpath(path, common))[0] for path in paths]
