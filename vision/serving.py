"""A page in the browser, served from here: what it may be asked for, and what it keeps."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..common.extras import from_extra

if sys.platform != "win32":
    import fcntl

__all__ = ["Gate", "Store", "check_free", "is_local", "page_folder", "served"]

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# All that a page of inputs and outputs asks of Gradio, whose server can do more.
_FILE = "/gradio_api/file="
_ASKED = re.compile(
    r"/(|config|theme\.css|favicon\.ico|manifest\.json|(assets|static)/.*"
    r"|gradio_api/(startup-events|info|upload|upload_progress|cancel|reset|heartbeat/\w+"
    rf"|queue/(join|data)|run/predict)/?)|{_FILE}.+"
)
_CALLS = ("/gradio_api/queue/join", "/gradio_api/run/predict")  # that name inputs
_WORDS = 1 << 18  # bytes of a request that uploads nothing
_FORM = 1 << 14  # bytes around an upload's own
# What the page loads comes from here alone, and no other page shows it inside its own.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; base-uri 'self'; "
    "object-src 'none'; frame-ancestors 'none'"
)
_SAID = {
    "content-security-policy": _POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_PORTS = 65535
_PREFIX, _YOUNG = "vizoo-page-", 60  # of folders, and seconds in which one may not be held yet
_KEPT, _LOOKED = 3600, 600  # seconds that files are kept, and after which that is looked at


@contextmanager
def page_folder() -> Iterator[Path]:
    """Make the folder of all that a page keeps; nobody else reads it, and it goes in the end.

    The page is built and served inside of this block. Folders of pages whose processes were killed
    go at its start.
    """
    _sweep()
    own_folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with own_folder as name, contextlib.ExitStack() as stack:
        folder = Path(name).resolve()
        with contextlib.suppress(OSError):
            stack.enter_context(_held(folder))
        own = {"GRADIO_TEMP_DIR": str(folder), "GRADIO_EXAMPLES_CACHE": str(folder / "examples")}
        own["GRADIO_ANALYTICS_ENABLED"] = "False"
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            yield folder
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _sweep() -> None:
    """Delete the folders of pages whose processes ended without doing so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _YOUNG:
                with _held(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder until the block ends, or the process does in whatever way.

    Raises:
        OSError: another process holds it, or folders cannot be held here.
    """
    if sys.platform == "win32":
        raise OSError("folders cannot be held")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


@contextmanager
def served(
    page: Any,
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    max_upload: float = 20e6,
    max_kept: float = 2e9,
    names: Collection[str] = (),
) -> Iterator[str]:
    """Serve a page as long as the block runs.

    One request is worked on at a time, sixteen wait. No file is given out but those in the page's
    folder, and nothing is asked of any other server. Uploads and results go after an hour, or
    earlier where they become too many.

    Args:
        page: an instance of ``gradio.Blocks``.
        folder: the one of `page_folder`.
        host: the address to listen at; with any but this machine's own (127.0.0.1) all who can
            reach it may use the page.
        port: of that address.
        max_upload: bytes of one file.
        max_kept: bytes of all uploads and results; the oldest go first.
        names: by which browsers call the page besides addresses, ``localhost`` and this machine's
            own name, such as that of a proxy in front.

    Yields:
        The page's address.

    Raises:
        ImportError: Gradio is not installed; the message says how to get it.
        ValueError: the port is none or taken, or there is no such address here.
    """
    host = host.strip("[]")
    check_free(host, port)
    gradio = from_extra("serve", "gradio", "a page")
    middleware = from_extra("serve", "starlette.middleware", "a page").Middleware
    hosts = {host, "localhost"}
    if not is_local(host):
        own = socket.gethostname()
        hosts |= {own, f"{own}.local", socket.getfqdn()}
    store = Store(folder, max_kept)
    gate = middleware(Gate, store=store, max_upload=max_upload, hosts=hosts, names=names)
    page.queue(default_concurrency_limit=1, max_size=16, api_open=False)
    plain = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    page.launch(
        server_name=f"[{host}]" if ":" in host else host,
        server_port=port,
        max_file_size=int(max_upload),
        app_kwargs={"middleware": [gate]},
        theme=gradio.themes.Default(**plain),
        allowed_paths=[],
        share=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        prevent_thread_lock=True,
        quiet=True,
    )
    ended = threading.Event()

    def clear() -> None:
        while not ended.wait(_LOOKED):
            store.clear()

    threading.Thread(target=clear, daemon=True).start()
    try:
        yield page.local_url
    finally:
        ended.set()
        page.close(verbose=False)


def is_local(host: str) -> bool:
    """Say whether nobody but this machine reaches an address."""
    host = host.strip("[]")
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


class Store:
    """The files of a page: those that are there now stay, later ones go after an hour.

    Args:
        folder: holds the files.
        most: bytes of all that do not stay; the oldest go first.
    """

    def __init__(self, folder: Path, most: float = 2e9) -> None:
        self.folder, self.most = folder, most
        self._staying = set(folder.iterdir())
        self._one = threading.Lock()

    def clear(self) -> None:
        """Delete what is too old or too much."""
        with self._one:
            files = []
            for path in set(self.folder.iterdir()) - self._staying:
                with contextlib.suppress(OSError):  # another request moved it
                    parts = [part.lstat() for part in (path, *path.rglob("*"))]
                    newest = max(part.st_mtime for part in parts)
                    files.append((newest, sum(part.st_size for part in parts), path))
            total = sum(size for _, size, _ in files)
            for newest, size, path in sorted(files):
                if total <= self.most and time.time() - newest <= _KEPT:
                    break
                total -= size
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


class Gate:
    """In front of Gradio's server: lets through what a page of inputs and outputs asks for.

    Args:
        app: what it stands before (ASGI).
        store: whose files are given out, and taken as inputs.
        max_upload: bytes of one upload.
        hosts: names by which the page may be called besides addresses: another site could point
            its own name here.
        names: more of these, also where what stands in front hides them.
    """

    def __init__(
        self,
        app: Any,
        *,
        store: Store,
        max_upload: float,
        hosts: Collection[str] = ("localhost",),
        names: Collection[str] = (),
    ) -> None:
        self.app, self.store = app, store
        self.names = {name.lower() for name in names}
        self.hosts = {name.lower() for name in hosts} | self.names
        self.most = {"/gradio_api/upload": max_upload + _FORM}

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        status, why = self._refused(scope)
        path = scope["path"].rstrip("/")
        if not status and path in _CALLS:
            body = await _body(receive)
            receive = _again(body, receive)
            status, why = (0, "") if self._fits(body) else (403, "names files that are not here")
        if status:
            start = {"type": "http.response.start", "status": status}
            kinds = {"content-type": "text/plain; charset=utf-8", **_SAID}
            await send({**start, "headers": _encoded(kinds)})
            return await send({"type": "http.response.body", "body": f"refused: {why}".encode()})
        if path in (*self.most, *_CALLS):
            self.store.clear()

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_encoded(_SAID)]
            await send(message)

        try:
            return await self.app(scope, receive, guarded)
        except Exception as error:
            if type(error).__name__ != "ClientDisconnect":  # Starlette's: a tab closed in an upload
                raise

    def _refused(self, scope: _Scope) -> tuple[int, str]:
        """The status by which a request is refused, 0 where it is not, and why."""
        path = scope["path"]
        headers = {name.decode("latin1"): text.decode("latin1") for name, text in scope["headers"]}
        host = headers.get("host", "")
        if not _is_address(name := _hostname(host)) and name not in self.hosts:
            why = f"this page does not go by the name {name}; `vizoo serve --name` gives it one"
            return 421, why
        origin = headers.get("origin")
        if origin is not None and not self._same(origin, host):
            return 403, "asked for by another page"
        if not _ASKED.fullmatch(path):
            return 404, "there is no such thing"
        if path.startswith(_FILE) and not self._ours(path.removeprefix(_FILE)):
            return 403, "not a file of this page"
        if scope["method"] in ("GET", "HEAD"):
            return 0, ""
        length = headers.get("content-length", "")
        # A body in chunks would be as long as it likes, whatever the length says.
        if not length.isdecimal() or "transfer-encoding" in headers:
            return 411, "without a length"
        most = self.most.get(path.rstrip("/"), _WORDS)
        return (413, f"more than {most / 1e6:.3g} MB") if int(length) > most else (0, "")

    def _same(self, origin: str, host: str) -> bool:
        """Say whether a request comes from this very page."""
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        own = parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
        return own or _hostname(parts.netloc) in self.names

    def _fits(self, body: bytes) -> bool:
        """Say whether all files that a request names were uploaded."""
        try:
            return all(self._ours(name) for name in _files(json.loads(body)))
        except (ValueError, RecursionError):
            return False

    def _ours(self, name: str) -> bool:
        try:
            return Path(name).resolve().is_relative_to(self.store.folder)
        except (OSError, ValueError):
            return False


def _hostname(netloc: str) -> str:
    """The name or address before the port, without an address's brackets."""
    return re.sub(r":\d+$", "", netloc).strip("[]").lower()


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), text.encode()) for name, text in headers.items()]


def _files(value: Any) -> Iterator[str]:
    """Every path in a request, and addresses that hold or fetch a file's content."""
    if isinstance(value, dict):
        if isinstance(value.get("path"), str):
            yield value["path"]
        if str(value.get("url", "")).startswith("data:"):
            yield value["url"]
        value = list(value.values())
    for part in value if isinstance(value, list) else ():
        yield from _files(part)


async def _body(receive: _Receive) -> bytes:
    """All of a request; the server holds it to the length that it gave."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _again(body: bytes, receive: _Receive) -> _Receive:
    """What gives a request's body once more, then what comes after it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return replay


def check_free(host: str, port: int) -> None:
    """Refuse an address that cannot be listened at, before anything is started.

    Raises:
        ValueError: the port is none or taken, or the host is not this machine's.
    """
    if not 0 < port <= _PORTS:
        raise ValueError(f"port {port}: a port is a number from 1 to {_PORTS}")
    try:
        host = host.strip("[]")  # of IPv6
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        of_port = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        remedy = "another port" if of_port else "a host that is this machine's, such as 127.0.0.1"
        raise ValueError(f"cannot listen at {host}:{port}: {reason}; name {remedy}") from error
