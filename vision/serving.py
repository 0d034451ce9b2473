"""A page in the browser, served from here: what it may be asked for, and what it keeps."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..common.extras import from_extra

__all__ = ["Gate", "is_local", "page_folder", "served"]

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


@contextmanager
def page_folder() -> Iterator[Path]:
    """Make the folder of all that a page keeps; nobody else reads it, and it goes in the end.

    The page is built and served inside of this block.
    """
    with tempfile.TemporaryDirectory(prefix="vizoo-page-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        own = {"GRADIO_TEMP_DIR": str(folder), "GRADIO_EXAMPLES_CACHE": str(folder / "examples")}
        own["GRADIO_ANALYTICS_ENABLED"] = "False"
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            yield folder
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def served(
    page: Any,
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    max_upload: float = 20e6,
) -> Iterator[str]:
    """Serve a page as long as the block runs.

    One request is worked on at a time, sixteen wait. No file is given out but those in the page's
    folder, and nothing is asked of any other server.

    Args:
        page: ``gradio.Blocks``.
        folder: of `page_folder`.
        host: the address to listen at; with any but this machine's own (127.0.0.1) all who can
            reach it may use the page.
        port: of that address.
        max_upload: bytes of one file.

    Yields:
        The page's address.

    Raises:
        ImportError: Gradio is not installed; the message says how to get it.
        ValueError: the port is taken, or there is no such address here.
    """
    gradio = from_extra("serve", "gradio", "a page")
    middleware = from_extra("serve", "starlette.middleware", "a page").Middleware
    _check_free(host, port)
    hosts = {host, "localhost", "127.0.0.1", "[::1]"} if is_local(host) else None
    gate = middleware(Gate, folder=folder, max_upload=max_upload, hosts=hosts)
    page.queue(default_concurrency_limit=1, max_size=16, api_open=False)
    plain = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    page.launch(
        server_name=host,
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
    try:
        yield page.local_url
    finally:
        page.close(verbose=False)


def is_local(host: str) -> bool:
    """Say whether nobody but this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """In front of Gradio's server: lets through what a page of inputs and outputs asks for.

    Args:
        app: what it stands before (ASGI).
        folder: whose files are given out, and taken as inputs.
        max_upload: bytes of one upload.
        hosts: names by which the page may be called; None for any. Another site's page could
            otherwise point its own name here.
    """

    def __init__(
        self, app: Any, *, folder: Path, max_upload: float, hosts: set[str] | None
    ) -> None:
        self.app, self.folder, self.hosts = app, folder, hosts
        self.most = {"/gradio_api/upload": max_upload + _FORM}

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        status = self._refused(scope)
        if not status and scope["path"].rstrip("/") in _CALLS:
            body = await _body(receive)
            receive = _again(body, receive)
            status = 0 if self._fits(body) else 403
        if status:
            start = {"type": "http.response.start", "status": status}
            await send({**start, "headers": [(b"content-type", b"text/plain")]})
            return await send({"type": "http.response.body", "body": b"refused"})

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [(b"content-security-policy", _POLICY.encode())]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        return await self.app(scope, receive, guarded)

    def _refused(self, scope: _Scope) -> int:
        """The status by which a request is refused; 0 where it is not."""
        path = scope["path"]
        headers = {name.decode("latin1"): text.decode("latin1") for name, text in scope["headers"]}
        host = re.sub(r":\d+$", "", headers.get("host", ""))
        if self.hosts is not None and host not in self.hosts:
            return 421
        if not _ASKED.fullmatch(path):
            return 404
        if path.startswith(_FILE) and not self._ours(path.removeprefix(_FILE)):
            return 403
        if scope["method"] in ("GET", "HEAD"):
            return 0
        length = headers.get("content-length", "")
        # A body in chunks would be as long as it likes, whatever the length says.
        if not length.isdecimal() or "transfer-encoding" in headers:
            return 411
        return 413 if int(length) > self.most.get(path.rstrip("/"), _WORDS) else 0

    def _fits(self, body: bytes) -> bool:
        """Say whether all files that a request names were uploaded."""
        try:
            return all(self._ours(name) for name in _files(json.loads(body)))
        except (ValueError, RecursionError):
            return False

    def _ours(self, name: str) -> bool:
        try:
            return Path(name).resolve().is_relative_to(self.folder)
        except (OSError, ValueError):
            return False


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


def _check_free(host: str, port: int) -> None:
    """Refuse an address that cannot be listened at, before anything is started."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot listen at {host}:{port}: {reason}; name another port") from error
