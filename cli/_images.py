"""Which images a command was asked for, found before any work starts."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from ._work import unique_names

__all__ = ["expand", "find_images"]


def find_images(words: Iterable[str]) -> dict[str, Path]:
    """The images that files, folders and globs name, by the first part of their results' names.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: two results would have one name.
    """
    files = {file.resolve(): file for word in words for file in expand(word)}
    images = list(files.values())
    return dict(zip(unique_names(images), images, strict=True))


def expand(word: str) -> list[Path]:
    """The images that a file, a folder or a glob names, sorted.

    Raises:
        FileNotFoundError: nothing is there.
    """
    from ..vision.io.images import SUFFIXES
    from ..vision.io.pairing import images_in

    path = Path(word)
    if path.is_dir():
        files, nothing = images_in(path), f"no image in this folder ({' '.join(SUFFIXES)})"
    elif path.is_file() or not glob.has_magic(word):
        files, nothing = [path] if path.is_file() else [], "no such file"
    else:
        files = [Path(name) for name in glob.glob(word, recursive=True) if Path(name).is_file()]
        nothing = "no file matches"
    if not files:
        raise FileNotFoundError(f"{word}: {nothing}")
    return sorted(files)
