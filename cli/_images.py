"""Which images a command was asked for, found before any work starts."""

from __future__ import annotations

import glob
from pathlib import Path

__all__ = ["check_apart", "find_images"]


def find_images(words: list[str], result: str) -> dict[str, Path]:
    """The images that files, folders and globs name, by the first part of their results' names.

    Args:
        words: as typed.
        result: what follows that part in the names of results, for the message.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: two results would have one name.
    """
    from ..vision.io.images import SUFFIXES

    found: dict[str, Path] = {}
    for word in words:
        path = Path(word)
        if path.is_dir():
            files = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES]
            nothing = f"{word}: no image in this folder ({' '.join(SUFFIXES)})"
        else:
            magic = not path.is_file() and glob.has_magic(word)
            files = [Path(n) for n in glob.glob(word, recursive=True)] if magic else [path]
            files = [file for file in files if file.is_file()]
            nothing = f"{word}: no {'file matches' if magic else 'such file'}"
        if not files:
            raise FileNotFoundError(nothing)
        for file in sorted(files):
            other = found.setdefault(file.stem, file)
            if other.resolve() != file.resolve():
                raise ValueError(
                    f"{other} and {file} would both write {file.stem}{result}; infer them into "
                    "different folders"
                )
    return found


def check_apart(images: dict[str, Path], out: Path) -> None:
    """Refuse to write where the images lie.

    Raises:
        ValueError: one lies in that folder.
    """
    for image in images.values():
        if image.parent.resolve() == out.resolve():
            raise ValueError(
                f"--out {out} is where {image.name} lies: results could overwrite data there; "
                "name another folder"
            )
