"""From a record to a file on this machine whose SHA-256 is right.

Sources are tried in order: what needs no network first. Downloads go to ``$VIZOO_HOME/weights``,
or to ``vizoo/weights`` in the platform's folder for caches; what comes from the Hugging Face Hub
stays in the Hub's own cache. ``VIZOO_OFFLINE=1`` forbids the network, and so do the Hub's own
``HF_HUB_OFFLINE=1`` and ``TRANSFORMERS_OFFLINE=1``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from . import _huggingface
from ._http import CacheError, Progress, SourceError, check_room, download
from .record import Source, WeightsRecord, parse_source

__all__ = [
    "DownloadError",
    "cache_folder",
    "difference",
    "fetch",
    "find_local",
    "offline_flag",
    "sha256_of",
]

_ROOT = Path(__file__).resolve().parents[2]
_OFF = ("", "0", "no", "off", "false")
_WAIT = 2.0


class DownloadError(OSError):
    """No source gave the weights; the message names all that were tried and why each failed."""


def fetch(record: WeightsRecord, name: str = "these weights") -> Path:
    """A file with the record's weights; downloaded if need be, its SHA-256 checked each time.

    Errors call it `name`, such as ``fadnet_plus_tiny.generated``.

    Raises:
        DownloadError: no source worked, or the network is needed and forbidden.
        OSError: the cache folder cannot be written.
    """
    failures: list[str] = []
    damaged = set()
    for text, path in _there(record):
        if (wrong := difference(path, record)) is None:
            return path
        damaged.add(text)
        failures.append(f"{path}: {wrong}")
    flag = offline_flag()
    for text in record.sources:
        source = parse_source(text)
        if source.kind == "package":
            if text not in damaged:
                failures.append(f"{text}: not in this installation")
            continue
        if flag:
            failures.append(f"{text}: not tried, since {flag}")
            continue
        try:
            if source.kind == "url":
                return _from_url(source, record, name)
            path = _huggingface.obtain(source, again=text in damaged)
            if (wrong := difference(path, record)) is not None:
                raise SourceError(wrong)
            return path
        except SourceError as error:
            failures.append(f"{text}: {error}")
    raise DownloadError(_summary(name, record, failures, flag))


def find_local(record: WeightsRecord) -> Path | None:
    """Where the weights lie on this machine, unchecked, or None; uses no network."""
    return next((path for _, path in _there(record)), None)


def cache_folder() -> Path:
    """``$VIZOO_HOME/weights``, or ``vizoo/weights`` in the platform's folder for caches.

    Raises:
        OSError: the user has no home folder.
    """
    try:
        if home := os.environ.get("VIZOO_HOME"):
            return Path(home).expanduser().absolute() / "weights"
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise CacheError(
            f"no folder for downloaded weights ({str(error).rstrip('.')}): set VIZOO_HOME to a "
            "folder of yours"
        ) from error
    return base / "vizoo" / "weights"


def _cached_path(record: WeightsRecord) -> Path:
    """Where a download of the record lies, or would lie: its name bears part of its SHA-256."""
    name = parse_source(record.sources[0]).file_name if record.sources else "weights"
    stem, dot, suffix = name.rpartition(".")
    stem, suffix = (stem, f".{suffix}") if dot and stem else (name, "")
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in stem)
    return cache_folder() / f"{plain}-{record.sha256[:12]}{suffix}"


def offline_flag() -> str | None:
    """The environment variable that forbids the network, as ``NAME=value``, or None."""
    for name in ("VIZOO_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        value = os.environ.get(name, "")
        if value.lower() not in _OFF:
            return f"{name}={value}"
    return None


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _there(record: WeightsRecord) -> Iterator[tuple[str, Path]]:
    """Sources that are on this machine, and their files, unchecked; at last what was downloaded."""
    for text in record.sources:
        source = parse_source(text)
        if source.kind == "package" and (path := _ROOT / source.path).is_file():
            yield text, path
        elif source.kind == "hf-hub":
            with contextlib.suppress(SourceError):
                yield text, _huggingface.obtain(source, local=True)
    with contextlib.suppress(CacheError):  # that folder may be out of reach
        if os.path.isfile(path := _cached_path(record)):
            yield "", path


def _from_url(source: Source, record: WeightsRecord, name: str) -> Path:
    """Download one URL under a lock, so that processes that start at once fetch it once."""
    import filelock

    path = _cached_path(record)
    part = path.with_name(f"{path.name}.part")
    lock = filelock.FileLock(path.with_name(f"{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Progress(name, record.size) as progress:
            try:
                held = lock.acquire(timeout=_WAIT)
            except filelock.Timeout:
                progress.say(f"waiting for another process that downloads {name}")
                held = lock.acquire()
            with held:
                if path.is_file() and difference(path, record) is None:
                    return path
                return _complete(source, record, path, part, progress)
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(
            f"{cache_folder()}: the folder for downloaded weights cannot be written "
            f"({error.strerror or error}): set VIZOO_HOME to a folder of yours"
        ) from error


def _complete(
    source: Source, record: WeightsRecord, path: Path, part: Path, progress: Progress
) -> Path:
    continued = part.is_file() and part.stat().st_size > 0
    check_room(path.parent, record.size - (part.stat().st_size if continued else 0))
    download(source.path, part, record.size, progress)
    wrong = difference(part, record)
    if wrong is not None:
        part.unlink()
        if not continued:
            raise SourceError(wrong)
        # The beginning may be another mirror's, or of another day.
        return _complete(source, record, path, part, progress)
    os.replace(part, path)
    return path


def difference(path: Path, record: WeightsRecord) -> str | None:
    """What of a file is not as its record says, or None."""
    try:
        size = path.stat().st_size
        if size != record.size:
            return f"has {size:,} bytes instead of {record.size:,}"
        digest = sha256_of(path)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    if digest != record.sha256:
        return f"its SHA-256 is {digest[:12]}… instead of {record.sha256[:12]}…"
    return None


def _summary(name: str, record: WeightsRecord, failures: list[str], flag: str | None) -> str:
    tried = "; ".join(failures) or "the record names no source"
    remedy = f"unset {flag.partition('=')[0]}, or " if flag else ""
    return (
        f"{name}: cannot get its weights: {tried}. What to do: {remedy}put a copy of the file at "
        f"{_cached_path(record)} (its SHA-256 is {record.sha256})"
    )
