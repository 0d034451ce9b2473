"""One file over HTTP, continued where an earlier attempt was cut.

It is our own because pooch begins anew after a cut and `huggingface_hub` serves the Hub alone:
here another attempt, process or mirror goes on from what arrived, and each failure is one line.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

TIMEOUT = 20.0
"""Seconds without a byte after which a connection counts as cut."""

_PAUSE = 0.5
"""Seconds before the second attempt; twice as many before each further one."""

_ATTEMPTS = 4
"""Attempts in a row that bring no new byte, after which a source is given up."""

_BLOCK = 1 << 18
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class SourceError(Exception):
    """One source failed; the next may work."""


class CacheError(OSError):
    """The cache folder cannot be written, whatever the source."""


class _Passing(Exception):
    """An attempt failed in a way that may be gone in a moment."""


def download(url: str, part: Path, size: int, progress: Progress) -> None:
    """Complete `part`, of the `size` that the whole file has, from a URL.

    What is there already is not fetched again: `part` grows by what arrives and stays when the
    connection is cut, for the next attempt or another process.

    Raises:
        SourceError: refused, unreachable, cut too often, or a file of another size.
        CacheError: the disk took no more.
    """
    if _length(part) > size:
        part.unlink()
    idle = 0
    while (before := _length(part)) < size:
        try:
            _attempt(url, part, size, progress)
        except _Passing as error:
            idle = 0 if _length(part) > before else idle + 1
            if idle >= _ATTEMPTS:
                arrived = _length(part)
                kept = f"after {arrived:,} of {size:,} bytes, which are kept: run again to continue"
                raise SourceError(f"{error} {kept}" if arrived else str(error)) from error
            if idle:
                host = urllib.parse.urlsplit(url).hostname
                progress.say(f"{progress.name}: {host}: {error}; trying again")
            time.sleep(_PAUSE * 2**idle)


def _attempt(url: str, part: Path, size: int, progress: Progress) -> None:
    start = _length(part)
    request = urllib.request.Request(url, headers={"User-Agent": "vizoo"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            part.unlink(missing_ok=True)
        reason = f"HTTP {error.code} {_plain(error.reason)}"
        if error.code in _PASSING or (error.code == 416 and start):
            raise _Passing(reason) from error
        raise SourceError(reason) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        text = f"cannot be reached{_way(url)} ({_plain(cause)})"
        # A name that does not resolve or a closed port will be so in a second, too.
        kind = SourceError if isinstance(error, urllib.error.URLError) else _Passing
        raise kind(text) from error
    with response:
        # A server may send all instead of the rest that was asked for.
        span = response.headers.get("Content-Range", "").replace(" ", "")
        if response.status != 206 or not span.startswith(f"bytes{start}-"):
            start = 0
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and start + int(length) != size:
            raise SourceError(f"has {start + int(length):,} bytes instead of {size:,}")
        with _disk(part):
            file = part.open("r+b" if start else "wb")
        with file:
            _receive(response, file, start, size, progress, part)


def _receive(
    response: Any, file: IO[bytes], start: int, size: int, progress: Progress, part: Path
) -> None:
    file.seek(start)
    arrived = start
    progress.show(arrived)
    while True:
        cut: Exception | None = None
        try:
            block = response.read1(_BLOCK)
        except http.client.IncompleteRead as error:
            block, cut = error.partial, error
        except (OSError, http.client.HTTPException) as error:
            block, cut = b"", error
        if arrived + len(block) > size:
            raise SourceError(f"has more than the {size:,} bytes of the file")
        with _disk(part):
            file.write(block)
            file.flush()
        arrived += len(block)
        progress.show(arrived)
        if arrived == size:
            return
        if cut is not None or not block:
            raise _Passing("cut" + (f" ({_plain(cut)})" if cut is not None else "")) from cut


def check_room(folder: Path, needed: int) -> None:
    """Raise CacheError if a folder has less room than a download needs."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CacheError(
            f"{folder}: {needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free: make "
            "room, or set VIZOO_HOME to a folder on another disk"
        )


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"{path}: cannot be written ({error.strerror or error}): make room, or set VIZOO_HOME "
            "to another folder"
        ) from error


def _way(url: str) -> str:
    """Words on the proxy that requests to an address take, whose password they do not tell."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(
        parts.netloc
    ):
        return f" through the proxy that {parts.scheme}_proxy names"
    return ""


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _plain(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


class Progress:
    """A bar on a terminal; elsewhere one line, for a download that takes over two seconds."""

    def __init__(self, name: str, size: int) -> None:
        from rich.console import Console

        self.name, self.size = name, size
        self._console = Console(stderr=True)
        self._bar: Any = None
        self._begin = time.monotonic()
        self._told = False

    def __enter__(self) -> Progress:
        if self._console.is_interactive:
            from rich import progress

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(self.name, total=self.size)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, arrived: int) -> None:
        """Tell how many bytes are there."""
        if self._bar is not None:
            self._bar.update(self._task, completed=arrived)
        elif not self._told and time.monotonic() - self._begin > 2:
            self._told = True
            self.say(f"downloading {self.name}, {self.size / 1e6:.1f} MB")

    def say(self, text: str) -> None:
        """Print one line beside the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
