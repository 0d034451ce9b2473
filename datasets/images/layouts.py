"""Images in a folder for each class, or in a CSV list; splits that keep groups whole."""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from ...vision.io.images import SUFFIXES
from ...vision.io.pairing import files_below
from ..files import check_choice, check_files, data_folder, expand_path
from .dataset import ImageDataset, ImageRecord
from .preparation import ImagePreset

__all__ = ["ImageFolders", "ListedImages", "split_groups"]

_UNREAD = (".avif", ".gif", ".heic", ".heif", ".jfif", ".jp2")  # images all the same


class ImageFolders(ImageDataset):
    """A folder for each class, named as the class: ``root/melanoma/0001.jpg``.

    Args:
        root: the folder of the folders; ``~`` and ``$VARIABLES`` are expanded.
        part: ``train``, ``val``, ``test`` or ``all``.
        preset: how the images are prepared.
        classes: the folders in the order of their numbers; by default all, sorted.
        source: regular expression of which the first group (or all of it) in a file's name says
            where the image comes from, such as the patient; images of one source stay in one part.
            None: each comes from its own.
        shares: of ``train``, ``val`` and ``test``, of every class.
        folds: cross-validation instead: one of so many folds is ``test``, the next ``val``.
        fold: which one is ``test``, from 0.
        seed: of the split; all parts want the same.

    Raises:
        FileNotFoundError: no such folder, or one without images.
        ValueError: no classes, an unknown part, numbers out of range, or a name without a source.
    """

    def __init__(
        self,
        root: str,
        part: str = "all",
        preset: ImagePreset | None = None,
        classes: Sequence[str] | None = None,
        source: str | None = None,
        shares: Sequence[float] = (0.6, 0.2, 0.2),
        folds: int | None = None,
        fold: int = 0,
        seed: int = 0,
    ) -> None:
        where = data_folder("images", root)
        names = classes or sorted(
            path.name for path in where.iterdir() if path.is_dir() and path.name[0] != "."
        )
        if len(names) < 2:
            raise ValueError(f"images at {where}: {len(names)} folders; want one for each class")
        records = []
        for label, name in enumerate(names):
            files = files_below(where / name, SUFFIXES)
            if not files:
                raise FileNotFoundError(f"images at {where}: no image in {where / name}")
            for file in files:
                title = file.relative_to(where).as_posix()
                records.append(ImageRecord(title, str(file), label, _source(title, source)))
        if unread := [file for name in names for file in files_below(where / name, _UNREAD)]:
            warnings.warn(
                f"images at {where}: {len(unread)} passed over, of kinds that are not read, first "
                f"{unread[0]}",
                stacklevel=2,
            )
        records = _part_of(records, names, part, shares, folds, fold, seed)
        # No default above: what a config leaves out of a preset would be taken from it.
        super().__init__(records, names, preset or ImagePreset(), str(where.resolve()))


class ListedImages(ImageDataset):
    """Images named in a CSV file with the columns ``path``, ``label`` and perhaps ``source``.

    Args:
        list_file: the CSV file; its first line names the columns. ``label`` is a class's name.
        root: what paths are relative to; by default the list's folder. A ``source`` is the same in
            all lists of one root.
        part: see `ImageFolders`; images of one ``source`` stay in one part.
        preset: how the images are prepared.
        classes: names in the order of their numbers; by default those of the whole list, sorted.
            Arguments of the split are those of `ImageFolders`.

    Raises:
        FileNotFoundError: the list or images are missing.
        ValueError: it is no such list; the message says the line.
    """

    def __init__(
        self,
        list_file: str,
        root: str | None = None,
        part: str = "all",
        preset: ImagePreset | None = None,
        classes: Sequence[str] | None = None,
        shares: Sequence[float] = (0.6, 0.2, 0.2),
        folds: int | None = None,
        fold: int = 0,
        seed: int = 0,
    ) -> None:
        listed = expand_path(list_file)
        rows = _read_list(listed)
        names = list(classes or sorted({label for _, label, _ in rows.values()}))
        where = expand_path(root) if root else listed.parent
        records = []
        for line, (path, label, source) in rows.items():
            check_choice(f"{listed}, line {line}: class", label, names)
            records.append(ImageRecord(path, str(where / path), names.index(label), source or path))
        paths = [record.path for record in records]
        check_files("images", where, {"images": paths}, f"those of {listed}", what="images")
        if len(names) < 2:
            raise ValueError(f"{listed}: {len(names)} class; want two or more")
        records = _part_of(records, names, part, shares, folds, fold, seed)
        super().__init__(records, names, preset or ImagePreset(), str(where.resolve()))


def _read_list(path: Path) -> dict[int, tuple[str, str, str]]:
    """Line number to path, label and source."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("path", "label") if name not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(
                    f"{path}: no column {missing[0]!r} in its first line: want path,label[,source]"
                )
            rows: dict[int, tuple[str, str, str]] = {}
            first: dict[str, int] = {}  # line of an image
            for row in reader:
                image, label, source = (
                    (row.get(key) or "").strip() for key in ("path", "label", "source")
                )
                if not image or not label:
                    raise ValueError(f"{path}, line {reader.line_num}: wants a path and a label")
                rows[reader.line_num] = image, label, source
                earlier = first.setdefault(image, reader.line_num)
                if rows[earlier] != rows[reader.line_num]:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {image} has another label or source than "
                        f"in line {earlier}"
                    )
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such list file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV list: {error}") from error
    if not rows:
        raise ValueError(f"{path}: no image in it")
    return rows


def _source(name: str, pattern: str | None) -> str:
    if pattern is None:
        return name
    match = re.search(pattern, Path(name).name)
    if match is None:
        raise ValueError(f"source {pattern!r} finds nothing in {name}")
    return match[1] if match.re.groups else match[0]


#: Names of the parts of a split, besides ``all``.
_PARTS = ("train", "val", "test")


def split_groups(
    labels: Sequence[int | str],
    groups: Sequence[Hashable],
    shares: Sequence[float],
    seed: int = 0,
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


def _part_of(
    records: list[ImageRecord],
    names: Sequence[str],
    part: str,
    shares: Sequence[float],
    folds: int | None,
    fold: int,
    seed: int,
) -> list[ImageRecord]:
    """The images of ``train``, ``val``, ``test`` or ``all``; for arguments see `ImageFolders`."""
    check_choice("part", part, ("all", *_PARTS))
    if part == "all":
        return records
    labels, sources = [names[r.label] for r in records], [r.source for r in records]
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
