"""HTTP servers on the loopback: a plain one with ranges, and one that speaks like the Hub."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, content=b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def file(self, content, cuts=None, ranges=True, **headers):
        """Send a file, or what was asked for of it, and cut it where `cuts` says."""
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and ranges:
            start = int(asked[1])
            if start >= len(content):
                return self.answer(416)
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        status = 206 if start else 200
        cut = cuts.pop(0) if cuts and self.command == "GET" else None
        if cut is None:
            return self.answer(status, body, **headers)
        self.answer(status, body[:cut], Content_Length=str(len(body)), **headers)
        self.wfile.flush()
        self.close_connection = True


class Plain(ThreadingHTTPServer):
    """Serves `files` (path to bytes).

    Attributes:
        cuts: path to the numbers of bytes after which its next answers break off.
        statuses: path to the status codes of its next answers, before it is served.
        ranges: whether a range that is asked for is honoured.
        requests: (path, Range header or None) of every request.
    """

    daemon_threads = True

    class RequestHandlerClass(_Handler):
        def do_GET(self):
            server = self.server
            server.requests.append((self.path, self.headers.get("Range")))
            if server.statuses.get(self.path):
                self.answer(server.statuses[self.path].pop(0), b"<html>no</html>")
            elif self.path in server.files:
                content = server.files[self.path]
                self.file(content, server.cuts.get(self.path), server.ranges)
            else:
                self.answer(404, b"<html>no</html>")

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.RequestHandlerClass)
        self.files, self.cuts, self.statuses = {}, {}, {}
        self.ranges, self.requests = True, []

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}{path}"


class Hub(Plain):
    """As much of the Hugging Face Hub as downloads and commits need.

    Attributes:
        repositories: ``org/name`` to a list of commits, each (hash, {file: bytes}).
        gated: names of repositories whose terms nobody has accepted.
        private: names of repositories that need the token `secret`.
        broken: whether every answer is HTTP 503.
    """

    class RequestHandlerClass(_Handler):
        def do_GET(self):
            hub = self.server
            hub.requests.append((self.path, self.headers.get("Range")))
            found = re.match(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)", self.path)
            if hub.broken:
                return self.answer(503)
            if not found:
                return self.answer(404, X_Error_Code="EntryNotFound")
            name, revision, path = found.groups()
            if name in hub.private and self.headers.get("Authorization") != "Bearer secret":
                return self.answer(401, X_Error_Code="RepoNotFound")
            if name in hub.gated:
                return self.answer(403, X_Error_Code="GatedRepo")
            if name not in hub.repositories:
                return self.answer(404, X_Error_Code="RepoNotFound")
            commits = dict(hub.repositories[name])
            commit = hub.repositories[name][-1][0] if revision == "main" else revision
            if commit not in commits:
                return self.answer(404, X_Error_Code="RevisionNotFound")
            if path not in commits[commit]:
                return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            content = commits[commit][path]
            tag = f'"{hashlib.sha1(content).hexdigest()}"'
            self.file(content, hub.cuts.get(path), X_Repo_Commit=commit, ETag=tag)

        def do_POST(self):
            hub = self.server
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.requests.append((self.path, None))
            if self.headers.get("Authorization") != "Bearer secret":
                return self.json({"error": "no token"}, 401)
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                status = 409 if name in hub.repositories else 200
                hub.repositories.setdefault(name, [("0" * 40, {})])
                return self.json({"url": hub.url(f"/{name}"), "name": name}, status)
            if "/preupload/" in self.path:
                files = [file["path"] for file in json.loads(body)["files"]]
                modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                return self.json({"files": [{"path": path, **modes} for path in files]})
            found = re.match(r"/api/models/([^/]+/[^/]+)/commit/", self.path)
            if not found:
                return self.json({"warnings": [], "errors": []})
            commits = hub.repositories[found[1]]
            files = dict(commits[-1][1])
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            commits.append((hashlib.sha1(body).hexdigest(), files))
            url = hub.url(f"/{found[1]}/commit/{commits[-1][0]}")
            return self.json({"commitUrl": url, "commitOid": commits[-1][0]})

        def json(self, value, status=200):
            self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def __init__(self):
        super().__init__()
        self.repositories, self.gated, self.private, self.broken = {}, set(), set(), False


@contextmanager
def serving(server):
    """Run a server in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def closed_port():
    """A port of the loopback on which nobody listens, nor can meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
