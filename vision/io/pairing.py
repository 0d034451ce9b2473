"""List files, names of sides and sorted file names: which files belong together."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from .images import SUFFIXES

__all__ = [
    "CONTACT_SHEET",
    "SIDES",
    "doubtful_pairing",
    "files_below",
    "files_in",
    "images_in",
    "read_columns",
    "side_folders",
    "sides_in",
]

# Names of left and right images, or of folders of them, in the usual layouts.
SIDES = (
    ("im0", "im1"),
    ("left", "right"),
    ("view1", "view5"),
    ("image_2", "image_3"),
    ("image_0", "image_1"),
)

CONTACT_SHEET = "contact_sheet.jpg"
"""What `vizoo world` writes beside its data; no reader takes it for a picture of these."""

# A quote counts where a word begins, so that a name such as don't.png needs none.
_WORD = re.compile(r"""[ \t]*(?:"([^"]*)"|'([^']*)'|([^ \t"'#][^ \t]*))(?=[ \t]|$)""")


def read_columns(
    path: str | os.PathLike, least: int, most: int, form: str
) -> list[tuple[int, list[str]]]:
    """Read a list file: columns with blanks or tabs between.

    A name with blanks stands in single or double quotes; ``#`` at the beginning of a word starts a
    comment; lines without a word are passed over.

    Args:
        path: the list, UTF-8.
        least: columns that a line has at least.
        most: columns that a line has at most.
        form: what a line should look like, for the error.

    Returns:
        Line number, from 1, and columns of every line that has any.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no text file, or a line is not of that form; the message names the line.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a list file: not text (UTF-8): {error.reason}") from error
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a folder, not a list file") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such list file") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        words = _split(line, f"{path}, line {number}")
        if not words:
            continue
        if not least <= len(words) <= most:
            raise ValueError(
                f"{path}, line {number}: {len(words)} columns; a line reads {form!r} (a name with "
                "blanks stands in quotes)"
            )
        rows.append((number, words))
    return rows


def doubtful_pairing(left: Sequence[str | Path], other: Sequence[str | Path]) -> str | None:
    """Say whether files paired in sorted order seem not to belong together.

    Words and numbers of a name that all files of its list share (``left``, ``im0``, the folder)
    say nothing; the rest should agree. Numbers are compared as numbers: sorting puts ``10`` before
    ``2`` but ``0002`` before ``0010``.

    Args:
        left: the left images.
        other: what is paired with them, as many.

    Returns:
        One line that names the first such pair, or None.
    """
    keys = zip(_distinctive(left), _distinctive(other), strict=True)
    odd = [index for index, (one, two) in enumerate(keys) if one != two]
    if not odd:
        return None
    first = odd[0]
    return (
        f"{left[first]} is paired with {other[first]}, and {len(odd)} of {len(left)} pairs differ "
        "in their names: pairs are matched in sorted order; is a file missing or surplus?"
    )


def images_in(folder: Path) -> list[Path]:
    """The images that lie in a folder, in no order; hidden files and a contact sheet are none."""
    return files_in(folder, SUFFIXES)


def files_in(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files of some suffixes, in lower case, that lie in a folder; see `images_in`."""
    with os.scandir(folder) as entries:
        return [
            folder / entry.name
            for entry in entries
            if _counts(entry.name, suffixes) and entry.is_file()
        ]


def files_below(folder: str | os.PathLike, suffixes: Sequence[str]) -> list[Path]:
    """The files of some suffixes, in lower case, in a folder and below it, sorted.

    Hidden files and folders and contact sheets are left out.
    """
    files = []
    for where, folders, names in os.walk(str(folder)):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(where, name) for name in names if _counts(name, suffixes)]
    return sorted(files)


def _counts(name: str, suffixes: Sequence[str]) -> bool:
    hidden = name.startswith(".") or name == CONTACT_SHEET
    return not hidden and os.path.splitext(name)[1].lower() in suffixes


def side_folders(folder: Path) -> tuple[Path, Path] | None:
    """The folders of left and of right images in a folder, by their names."""
    pairs = ((folder / left, folder / right) for left, right in SIDES)
    return next((pair for pair in pairs if all(side.is_dir() for side in pair)), None)


def sides_in(folder: Path) -> tuple[Path, Path] | None:
    """The left and the right image of a folder that holds one pair, by their names.

    Warns (``UserWarning``) where there is only one of them.
    """
    images = {file.stem: file for file in images_in(folder)}
    for left, right in SIDES:
        if left in images and right in images:
            return images[left], images[right]
    other = {**dict(SIDES), **{right: left for left, right in SIDES}}
    if (alone := next((name for name in other if name in images), None)) is not None:
        told = f"{images[alone]}: passed over: no image {other[alone]} is beside it"
        warnings.warn(told, stacklevel=3)
    return None


def _split(line: str, where: str) -> list[str]:
    words, end = [], 0
    while match := _WORD.match(line, end):
        words.append(next(word for word in match.groups() if word is not None))
        end = match.end()
    rest = line[end:].strip(" \t")
    if rest and not rest.startswith("#"):
        raise ValueError(f"{where}: a quote is not closed, or text follows it: {rest}")
    if "" in words:
        raise ValueError(f"{where}: an empty name")
    return words


def _distinctive(paths: Sequence[str | Path]) -> list[list[str | int]]:
    names = [os.path.splitext(os.fspath(path))[0].lower() for path in paths]
    words = [re.findall(r"\d+|[^\W\d_]+", name) for name in names]
    if len(set(map(len, words))) == 1:
        columns = [column for column in zip(*words, strict=True) if len(set(column)) > 1]
        words = [list(row) for row in zip(*columns, strict=True)] or [[] for _ in words]
    else:
        common = set.intersection(*map(set, words)) if words else set()
        words = [[word for word in row if word not in common] for row in words]
    return [[int(word) if word.isdecimal() else word for word in row] for row in words]
