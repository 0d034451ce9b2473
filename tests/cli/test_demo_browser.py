"""The page of `vizoo demo` in a real browser, wide and narrow."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from vizoo.__main__ import main

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

# A frame may be narrower than a browser's window; what it holds is looked at from outside.
HARNESS = """<!DOCTYPE html><body style="margin: 0"><script>
const frame = document.createElement("iframe");
frame.style = "width: WIDTHpx; height: 900px; border: 0";
frame.onload = () => {
  const inside = frame.contentDocument, canvas = inside.querySelector(".cloud canvas");
  const pixels = () => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const pictures = [...inside.images];
  // Without a screen the browser draws frames when it likes.
  frame.contentWindow.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 16);
  canvas.scrollIntoView();
  setTimeout(() => {
    const key = name => canvas.dispatchEvent(
      new frame.contentWindow.KeyboardEvent("keydown", {key: name, cancelable: true}));
    key("ArrowUp");  // ends the swing with which the cloud begins
    setTimeout(() => {
      const before = pixels();
      for (let i = 0; i < 5; i++) key("ArrowLeft");
      let tries = 0;
      // A frame is drawn when the browser finds time for it.
      const look = () => {
        const after = pixels();
        let changed = 0;
        for (let i = 0; i < before.length; i += 4) changed += before[i] !== after[i];
        if (changed === 0 && tries++ < 30) return void setTimeout(look, 300);
        document.title = JSON.stringify({
          pictures: pictures.length,
          loaded: pictures.filter(p => p.complete && p.naturalWidth > 0).length,
          changed: changed / (before.length / 4),
          wide: inside.documentElement.scrollWidth,
          sections: [...inside.querySelectorAll("h2")].map(h => h.textContent),
          commands: inside.querySelectorAll("pre").length,
        });
      };
      setTimeout(look, 300);
    }, 300);
  }, 1000);
};
frame.src = "PAGE";
document.body.append(frame);
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of the whole tour."""
    out = tmp_path_factory.mktemp("demo")
    assert main(["demo", "--out", str(out), "--json"]) == 0
    return out / "index.html"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_works(page, width):
    harness = page.with_name(f"harness{width}.html")
    harness.write_text(HARNESS.replace("WIDTH", str(width)).replace("PAGE", page.name))
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update"
    flags += " --allow-file-access-from-files --enable-logging=stderr --dump-dom"
    flags += f" --virtual-time-budget=30000 --window-size=1400,1000 --user-data-dir={page.parent}/b"
    done = subprocess.run(
        [CHROMIUM, *flags.split(), harness.as_uri()], capture_output=True, text=True, timeout=120
    )
    # What the browser says of the harness's own reading of pixels is not the page's.
    lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    console = [line for line in lines if f"source: {harness.as_uri()}" not in line]
    assert console == []
    seen = json.loads(re.search("<title>(.*?)</title>", done.stdout)[1].replace("&amp;", "&"))
    assert seen["loaded"] == seen["pictures"] > 15
    assert seen["changed"] > 0.1
    assert seen["wide"] <= width
    assert "A network for your latency" in seen["sections"]
    assert seen["commands"] >= 8
