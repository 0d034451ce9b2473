"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import csv
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "JsonFile",
    "atomic_write",
    "check_formats",
    "check_version",
    "existing",
    "few",
    "make_folder",
    "read_json",
    "shortened",
    "write_bytes",
    "write_csv",
    "write_json",
    "write_text",
]

_Read = TypeVar("_Read", bound="JsonFile")


@contextmanager
def atomic_write(path: str | os.PathLike, beside: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, renamed to ``path`` when the block ends well.

    Missing parent folders are made. The temporary name keeps the suffix, because many writers
    choose their format by it. If the block raises, the temporary file goes and an earlier file of
    that name stays as it was. Files of the same name but for a suffix of ``beside`` go with it.

    Raises:
        OSError: the folder cannot be made or written to.

    Example:
        >>> with atomic_write("out/disparity.npy") as temporary:
        ...     np.save(temporary, disparity)
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a file was to be written there")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        for suffix in beside:
            os.replace(temporary.with_suffix(suffix), path.with_suffix(suffix))
        os.replace(temporary, path)
    except OSError as error:
        told = error
        if error.errno is None and isinstance(error.__cause__, OSError):
            told = error.__cause__  # pydicom says it with a traceback
        if told.errno is not None:
            # Writers say "No space left on device" without a name, or with the temporary one.
            raise OSError(told.errno, told.strerror, os.fspath(path)) from error
        if str(path) in str(error):
            raise
        raise OSError(f"{path}: cannot be written: {error}") from error
    finally:
        for written in (temporary, *map(temporary.with_suffix, beside)):
            written.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing.

    Raises:
        OSError: it cannot be made; one line with its path.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"cannot make the folder {folder}: a file, or a link to what is not there, is in the "
            "way; name another folder"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"cannot make the folder {folder}: {reason}") from error


def existing(path: str | os.PathLike[str], what: str = "") -> Path:
    """The path of a file that is there.

    Args:
        path: the file.
        what: what was to be read from it, for the error: "a table of accuracies".

    Raises:
        FileNotFoundError: it is not.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file{what and f' to read {what} from'}")
    return path


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file, atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write text as UTF-8, atomically; bytes of file names that are none become escapes."""
    return write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write ``data`` as indented JSON, atomically; NaN and infinities are refused."""
    return write_text(path, json.dumps(data, indent=2, allow_nan=False, default=_plain) + "\n")


def _plain(value: Any) -> int | float:
    """A number of NumPy's as Python's."""
    if not isinstance(value, Real):
        raise TypeError(f"{type(value).__name__} {shortened(value)} is nothing that JSON holds")
    return int(value) if isinstance(value, Integral) else float(value)


def write_csv(
    path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Write a table as `write_text` does; None becomes an empty cell."""
    how: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
    with atomic_write(path) as temporary, temporary.open("w", **how) as file:
        csv.writer(file).writerows([header, *rows])


def read_json(
    path: str | os.PathLike[str],
    what: str = "a JSON file",
    parse: Callable[[Any], Any] = lambda data: data,
) -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        what: what it should be, for the error: "an architecture", "a latency table".
        parse: what to make of its plain values; may raise a ValueError.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not JSON, or cannot be parsed; one line with its path.
    """
    path = existing(path, what)
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not {what}: this is not valid JSON ({reason})") from error
    try:
        return parse(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


class JsonFile:
    """Something that has `to_json` and `from_json`, as a file."""

    __slots__ = ()
    called = "a JSON file"  #: what it is, for errors
    to_json: Callable[..., Any]
    from_json: Callable[..., Any]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON, atomically."""
        return write_json(path, self.to_json())

    @classmethod
    def load(cls: type[_Read], path: str | os.PathLike[str]) -> _Read:
        """Read a file written by `save`.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it holds something else; the message begins with the path.
        """
        return read_json(path, cls.called, cls.from_json)


def check_version(data: Any, version: int, what: str) -> None:
    """Refuse plain values of a version that this program does not know.

    Raises:
        ValueError: the mapping's `version` is another.
    """
    given = data.get("version")
    if isinstance(given, bool) or given != version:
        raise ValueError(f"{what} of version {shortened(given)}; this vizoo reads {version}")


def shortened(value: Any) -> str:
    """How Python writes a value, in one line of at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


def few(names: Iterable[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_formats(formats: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return file formats, each once.

    Raises:
        ValueError: one is not known.
    """
    formats = [formats] if isinstance(formats, str) else list(dict.fromkeys(formats))
    unknown = [form for form in formats if form not in known]
    if unknown:
        raise ValueError(f"unknown format {unknown[0]!r}: {', '.join(known)}")
    return formats
