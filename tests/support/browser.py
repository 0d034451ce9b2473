"""Chromium without a window, driven through its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = "--headless --no-sandbox --no-first-run --disable-sync --disable-background-networking"
FLAGS += " --disable-component-update --enable-unsafe-swiftshader --remote-debugging-pipe"


class Tab:
    """One page, what it asked for and what it complained about."""

    def __init__(self, into: int, out: int) -> None:
        self.into, self.out, self.rest, self.count = into, out, b"", 0
        self.session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """The answer to a call of the DevTools protocol."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.into, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self.count:
                assert "error" not in said, said
                return said["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            part = os.read(self.out, 1 << 20)
            assert part, "the browser has gone"
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\0")
        said = json.loads(line)
        params = said.get("params", {})
        if said.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif said.get("method") == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        return said

    def run(self, script: str) -> Any:
        """The value of an expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, script: str, seconds: float = 60, *, give_up: bool = False) -> Any:
        """The value of an expression once it is true, or what it is in the end."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)) and time.monotonic() < end:
            time.sleep(0.2)
        assert value or give_up, f"{script}: {self.run('document.body.innerText')}"
        return value

    def open(self, url: str, width: int, height: int = 1000) -> None:
        """Go to a page, in a window of a width."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=url)

    def _middle(self, selector: str) -> tuple[float, float]:
        """Where an element is, once it is in view."""
        script = f"document.querySelector({selector!r})"
        self.run(f"{script}.scrollIntoView({{block: 'center'}})")
        x, y = self.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({script}.getBoundingClientRect())"
        )
        return x, y

    def click(self, selector: str) -> None:
        """Press and release the mouse on an element."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            how = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **how)

    def drop(self, selector: str, file: Path) -> None:
        """Drop a file onto an element."""
        x, y = self._middle(selector)
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def screenshot(self, file: Path) -> None:
        """The whole page as a picture."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A browser with one tab."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    words = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}"]
    # Chromium reads from descriptor 3 and writes to 4.
    script = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *words],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Tab(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait(20)
        os.close(ours_out)
        os.close(ours_in)
