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
from collections.abc import Callable, Sequence

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
        lines = read_columns(path, 2, 4, "left right [disparity [normal]]")
        rows = [[os.path.normpath(base / word) for word in words[:3]] for _, words in lines]
        records = _records(rows, encoding)
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
    given = {"left": left, "right": right, "disparity": disparity}
    patterns = {kind: pattern for kind, pattern in given.items() if pattern is not None}
    matches = [
        sorted(glob.glob(str(expand_path(pattern)), recursive=True))
        for pattern in patterns.values()
    ]
    for (kind, pattern), files in zip(patterns.items(), matches, strict=True):
        if not files:
            raise FileNotFoundError(f"no {kind} files match {pattern}")
    if len(set(map(len, matches))) > 1:
        counts = zip(map(len, matches), patterns.values(), strict=True)
        listed = ", ".join(f"{count} match {pattern}" for count, pattern in counts)
        raise ValueError(f"the patterns match different numbers of files: {listed}")
    for files in matches[1:]:
        doubt = doubtful_pairing(matches[0], files)
        if doubt:
            warnings.warn(doubt, stacklevel=3)
    return _records(list(zip(*matches, strict=True)), encoding)


def _records(rows: Sequence[Sequence[str]], encoding: str | None) -> list[StereoRecord]:
    """Records of rows of a left image, a right image and perhaps a disparity map."""
    names = _names([left for left, *_ in rows])
    return [
        StereoRecord(name, left, right, next(iter(truth), None), encoding)
        for name, (left, right, *truth) in zip(names, rows, strict=True)
    ]


def _names(paths: list[str]) -> list[str]:
    """Name files by what tells them apart: the path below their common folder, without suffix."""
    if not paths:
        return []
    common = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    return [os.path.splitext(os.path.relpath(path, common))[0] for path in paths]
