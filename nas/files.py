"""Files of the engine: JSON, written whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["atomic_write", "read_json", "write_json"]


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, renamed to ``path`` when the block ends well.

    Missing parent folders are made; the temporary name keeps the suffix. If the block raises, an
    earlier file of that name stays as it was.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a file was to be written there")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"cannot make the folder {path.parent}: {reason}") from error
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write ``data`` as indented JSON, atomically; NaN and infinities are refused."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


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
