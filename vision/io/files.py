"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["atomic_write", "check_formats"]


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
