"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import csv
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["atomic_write", "check_formats", "read_json", "write_csv", "write_json"]


@contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, renamed to ``path`` when the block ends well.

    Missing parent folders are made. The temporary name keeps the suffix, because many writers
    choose their format by it. If the block raises, the temporary file goes and an earlier file of
    that name stays as it was.

    Args:
        path: the file to write.

    Yields:
        Where to write: a path in the same folder, not existing yet.

    Raises:
        OSError: the folder cannot be made or written to.

    Example:
        >>> with atomic_write("out/disparity.npy") as temporary:
        ...     np.save(temporary, disparity)
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a file was to be written there")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"cannot make the folder {path.parent}: a file is in the way; name another folder"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"cannot make the folder {path.parent}: {reason}") from error
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None:
            # Writers say "No space left on device" without a name, or with the temporary one.
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        if str(path) in str(error):
            raise
        raise OSError(f"{path}: cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write ``data`` as indented JSON, atomically; NaN and infinities are refused."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_csv(
    path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write a table, atomically; None becomes an empty cell."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def read_json(path: str | os.PathLike[str], what: str = "a JSON file") -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        what: what it should be, for the error: "an architecture", "a latency table".

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not JSON; one line with its path.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; {what} was to be read from it")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not {what}: this is not valid JSON ({reason})") from error


def check_formats(formats: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return file formats, each once.

    Raises:
        ValueError: one is not known.
    """
    formats = list(dict.fromkeys(formats))
    unknown = [form for form in formats if form not in known]
    if unknown:
        raise ValueError(f"unknown format {unknown[0]!r}: {', '.join(known)}")
    return formats
