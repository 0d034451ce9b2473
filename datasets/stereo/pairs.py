"""Stereo pairs of your own: three glob patterns, a list file, or a folder of a usual layout.

A list file has one pair a line: ``left right [disparity [normal]]``, with blanks or tabs between,
a path with blanks in quotes, comments after ``#``, paths relative to a root; the fourth column is
not used. This is also the format of the list files published with FADNet
(``driving_release.list`` and others). Where the maps named there are ``.npy``, FADNet's authors
stored the lowest row first, which no suffix tells: such a list needs
``encoding="npy-bottom-up"``. PFM needs none.

The layouts of a folder are those of ``vizoo infer stereo FOLDER``, with the truth beside the
images: folders that hold one pair each (``*/left.png``, ``*/right.png`` and ``*/truth.png``), or a
folder of left images, one of right images and one of disparity maps.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from ...vision.io.pairing import (
    SIDES,
    doubtful_pairing,
    files_in,
    images_in,
    read_columns,
    side_folders,
    sides_in,
)
from ..files import check_files, expand_path
from .base import StereoDataset, StereoRecord

__all__ = ["PairFolders", "PairList", "StereoPairs", "find_pairs"]


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

    Warns (``UserWarning``) where only some of the lines name a disparity map.

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
        rows = [[str(base / word) for word in words[:3]] for _, words in lines]
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
        without = sum(record.disparity is None for record in records)
        if 0 < without < len(records):
            warnings.warn(
                f"list {path}: {without} of {len(records)} lines name no disparity map; a training "
                "learns nothing from their pairs",
                stacklevel=2,
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
    return _paired(matches, encoding)


def _paired(columns: list[list[str]], encoding: str | None) -> list[StereoRecord]:
    """Records of columns in sorted order, with a warning where names do not agree."""
    for files in columns[1:]:
        if (doubt := doubtful_pairing(columns[0], files)) is not None:
            warnings.warn(doubt, stacklevel=4)
    return _records(list(zip(*columns, strict=True)), encoding)


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


_TRUTHS = ("truth", "disparity", "disp0GT", "disp0", "disp_occ_0", "disp_occ")
_SUFFIXES = (".pfm", ".npy", ".png", ".exr")


class PairFolders(StereoDataset):
    """The pairs with true disparities in a folder.

    Images are named ``im0 im1``, ``left right``, ``view1 view5``, ``image_2 image_3`` or ``image_0
    image_1``, maps ``truth``, ``disparity``, ``disp0GT``, ``disp0``, ``disp_occ_0`` or
    ``disp_occ``; these are names of files in a folder for each pair, or of folders of files that
    are matched in sorted order. Maps that are fewer or more than the images go with the left ones
    of their names, as KITTI's do.

    Args:
        root: the folder.
        encoding: how the maps are stored (see ``vizoo.vision.io.disparity``); None: by suffix,
            PFM, NPY, EXR or KITTI's 16-bit PNG.
        transform: called with each sample, returns the sample to use.
        needs_truth: whether pairs without true disparities are left out, with a warning.

    Raises:
        FileNotFoundError: there is no such folder, no pair, or no true disparity in it where that
            is needed.
        ValueError: the folders hold different numbers of left and right images.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        encoding: str | None = None,
        transform: Callable[[dict], dict] | None = None,
        needs_truth: bool = True,
    ) -> None:
        folder = expand_path(root)
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder of pairs")
        records = _side_by_side(folder, encoding) or _each_its_own(folder, encoding)
        super().__init__(_with_truth(folder, records) if needs_truth else records, transform)


def _side_by_side(root: Path, encoding: str | None) -> list[StereoRecord]:
    if (sides := side_folders(root)) is None:
        return []
    lefts, rights = (sorted(map(str, images_in(side))) for side in sides)
    if not lefts:
        raise FileNotFoundError(f"{sides[0]}: no image in this folder")
    if len(lefts) != len(rights):
        raise ValueError(
            f"{sides[0]} holds {len(lefts)} images and {sides[1]} {len(rights)}: they are paired "
            "in sorted order, so the counts must agree"
        )
    folder = next(filter(Path.is_dir, (root / name for name in _TRUTHS)), None)
    maps = [] if folder is None else sorted(map(str, files_in(folder, _SUFFIXES)))
    if len(maps) == len(lefts):
        return _paired([lefts, rights, maps], encoding)
    records = _paired([lefts, rights], encoding)
    ranked = sorted(maps, key=lambda file: -_SUFFIXES.index(Path(file).suffix.lower()))
    known = {Path(file).stem: file for file in ranked}
    records = [r._replace(disparity=known.get(Path(r.left).stem)) for r in records]
    if maps and not any(record.disparity for record in records):
        warnings.warn(
            f"{folder}: {len(maps)} disparity maps for {len(lefts)} images, and none has the name "
            "of a left one: none is taken",
            stacklevel=3,
        )
    return records


def _each_its_own(root: Path, encoding: str | None) -> list[StereoRecord]:
    records = []
    inner = (path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    for folder in (root, *sorted(inner)):
        if (sides := sides_in(folder)) is not None:
            files = [folder / f"{name}{suffix}" for name in _TRUTHS for suffix in _SUFFIXES]
            truth = next((str(file) for file in files if file.is_file()), None)
            name, (left, right) = os.path.basename(os.path.abspath(folder)), map(str, sides)
            records.append(StereoRecord(name, left, right, truth, encoding))
    if not records:
        layouts = ", ".join(f"{left} and {right}" for left, right in SIDES)
        raise FileNotFoundError(
            f"{root}: no pairs in it: neither images nor folders of the names {layouts}"
        )
    return records


def _with_truth(root: Path, records: list[StereoRecord]) -> list[StereoRecord]:
    known = [record for record in records if record.disparity is not None]
    if not known:
        raise FileNotFoundError(
            f"{root}: no true disparities beside any of its {len(records)} pairs: they are looked "
            f"for as {', '.join(_TRUTHS)} ({' '.join(_SUFFIXES)})"
        )
    if len(known) < len(records):
        lacking = next(record.name for record in records if record.disparity is None)
        warnings.warn(
            f"{root}: {len(records) - len(known)} of {len(records)} pairs have no true disparities "
            f"and are left out, {lacking} first",
            stacklevel=3,
        )
    return known
