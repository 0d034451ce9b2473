"""`vizoo serve`: the page from outside, as a program, as an attacker and in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from browser import CHROMIUM, browser
from PIL import Image

from vizoo.__main__ import main
from vizoo.common.extras import from_extra
from vizoo.stereo import page as pages
from vizoo.vision.io.disparity import read_disparity
from vizoo.vision.serving import page_folder, served

TINY = "fadnet_plus_tiny.generated"
# focal length, baseline, calibration, network, limit, both, rectify, least
DEFAULTS = [0, 0, None, TINY, 500, False, False, 0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def site():
    """The page's address and its folder."""
    pytest.importorskip("gradio")
    with page_folder() as folder:
        page = pages.build_page(folder, [TINY, "easnet_small"], "cpu", max_pixels=100_000)
        with served(page, folder, port=free_port(), max_upload=200_000) as address:
            yield address, folder


@pytest.fixture(scope="module")
def pair(site):
    """The layered scene among the examples."""
    return [site[1] / f"scene_{side}.png" for side in ("left", "right")]


def ask(site, method: str, path: str, body: bytes | None = None, **headers: str):
    """Status and body of an answer; the path is sent as it is."""
    connection = http.client.HTTPConnection(urlsplit(site[0]).netloc, timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_program_gets_what_the_page_shows(site, pair):
    from gradio_client import Client, handle_file

    client = Client(site[0], verbose=False)
    files = [handle_file(file) for file in pair]
    options = [300, 0.1, None, TINY, 500, True, False, 0]
    shown = client.predict(*files, *options, api_name="/match")
    facts, disparity, confidence, occluded, cloud, results = shown
    for file in (disparity, confidence, occluded["value"]):
        assert Image.open(file).size[0] >= 384
    assert Path(cloud).read_bytes()[:4] == b"glTF"
    assert facts.startswith(f"**{TINY}** on cpu, 240x384: network")
    folder = Path(results).parent / "unpacked"
    shutil.unpack_archive(results, folder)
    assert read_disparity(folder / "pair_disparity.pfm")[0].shape == (1, 240, 384)
    assert (folder / "pair_cloud.ply").is_file()


def test_errors_are_the_librarys_own_line(site, pair, tmp_path, capfd):
    from gradio_client import Client, handle_file

    client = Client(site[0], verbose=False)
    Image.new("L", (400, 300)).save(tmp_path / "large.png")
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(np.zeros((24, 32), np.uint8)).save(tmp_path / "small.png")
    for name, words in {
        "large.png": "the right image: 300x400 are 0.1 million pixels, more than the 0.1",
        "text.png": "the right image: not an image of a common kind",
        "small.png": "differ in size: 240x384 against 24x32",
    }.items():
        files = [handle_file(file) for file in (pair[0], tmp_path / name)]
        with pytest.raises(Exception, match=words) as told:
            client.predict(*files, *DEFAULTS, api_name="/match")
        assert str(site[1]) not in str(told.value)
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err


def test_uploads_have_a_limit_and_names_are_no_paths(site):
    def upload(name: str, content: bytes):
        edge = "edge"
        head = f'--{edge}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
        body = head.encode() + b"Content-Type: image/png\r\n\r\n" + content
        kind = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        whole = body + f"\r\n--{edge}--\r\n".encode()
        return ask(site, "POST", "/gradio_api/upload", whole, **kind)

    status, said = upload("../../../../evil.png", b"content")
    assert status == 200
    (path,) = json.loads(said)
    assert Path(path).resolve().is_relative_to(site[1]) and Path(path).name == "evil.png"
    assert upload("large.png", bytes(210_000))[0] == 413
    assert upload("large.png", bytes(2_000_000))[0] == 413


@pytest.mark.parametrize("form", ["{}", "/{}", "../../../../../..{}", "file://{}"])
def test_no_file_of_this_machine_is_given_out(site, root, tmp_path, form):
    (tmp_path / "link.png").symlink_to("/etc/passwd")
    (site[1] / "link.png").unlink(missing_ok=True)
    (site[1] / "link.png").symlink_to("/etc/passwd")
    inside = (site[1] / "link.png", f"{site[1]}/../../etc/passwd")
    for file in ("/etc/passwd", root / "pyproject.toml", tmp_path / "link.png", *inside):
        name = form.format(file)
        for word in ("file=", "file/", "proxy=", "static/", "assets/"):
            for path in {name, quote(name), quote(name, safe=""), quote(quote(name, safe=""))}:
                for prefix in ("/gradio_api/", "/"):
                    status, said = ask(site, "GET", f"{prefix}{word}{path}")
                    assert status in (400, 403, 404), f"{prefix}{word}{path}"
                    assert b"root:" not in said and b"[project]" not in said


@pytest.mark.parametrize("door", ["queue/join", "run/predict", "call/match", "api/match"])
@pytest.mark.parametrize("meta", [{"meta": {"_type": "gradio.FileData"}}, {}])
def test_a_path_is_no_upload(site, root, pair, door, meta):
    addresses = ["http://127.0.0.1:1/a.png", "https://example.org/a.png"]
    for path in ("/etc/passwd", str(root / "docs/demo.png"), "../demo.png", *addresses):
        data = [{"path": path, **meta}, {"path": str(pair[1]), **meta}, *DEFAULTS]
        body = json.dumps({"data": data, "fn_index": 0, "session_hash": "s"}).encode()
        kind = {"Content-Type": "application/json"}
        status, said = ask(site, "POST", f"/gradio_api/{door}", body, **kind)
        assert status in (403, 404) and b"root:" not in said


def test_one_at_a_time(site, pair, monkeypatch):
    from gradio_client import Client, handle_file

    at_once, most, waited = [], [], threading.Event()

    def find(*_, **__):
        at_once.append(None)
        most.append(len(at_once))
        waited.wait(60)
        at_once.pop()
        raise ValueError("enough")

    monkeypatch.setattr(pages.Trials, "find", find)
    clients = [Client(site[0], verbose=False) for _ in range(3)]
    files = [handle_file(file) for file in pair]
    jobs, ranks = [], set()
    for client in clients:
        jobs.append(client.submit(*files, *DEFAULTS, api_name="/match"))
    end = time.monotonic() + 30
    while not {0, 1} <= ranks and time.monotonic() < end:
        ranks |= {job.status().rank for job in jobs}
        time.sleep(0.02)
    waited.set()
    for job in jobs:
        with pytest.raises(Exception, match="enough"):
            job.result(timeout=60)
    assert most == [1, 1, 1]
    assert {0, 1} <= ranks  # those who wait are told how many are before them


def test_nobody_is_told(site):
    assert json.loads(ask(site, "GET", "/config")[1])["analytics_enabled"] is False
    assert ask(site, "GET", "/", Host="evil.example")[0] == 421
    assert ask(site, "GET", "/config", Origin="https://evil.example")[0] == 403
    with pytest.raises(OSError):  # this machine's other addresses are not listened at
        socket.create_connection(("127.0.0.2", urlsplit(site[0]).port), timeout=5)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(site, pair, tmp_path, width):
    with browser(tmp_path / "profile") as tab:
        tab.open(site[0], width)
        tab.wait("document.querySelector('#match') !== null")
        if width > 600:
            tab.wait("document.querySelectorAll('tbody tr').length === 2")
            tab.run("document.querySelector('tbody tr').click()")  # the room, which is calibrated
            tab.wait("document.querySelector('#right img')?.naturalWidth === 384")
            tab.click("button.label-wrap")  # the calibration
            tab.wait("Number(document.querySelector('#focal input')?.value) > 0")
            for side in ("left", "right"):
                tab.click(f"#{side} button[aria-label='Remove Image']")
                tab.wait(f"document.querySelector('#{side} img') === null")
            for side, file in zip(("left", "right"), pair, strict=True):
                seen = f"document.querySelector('#{side} img')?.naturalWidth === 384"
                for _ in range(5):  # the page may still be waking up
                    tab.drop(f"#{side}", file)
                    if tab.wait(seen, 5, give_up=True):
                        break
                tab.wait(seen)
            tab.wait("Number(document.querySelector('#focal input').value) === 0")
        else:
            tab.wait("document.querySelectorAll('tbody tr').length === 2")
            tab.run("document.querySelector('tbody tr').click()")
            tab.wait("document.querySelector('#right img')?.naturalWidth === 384")
        tab.wait("document.querySelector('#limit input') === null")
        tab.click("#model input")
        tab.wait("document.querySelectorAll('[role=option]').length === 3")
        tab.click("[role=option]:last-of-type")  # the slowest within a limit
        tab.wait("document.querySelector('#limit input') !== null")
        tab.run("document.querySelector('#match').click()")
        for shown in ("disparity", "confidence"):
            # Pictures are loaded once they are in view.
            tab.wait(f"document.querySelector('#{shown} img') !== null")
            tab.run(f"document.querySelector('#{shown} img').scrollIntoView()")
            tab.wait(f"document.querySelector('#{shown} img')?.naturalWidth >= 384")
        assert re.search(
            r"network \d+ ms \(limit 500 ms\), in all \d+ ms", tab.run("document.body.innerText")
        )
        tab.wait("document.querySelector('#cloud canvas') !== null", 120)
        tab.run("document.querySelector('#cloud').scrollIntoView()")
        time.sleep(2)
        tab.screenshot(tmp_path / "page.png")
        assert tab.run("document.documentElement.scrollWidth") <= width
        beyond = [
            url for url in tab.requests if not url.startswith((site[0], "data:", f"blob:{site[0]}"))
        ]
        assert beyond == []
        # Without a graphics card the cloud's canvas says so; nothing else may be said.
        said = [line for line in tab.complaints if not re.search("WebGL|adapters", line)]
        assert said == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "number"),
    [("127.0.0.1", signal.SIGHUP), ("0.0.0.0", signal.SIGTERM), ("[::1]", signal.SIGINT)],
)
def test_the_command_serves_and_ends(tmp_path, host, number):
    pytest.importorskip("gradio")
    words = ["serve", "--host", host, "--port", str(free_port()), "--model", TINY]
    process = subprocess.Popen(
        [sys.executable, "-m", "vizoo", *words],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # ignored under nohup
    )
    assert re.fullmatch(
        r"http://(\[::1\]|[\w.]+):\d+/ \(Ctrl\+C ends it\)\n", process.stdout.readline()
    )
    assert list(tmp_path.glob("vizoo-page-*"))
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []
    warned = f"--host {host}: anyone who can reach this machine may use the page" in said
    assert warned == (host == "0.0.0.0")


def test_what_the_command_refuses(capsys, monkeypatch):
    assert main(["serve", "--max-upload", "0"]) == 2
    assert "--max-upload 0: must be at least 1" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        # Before networks are looked for.
        assert main(["serve", "--port", str(taken.getsockname()[1]), "--model", "none"]) == 2
        assert "name another port" in capsys.readouterr().err

    def absent(extra, module, what):
        return from_extra(extra, "no_such_package", what)

    monkeypatch.setattr(pages, "from_extra", absent)
    assert main(["serve"]) == 2
    assert "pip install 'vizoo[serve]'" in capsys.readouterr().err
