"""What stands before a page's server: which requests pass, whose files, how much."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest

from vizoo.vision.serving import Gate, is_local, page_folder, served


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
    return Gate(echo, folder=tmp_path / "own", max_upload=1e6, hosts={"127.0.0.1"})


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
    name = name.format(own=gate.folder)
    assert ask(gate, f"/gradio_api/file={name}")[0] == 403
    for data in ({"path": name}, {"path": name, "meta": {"_type": "gradio.FileData"}}):
        body = json.dumps({"data": [None, [{"deeper": data}]], "fn_index": 0}).encode()
        assert ask(gate, "/gradio_api/queue/join", body)[0] == 403


def test_its_own_files_pass(gate):
    name = f"{gate.folder}/picture.png"
    assert ask(gate, f"/gradio_api/file={name}")[0] == 200
    body = json.dumps({"data": [{"path": name, "url": f"http://127.0.0.1/{name}"}]}).encode()
    status, _, said = ask(gate, "/gradio_api/queue/join", body)
    assert (status, said) == (200, body)


def test_files_within_a_request_and_what_is_no_json_are_refused(gate):
    data = {"path": f"{gate.folder}/picture.png", "url": "data:image/png;base64,AAAA"}
    for body in (json.dumps({"data": [data]}).encode(), b"no json", b"[" * 100_000):
        assert ask(gate, "/gradio_api/queue/join", body)[0] == 403


def test_bodies_have_a_limit_and_a_length(gate):
    assert ask(gate, "/gradio_api/upload", b"1", length=1_000_000)[0] == 200
    assert ask(gate, "/gradio_api/upload", b"1", length=1_100_000)[0] == 413
    assert ask(gate, "/gradio_api/queue/join", b"1", length=300_000)[0] == 413
    assert ask(gate, "/gradio_api/upload", b"1", length="none")[0] == 411
    chunked = [(b"transfer-encoding", b"chunked")]
    assert ask(gate, "/gradio_api/upload", b"1", more=chunked)[0] == 411


def test_another_sites_name_is_refused(gate):
    assert ask(gate, "/", host="evil.example:7860")[0] == 421
    gate.hosts = None
    assert ask(gate, "/", host="evil.example:7860")[0] == 200


def test_the_folder_is_nobody_elses_and_goes(monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "mine")
    with page_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        assert os.environ["GRADIO_TEMP_DIR"] == str(folder)
        assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert not folder.exists()
    assert os.environ["GRADIO_TEMP_DIR"] == "mine"
    assert "GRADIO_EXAMPLES_CACHE" not in os.environ


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("h", False)],
)
def test_is_local(host, local):
    assert is_local(host) == local


def test_a_port_that_is_taken_is_said(tmp_path):
    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen at 127.0.0.1:{port}: .*another port"):
            with served(None, tmp_path, port=port):
                pass
