"""What the readers of published data sets share: paths, choices, the check for missing files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["by_numbers", "check_choice", "check_files", "data_folder", "expand_path", "read_text"]


def expand_path(path: str | os.PathLike) -> Path:
    """Expand ``~`` and environment variables: ``$VIZOO_DATA/kitti2015``.

    Raises:
        ValueError: the path names a variable that is not set.
    """
    expanded = os.path.expandvars(os.path.expanduser(os.fspath(path)))
    unset = re.search(r"\$(\w+|\{\w+\})", expanded)
    if unset:
        raise ValueError(f"{path}: the environment variable {unset[1].strip('{}')} is not set")
    return Path(expanded)


def data_folder(title: str, root: str | os.PathLike) -> Path:
    """Expand a data set's folder, as `expand_path` does, and refuse one that is not there.

    Raises:
        FileNotFoundError: there is none.
        ValueError: see `expand_path`.
    """
    folder = expand_path(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"{title} at {folder}: no such folder")
    return folder


def by_numbers(name: str) -> list[str | int]:
    """Key to sort names by the numbers in them: ``2.png`` before ``10.png``."""
    # Words and numbers take turns, so that only like is compared with like.
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Raise ``ValueError`` unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{what} {value!r} is none of {', '.join(choices)}")


def check_files(
    title: str,
    root: Path,
    parts: Mapping[str, Sequence[str | Path]],
    expected: str,
    published: int | None = None,
    what: str = "pairs",
) -> None:
    """Say what is missing of a data set, before anything is read.

    Args:
        title: the data set's name.
        root: its folder.
        parts: for each kind of file ("right images") the paths it ought to have.
        expected: where the files should be, for a data set of which nothing is found.
        published: the number of pairs that the published set has; fewer give a warning.
        what: the set's unit, in the plural.

    Raises:
        FileNotFoundError: files are missing; the message counts them and names the first of each.
    """
    where = f"{title} at {root}"
    if not root.is_dir():
        raise FileNotFoundError(f"{where}: no such folder")
    most = max((len(paths) for paths in parts.values()), default=0)
    if most == 0:
        raise FileNotFoundError(f"{where}: no {what} found; expected {expected}")
    listings: dict[str, frozenset[str]] = {}
    complaints = []
    for kind, paths in parts.items():
        missing = [str(path) for path in paths if not _exists(str(path), listings)]
        if missing:
            complaints.append(f"{len(missing)} of {len(paths)} {kind} missing, first {missing[0]}")
    if complaints:
        raise FileNotFoundError(f"{where}: {'; '.join(complaints)}")
    if published is not None and most < published:
        warnings.warn(f"{where}: {most} of the published {published} {what} are here", stacklevel=3)


def read_text(path: str | os.PathLike, kind: str, most: int = 1 << 26) -> str:
    """Read a text file of a kind ("camera", "pair"), of at most so many bytes.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is empty, far too large or no text.
    """
    path = Path(path)
    if path.is_dir():
        raise FileNotFoundError(f"{path}: a folder; name a {kind} file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such {kind} file")
    if path.stat().st_size > most:
        raise ValueError(f"{path}: too long for a {kind} file ({path.stat().st_size} bytes)")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a {kind} file: not text at byte {error.start}") from None
    if not text.strip():
        raise ValueError(f"{path}: the {kind} file is empty")
    return text


def _exists(path: str, listings: dict[str, frozenset[str]]) -> bool:
    # One listing a folder: tens of thousands of single look-ups take minutes on a network disk.
    folder, name = os.path.split(path)
    if folder not in listings:
        try:
            listings[folder] = frozenset(os.listdir(folder or "."))
        except (FileNotFoundError, NotADirectoryError):
            listings[folder] = frozenset()
    return name in listings[folder]
