"""What commands that work for minutes share: warnings in one line, and the folder."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["check_apart", "check_folder", "check_names", "collect_warnings", "warn"]


def check_folder(name: str) -> Path:
    """Return the folder that results go to, which need not exist yet.

    Raises:
        ValueError: it could not be made or written to.
    """
    if not name:
        raise ValueError("--out is empty; name a folder (`.` for this one)")
    out = Path(name)
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise ValueError(f"--out {out}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--out {out}: {there} is not writable; name another folder")
    return out


def check_apart(inputs: Iterable[Path], out: Path) -> None:
    """Refuse to write where inputs lie.

    Raises:
        ValueError: one lies in that folder, or is it.
    """
    for path in inputs:
        home = path if path.is_dir() else path.parent
        if home.resolve() == out.resolve():
            raise ValueError(
                f"--out {out} is where {path.name} lies: results could overwrite data there, or be "
                "taken for it; name another folder"
            )


def check_names(inputs: Mapping[str, Path]) -> None:
    """Refuse a name whose ``NAME.json`` is that of the summary of all.

    Raises:
        ValueError: one is called so.
    """
    if "summary" in inputs:
        raise ValueError(
            f"{inputs['summary']}: its result would be summary.json, as the summary of all is; "
            "rename it"
        )


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of a block that are for the user, each once."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    found = [str(warning.message) for warning in caught if warning.category is UserWarning]
    notes += dict.fromkeys(found)


def warn(message: str) -> None:
    """Print a warning as one line on stderr."""
    print(f"vizoo: warning: {message}", file=sys.stderr)
