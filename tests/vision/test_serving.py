"""What stands before a page's server: which requests pass, whose files, how much."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from vizoo.vision.serving import Gate, Store, is_local, page_folder, served


async def echo(scope, receive, send):
    """The server behind: says what it was sent."""
    body = (await receive())["body"] if scope["method"] == "POST" else b""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(gate, path, body=None, host="127.0.0.1:7860", length=None, more=()):
    """Status, headers and body of an answer."""
    headers = [(b"host", host.encode()), *more]
    if body is not None and length != "none":
        headers.append((b"content-length", str(length or len(body)).encode()))
    scope = {"type": "http", "method": "GET" if body is None else "POST", "path": path}
    body = body or b""
    parts = [body[: len(body) // 2], body[len(body) // 2 :]]
    messages = [{"body": part, "more_body": i == 0} for i, part in enumerate(parts)]
    said = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        said.append(message)

    if not path.startswith("/gradio_api/queue"):  # which alone is read before it is passed on
        messages = [{"body": body, "more_body": False}]
    asyncio.run(gate({**scope, "headers": headers}, receive, send))
    return said[0]["status"], dict(said[0]["headers"]), said[1]["body"]


@pytest.fixture
def gate(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/picture.png").touch()
    (tmp_path / "secret.txt").touch()
    (tmp_path / "own/link").symlink_to(tmp_path / "secret.txt")
    return Gate(echo, store=Store(tmp_path / "own"), max_upload=1e6)


@pytest.mark.parametrize("path", ["/", "/config", "/assets/a.js", "/gradio_api/heartbeat/ab1"])
def test_what_the_page_asks_for_passes(gate, path):
    status, headers, _ = ask(gate, path)
    assert status == 200
    assert b"default-src 'self'" in headers[b"content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/proxy=https://example.org/",
        "/gradio_api/process_recording",
        "/gradio_api/vibe-edit",
        "/gradio_api/run-history/records",
        "/gradio_api/deep_link",
        "/gradio_api/file/etc/passwd",
        "/gradio_api/call/match",
        "/monitoring/summary",
        "/docs",
        "/file=/etc/passwd",
    ],
)
def test_what_the_server_can_do_beyond_is_refused(gate, path):
    assert ask(gate, path)[0] == 404


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "pyproject.toml",
        "{own}/../secret.txt",
        "{own}/link",
        "{own}x/picture.png",
        "https://example.org/a.png",
        "file:///etc/passwd",
        "{own}/\0",
    ],
)
def test_only_the_pages_own_files_are_given_out_or_taken(gate, name):
    name = name.format(own=gate.store.folder)
    assert ask(gate, f"/gradio_api/file={name}")[0] == 403
    for data in ({"path": name}, {"path": name, "meta": {"_type": "gradio.FileData"}}):
        body = json.dumps({"data": [None, [{"deeper": data}]], "fn_index": 0}).encode()
        assert ask(gate, "/gradio_api/queue/join", body)[0] == 403


def test_a_browser_that_goes_is_no_error(gate):
    """Of any other error the server behind tells itself."""
    for name in ("ClientDisconnect", "OtherError"):
        error = type(name, (Exception,), {})

        async def fails(*_, error=error):
            raise error

        gate.app = fails
        with pytest.raises(error if name == "OtherError" else IndexError):  # nothing was said
            ask(gate, "/")


def test_its_own_files_pass(gate):
    name = f"{gate.store.folder}/picture.png"
    assert ask(gate, f"/gradio_api/file={name}")[0] == 200
    body = json.dumps({"data": [{"path": name, "url": f"http://127.0.0.1/{name}"}]}).encode()
    status, _, said = ask(gate, "/gradio_api/queue/join", body)
    assert (status, said) == (200, body)


def test_files_within_a_request_and_what_is_no_json_are_refused(gate):
    data = {"path": f"{gate.store.folder}/picture.png", "url": "data:image/png;base64,AAAA"}
    for body in (json.dumps({"data": [data]}).encode(), b"no json", b"[" * 100_000):
        assert ask(gate, "/gradio_api/queue/join", body)[0] == 403


def test_bodies_have_a_limit_and_a_length(gate):
    assert ask(gate, "/gradio_api/upload", b"1", length=1_000_000)[0] == 200
    assert ask(gate, "/gradio_api/upload", b"1", length=1_100_000)[0] == 413
    assert ask(gate, "/gradio_api/queue/join", b"1", length=300_000)[0] == 413
    assert ask(gate, "/gradio_api/upload", b"1", length="none")[0] == 411
    chunked = [(b"transfer-encoding", b"chunked")]
    assert ask(gate, "/gradio_api/upload", b"1", more=chunked)[0] == 411


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "[::1]:7860", "192.168.1.7", "LOCALHOST:1"])
def test_addresses_and_known_names_pass(gate, host):
    assert ask(gate, "/", host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example:7860", "127.0.0.1.evil.example", "", "a:b:7860"])
def test_another_sites_name_is_refused(gate, host):
    status, headers, said = ask(gate, "/", host=host)
    assert status == 421 and b"`vizoo serve --name`" in said
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_a_name_that_was_given_passes(gate):
    gate = Gate(echo, store=gate.store, max_upload=1e6, names=["Stereo.example.org"])
    assert ask(gate, "/", host="stereo.example.org")[0] == 200
    # What stands in front may hide its name.
    hidden = [(b"origin", b"https://stereo.example.org")]
    assert ask(gate, "/gradio_api/upload", b"1", more=hidden)[0] == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7860", 200),
        ("https://127.0.0.1:7860", 200),
        ("http://127.0.0.1:8000", 403),
        ("http://localhost:7860", 403),
        ("https://evil.example", 403),
        ("http://127.0.0.1:7860.evil.example", 403),
        ("file://127.0.0.1:7860", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
@pytest.mark.parametrize(("path", "body"), [("/config", None), ("/gradio_api/upload", b"1")])
def test_other_pages_may_not_ask(gate, origin, status, path, body):
    assert ask(gate, path, body, more=[(b"origin", origin.encode())])[0] == status


def write(path, size: int, age: float) -> None:
    """Make a file in a folder of its own, some seconds old."""
    path.parent.mkdir()
    path.write_bytes(bytes(size))
    for part in (path, path.parent):
        os.utime(part, (time.time() - age,) * 2)


def test_old_files_go_and_the_oldest_of_too_many(tmp_path):
    write(tmp_path / "example/left.png", 900, 9000)
    store = Store(tmp_path, most=20_000)
    write(tmp_path / "old/left.png", 1, 4000)
    (tmp_path / "link").symlink_to("/etc/passwd")
    for age in (30, 20, 10):
        write(tmp_path / f"{age}/left.png", 1000, age)
    store.clear()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"example", "link", "30", "20", "10"}
    write(tmp_path / "new/left.png", 15_000, 0)
    most = sum(part.lstat().st_size for part in (tmp_path / "new", tmp_path / "new/left.png"))
    store.most = (
        most + (tmp_path / "10").stat().st_size + 1000 + (tmp_path / "link").lstat().st_size
    )
    store.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"example", "link", "10", "new"}


def test_room_is_made_before_an_upload(gate, monkeypatch):
    cleared = []
    monkeypatch.setattr(gate.store, "clear", lambda: cleared.append(None))
    ask(gate, "/config")
    ask(gate, "/gradio_api/upload", b"1", length=2_000_000)
    assert cleared == []
    ask(gate, "/gradio_api/upload", b"1")
    ask(gate, "/gradio_api/queue/join", b'{"data": []}')
    assert len(cleared) == 2


def test_the_folder_is_nobody_elses_and_goes(monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "mine")
    with page_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        assert os.environ["GRADIO_TEMP_DIR"] == str(folder)
        assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert not folder.exists()
    assert os.environ["GRADIO_TEMP_DIR"] == "mine"
    assert "GRADIO_EXAMPLES_CACHE" not in os.environ


KILLED = """
import time
from vizoo.vision.serving import page_folder
with page_folder() as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def test_folders_of_processes_that_were_killed_go(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words, env = [sys.executable, "-c", KILLED], {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    try:
        left = Path(process.stdout.readline().strip())
        write(left / "upload/left.png", 100, 9000)
        (tmp_path / "vizoo-page-young").mkdir()
        (tmp_path / "vizoo-page-link").symlink_to(tmp_path / "vizoo-page-young")
        os.utime(left, (0, 0))
        os.utime(tmp_path / "vizoo-page-link", (0, 0), follow_symlinks=False)
        with page_folder():
            assert (left / "upload/left.png").is_file()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    with page_folder() as folder:
        assert not left.exists() and folder.is_dir()
    kept = {"vizoo-page-young", "vizoo-page-link"}
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("h", False),
    ],
)
def test_is_local(host, local):
    assert is_local(host) == local


def test_a_port_that_is_taken_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen at 127.0.0.1:{port}: .*another port"):
            with served(None, tmp_path, port=port):
                pass


@pytest.mark.parametrize("port", [-1, 0, 65536, 99999])
def test_what_is_no_port_is_said(tmp_path, port):
    with pytest.raises(ValueError, match=f"port {port}: a port is a number from 1 to 65535"):
        with served(None, tmp_path, port=port):
            pass


@pytest.mark.parametrize("host", ["nosuchhost.invalid", "192.0.2.1", "a" * 64])
def test_a_host_that_is_not_here_is_said(tmp_path, host):
    with pytest.raises(ValueError, match=f"cannot listen at {host}:7860: .*; name a host") as told:
        with served(None, tmp_path, host=host):
            pass
    assert "another port" not in str(told.value)
