"""Downloads from real servers on the loopback: cuts, wrong files, mirrors, locks, no network."""

import hashlib
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from vizoo.vision.hub import _http, download
from vizoo.vision.hub.download import DownloadError, _cached_path, cache_folder, fetch, find_local
from vizoo.vision.hub.record import WeightsRecord

CONTENT = bytes(range(256)) * 3000
PATH = "/weights/tiny.safetensors"


def record(*sources, content=CONTENT):
    digest = hashlib.sha256(content).hexdigest()
    return WeightsRecord(sources, digest, len(content), "Apache-2.0", "nothing")


def said(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_downloaded_once(server):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH))
    assert find_local(wanted) is None
    path = fetch(wanted)
    assert path.read_bytes() == CONTENT and find_local(wanted) == path
    assert path == _cached_path(wanted) and path.parent == cache_folder()
    assert re.fullmatch(r"tiny-[0-9a-f]{12}\.safetensors", path.name)
    assert fetch(wanted) == path and len(server.requests) == 1
    assert {p.name for p in path.parent.iterdir()} <= {path.name, f"{path.name}.lock"}


def test_a_name_from_an_address_stays_in_the_folder(server):
    server.files["/get?file=../../../x"] = CONTENT
    path = fetch(record(server.url("/get?file=../../../x")))
    assert path.parent == cache_folder()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_is_continued(server, ranges):
    server.files[PATH], server.cuts[PATH] = CONTENT, [1000, 200_000]
    server.ranges = ranges
    assert fetch(record(server.url(PATH))).read_bytes() == CONTENT
    asked = [header for _, header in server.requests]
    assert asked[:2] == [None, "bytes=1000-"] and len(asked) == 3


def test_what_a_cut_left_is_continued_by_another_process(server):
    server.files[PATH], server.cuts[PATH] = CONTENT, [5000, *[0] * 20]
    wanted = record(server.url(PATH))
    with pytest.raises(DownloadError, match=r"cut after 5,000 of 768,000 bytes.*run again") as e:
        fetch(wanted)
    assert server.url(PATH) in said(e)
    part = _cached_path(wanted).with_name(f"{_cached_path(wanted).name}.part")
    assert part.stat().st_size == 5000
    server.cuts.clear()
    server.requests.clear()
    code = (
        "import sys; from vizoo.vision.hub.download import fetch; "
        "from vizoo.vision.hub.record import WeightsRecord; import json; "
        "print(fetch(WeightsRecord.from_json(json.loads(sys.argv[1]))))"
    )
    import json

    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(wanted.to_json())], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert server.requests == [(PATH, "bytes=5000-")]
    assert Path(done.stdout.strip()).read_bytes() == CONTENT and not part.exists()


def test_a_wrong_beginning_is_thrown_away(server):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH))
    part = _cached_path(wanted).with_name(f"{_cached_path(wanted).name}.part")
    part.parent.mkdir(parents=True)
    for left in (b"x" * 700, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 5)):
        _cached_path(wanted).unlink(missing_ok=True)
        part.write_bytes(left)
        assert fetch(wanted).read_bytes() == CONTENT


def test_a_mirror_that_works(server):
    server.files |= {PATH: CONTENT, "/wrong": b"x" * len(CONTENT), "/short": CONTENT[:100]}
    server.statuses["/gone"] = [410] * 9
    places = ["/missing", "/wrong", "/short", "/gone", PATH]
    assert fetch(record(*map(server.url, places))).read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == places


def test_a_mirror_continues_what_another_began(server):
    server.files |= {"/cut": CONTENT, PATH: CONTENT}
    server.cuts["/cut"] = [3000, *[0] * 20]
    fetch(record(server.url("/cut"), server.url(PATH)))
    assert server.requests[-1] == (PATH, "bytes=3000-")


def test_a_busy_server_is_asked_again(server):
    server.files[PATH], server.statuses[PATH] = CONTENT, [503, 429]
    assert fetch(record(server.url(PATH))).read_bytes() == CONTENT


def test_every_failure_is_named_in_one_line(server, closed):
    server.files |= {"/wrong": b"x" * len(CONTENT), "/short": CONTENT[:100]}
    server.statuses["/busy"] = [503] * 50
    places = [server.url(path) for path in ("/missing", "/wrong", "/short", "/busy")]
    places += [f"http://127.0.0.1:{closed}/x", "package:stereo/weights/none.safetensors"]
    wanted = record(*places)
    with pytest.raises(DownloadError) as caught:
        fetch(wanted, "net.tag")
    text = said(caught)
    assert text.startswith("net.tag: cannot get its weights: ")
    assert f"{places[0]}: HTTP 404" in text
    assert re.search(f"{places[1]}: its SHA-256 is [0-9a-f]{{12}}… instead of", text)
    assert f"{places[2]}: has 100 bytes instead of 768,000" in text
    assert f"{places[3]}: HTTP 503" in text
    assert f"{places[4]}: cannot be reached (Connection refused)" in text
    assert f"{places[5]}: not in this installation" in text
    assert f"put a copy of the file at {_cached_path(wanted)} (its SHA-256 is" in text
    assert not _cached_path(wanted).exists()


def test_the_remedy_works(server):
    wanted = record(server.url("/missing"))
    _cached_path(wanted).parent.mkdir(parents=True)
    _cached_path(wanted).write_bytes(CONTENT)
    assert fetch(wanted) == _cached_path(wanted) and not server.requests


def test_a_damaged_file_in_the_cache_is_replaced(server):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH))
    fetch(wanted).write_bytes(b"x" * len(CONTENT))
    assert fetch(wanted).read_bytes() == CONTENT
    fetch(wanted).write_bytes(b"x" * len(CONTENT))
    server.files.clear()
    with pytest.raises(DownloadError, match=r"tiny-\w+.safetensors: its SHA-256 is"):
        fetch(wanted)


def test_several_at_once_download_once(server):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH))
    found = []
    threads = [threading.Thread(target=lambda: found.append(fetch(wanted))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(server.requests) == 1


def test_two_processes_download_once(server, monkeypatch, tmp_path):
    """The server answers the first only when the second has said that it waits."""
    server.files[PATH] = CONTENT
    wanted, waits = record(server.url(PATH)), threading.Event()
    answer = server.RequestHandlerClass.do_GET

    def late(self):
        waits.wait()
        answer(self)

    monkeypatch.setattr(server.RequestHandlerClass, "do_GET", late)
    code = (
        "from vizoo.vision.hub import _http, download; "
        "from vizoo.vision.hub.record import WeightsRecord\n"
        "download._WAIT, _http.TIMEOUT = 0.2, 600\n"
        f"print(download.fetch(WeightsRecord(({server.url(PATH)!r},), {wanted.sha256!r}, "
        f"{wanted.size}, 'x', 'y'), 'net.tag'))"
    )
    said, line = tmp_path / "said", "waiting for another process that downloads net.tag"
    with open(said, "a") as file:
        both = [
            subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=file, text=True
            )
            for _ in range(2)
        ]
    while line not in said.read_text() and all(process.poll() is None for process in both):
        time.sleep(0.05)
    waits.set()
    found = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0], said.read_text()
    assert len(found) == 1 and len(server.requests) == 1
    assert said.read_text().count(line) == 1


@pytest.mark.parametrize("flag", ["VIZOO_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_is_honoured_and_named(server, monkeypatch, flag):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH), "hf-hub:org/net/model.safetensors")
    monkeypatch.setenv(flag, "1")
    with pytest.raises(DownloadError) as caught:
        fetch(wanted)
    text = said(caught)
    assert f"{server.url(PATH)}: not tried, since {flag}=1" in text
    assert "hf-hub:org/net/model.safetensors: not tried" in text and f"unset {flag}, or" in text
    assert not server.requests
    monkeypatch.setenv(flag, "0")
    path = fetch(wanted)
    monkeypatch.setenv(flag, "1")
    assert fetch(wanted) == path


def test_a_folder_that_cannot_be_written(server, monkeypatch, tmp_path):
    server.files[PATH] = CONTENT
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", "/proc/none"):
        monkeypatch.setenv("VIZOO_HOME", str(home))
        with pytest.raises(OSError, match="cannot be written .*set VIZOO_HOME to a folder") as e:
            fetch(record(server.url(PATH)))
        assert str(home) in said(e) and not server.requests


def test_a_read_only_cache_serves_what_it_has(server, monkeypatch):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH))
    path = fetch(wanted)
    for other in path.parent.glob("*.lock"):
        other.unlink()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    assert fetch(wanted) == path and os.listdir(path.parent) == [path.name]
    path.unlink()
    with pytest.raises(OSError, match=r"\(Permission denied\): set VIZOO_HOME"):
        fetch(wanted)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(server, monkeypatch):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH))
    usage = type("Usage", (), {"free": 1000})
    with monkeypatch.context() as patch:
        patch.setattr(_http.shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(OSError, match="1 MB are needed and 0 MB are free.*VIZOO_HOME"):
            fetch(wanted)
    assert not server.requests
    part = _cached_path(wanted).with_name(f"{_cached_path(wanted).name}.part")
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"part: cannot be written \(No space left on device\): make"):
        fetch(wanted)
    part.unlink()
    assert fetch(wanted).read_bytes() == CONTENT


@pytest.mark.parametrize("begun", [0, 1000])
def test_a_slow_server(server, monkeypatch, capfd, begun):
    """It says nothing, or stops in the middle; a mirror continues."""
    monkeypatch.setattr(_http, "TIMEOUT", 0.1)
    server.files[PATH] = CONTENT
    done, answer = threading.Event(), server.RequestHandlerClass.do_GET

    def stall(self):
        if self.path == PATH:
            return answer(self)
        if begun and not self.headers.get("Range"):
            self.answer(200, CONTENT[:begun], Content_Length=str(len(CONTENT)))
            self.wfile.flush()
        done.wait()

    slow, ask = server.url("/slow"), urllib.request.urlopen

    def patient(request, timeout):  # with the mirror, however busy this machine is
        return ask(request, timeout=timeout if request.full_url == slow else 600)

    monkeypatch.setattr(server.RequestHandlerClass, "do_GET", stall)
    monkeypatch.setattr(urllib.request, "urlopen", patient)
    try:
        with pytest.raises(DownloadError, match=r"no answer within 0.1 s"):
            fetch(record(slow))
        assert "127.0.0.1: c" in capfd.readouterr().err
        assert fetch(record(slow, server.url(PATH))).read_bytes() == CONTENT
    finally:
        done.set()


def test_redirections(server, monkeypatch):
    """As storage behind a front door has them; one that leads nowhere is one line."""
    server.files[PATH] = CONTENT
    answer, places = server.RequestHandlerClass.do_GET, {"/to": PATH, "/loop": "/loop"}

    def redirect(self):
        if self.path not in places:
            return answer(self)
        self.answer(302, Location=places[self.path])

    monkeypatch.setattr(server.RequestHandlerClass, "do_GET", redirect)
    assert fetch(record(server.url("/to"))).read_bytes() == CONTENT
    places["/file"] = "file:///etc/hostname"
    with pytest.raises(DownloadError) as caught:
        fetch(record(server.url("/loop"), server.url("/file")))
    text = said(caught)
    assert "infinite loop" in text and "is not allowed" in text


@pytest.mark.parametrize("status", [401, 403, 404, 407, 410, 500])
def test_refusals_are_named(server, status):
    server.statuses[PATH] = [status] * 9
    with pytest.raises(DownloadError, match=f"{PATH}: HTTP {status} [A-Z]") as caught:
        fetch(record(server.url(PATH)))
    said(caught)
    assert len(server.requests) == (_http._ATTEMPTS if status == 500 else 1)


def test_a_proxy(server, closed, monkeypatch):
    """A proxy is asked for the whole address; one that is dead is named, its password is not."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first call
    monkeypatch.setenv("http_proxy", server.url(""))
    server.files["http://far.invalid/x"] = CONTENT
    assert fetch(record("http://far.invalid/x")).read_bytes() == CONTENT
    monkeypatch.setattr(urllib.request, "_opener", None)
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{closed}")
    with pytest.raises(DownloadError, match="reached through the proxy that http_proxy names") as e:
        fetch(record("http://far.invalid/y"))
    assert "secret" not in said(e)


@pytest.fixture
def packaged(monkeypatch, tmp_path):
    """Weights that came with the package."""
    monkeypatch.setattr(download, "_ROOT", tmp_path)
    (tmp_path / "x.safetensors").write_bytes(CONTENT)
    return tmp_path / "x.safetensors"


def without_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("home", [None, f"/{'x' * 300}"])
def test_a_user_without_a_home_has_the_package(packaged, monkeypatch, home):
    """As in a container that runs under any number: no home folder, or one out of reach."""
    for name in ("VIZOO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    if home is None:
        monkeypatch.setattr(Path, "home", without_home)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", home)
    wanted = record("package:x.safetensors")
    assert fetch(wanted) == packaged == find_local(wanted)
    far = record("https://far.invalid/x")
    assert find_local(far) is None
    with pytest.raises(OSError, match=r"folder.* for downloaded weights .*: set VIZOO_HOME") as e:
        fetch(far)
    said(e)


def test_a_file_that_cannot_be_read_is_no_end(server, monkeypatch):
    server.files[PATH] = CONTENT
    wanted = record(server.url(PATH))
    mine, read = fetch(wanted), download.sha256_of

    def unreadable(path):
        if path == mine and len(server.requests) == 1:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(download, "sha256_of", unreadable)
    assert fetch(wanted) == mine and len(server.requests) == 2


def test_package_files_are_checked(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "_ROOT", tmp_path)
    wanted = record("package:stereo/weights/x.safetensors")
    assert find_local(wanted) is None
    path = tmp_path / "stereo/weights/x.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch(wanted) == path == find_local(wanted)
    path.write_bytes(b"x" * len(CONTENT))
    with pytest.raises(DownloadError, match=r"x.safetensors: its SHA-256 is .* instead of") as e:
        fetch(wanted)
    assert "package:" not in said(e)  # the file's path says it


@pytest.mark.parametrize(
    ("platform", "variables", "tail"),
    [
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c/vizoo/weights"),
        ("linux", {"HOME": "/h"}, "/h/.cache/vizoo/weights"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Caches/vizoo/weights"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/vizoo/weights"),
    ],
)
def test_cache_folder(monkeypatch, platform, variables, tail):
    for name in ("VIZOO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().as_posix() == tail
