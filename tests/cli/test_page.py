"""Pieces of pages: text is escaped, pictures and points come back out of them."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from vizoo.cli._demo import page
from vizoo.cli._demo.plot import Series, front_plot, loss_plot
from vizoo.cli._demo.viewer import cloud_viewer

NASTY = "<b>\"'&$title</b>"


class Balance(html.parser.HTMLParser):
    """Every tag that is opened is closed in turn."""

    VOID = {"meta", "link", "img"}

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass


def cloud(count=50, **options):
    rng = np.random.default_rng(0)
    points = rng.uniform((-1, -1, 2), (1, 1, 6), (count, 3)).astype(np.float32)
    colours = rng.integers(0, 256, (count, 3), np.uint8)
    options = {"focal": 100.0, "size": (60, 90), "caption": NASTY, **options}
    return points, colours, cloud_viewer(points, colours, **options)


def stored(view):
    numbers = dict(re.findall(r'data-(\w+)="([^"]*)"', view))
    data = base64.b64decode(re.search(r'text/plain">([^<]*)<', view)[1])
    count = int(numbers["count"])
    whole = np.frombuffer(data, "<u2", 3 * count).reshape(count, 3)
    low, high = (np.array(json.loads(numbers[name])) for name in ("low", "high"))
    colours = np.frombuffer(data, np.uint8, offset=6 * count).reshape(count, 3)
    return low + whole / 65535 * (high - low), colours, numbers


def test_a_page_is_well_formed_and_escapes():
    picture = np.zeros((4, 6, 3), np.uint8)
    parts = [
        page.section(NASTY, page.paragraph(NASTY, "warning"), page.cards({NASTY: NASTY})),
        page.gallery(page.figure(picture, NASTY, below=page.colour_bar(0, 9, "<px>"))),
        page.table([NASTY, "b"], [[NASTY, "1"]]),
        page.facts({NASTY: NASTY, "empty": ""}),
        page.panels(page.panel(NASTY, page.command(NASTY, "second line"))),
        cloud()[2],
        front_plot(Series(NASTY, [(1, 2)]), Series("m", [(1, 2)], [NASTY]), NASTY, NASTY),
    ]
    text = page.page(NASTY, NASTY, parts, NASTY)
    Balance(text)
    assert "<b>\"'" not in text and "empty" not in text
    assert text.count("$title") == text.count("&amp;$title") > 10


def test_pictures_come_back():
    picture = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)

    def read(uri):
        return np.array(Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2]))))

    np.testing.assert_array_equal(read(page.picture_uri(picture)), picture)
    assert page.picture_uri(picture, photo=True).startswith("data:image/jpeg")
    assert read(page.picture_uri(picture, most=6)).shape == (4, 6, 3)
    with pytest.raises(ValueError, match=r"got \(8, 12\)"):
        page.picture_uri(picture[:, :, 0])


def test_colour_bar():
    bar = page.colour_bar(0, 4, "px")
    assert "#30123b" in bar and "#7a0403" in bar  # turbo's ends
    assert re.findall(r"<span>([^<]*)<", bar) == ["0.0 px", "1.0 px", "2.0 px", "3.0 px", "4.0 px"]


def test_points_come_back():
    points, colours, view = cloud()
    found, seen, numbers = stored(view)
    np.testing.assert_allclose(found, points, atol=1e-4)
    np.testing.assert_array_equal(seen, colours)
    assert float(numbers["field"]) == 0.9 and float(numbers["spacing"]) == 0.01


def test_clouds_are_bounded_and_even():
    _, _, view = cloud(5000, most=500)
    found, _, numbers = stored(view)
    assert 100 < len(found) <= 500 and float(numbers["spacing"]) == pytest.approx(0.01 * 10**0.5)
    assert np.abs(found.mean(axis=0)[:2]).max() < 0.2  # even over the image: nearer than all were


def test_clouds_without_points_are_refused():
    behind = np.array([[0, 0, -1.0], [0, 0, np.nan]])
    with pytest.raises(ValueError, match="no point in front"):
        cloud_viewer(behind, np.zeros((2, 3)), focal=1, size=(2, 2), caption="")
    with pytest.raises(ValueError, match=r"both \(N, 3\)"):
        cloud_viewer(behind, np.zeros((3, 3)), focal=1, size=(2, 2), caption="")


def marks(svg, colour):
    """Where the points of a colour of the page's are drawn, from the left; not the legend's."""
    tag = "{http://www.w3.org/2000/svg}use"
    drawn = ElementTree.fromstring(svg[: svg.index('<g id="legend')] + "</g></g></svg>")
    uses = [use for use in drawn.iter(tag) if colour in use.get("style", "")]
    return sorted((float(use.get("x")), float(use.get("y"))) for use in uses)


def test_a_front_is_drawn():
    points = [(300.0, 1.2), (100.0, 2.0), (200.0, 1.5)]
    svg = front_plot(Series("front", points), Series("m", points[:1], ["here"]), "ms", "px")
    front = marks(svg, "var(--first)")
    assert len(front) == 3 and marks(svg, "var(--second)") == front[2:]
    assert [y for _, y in front] == sorted(y for _, y in front)  # slower is better: further down
    assert "here" in svg and "ms" in svg and "px" in svg
    for bad in ([], [(1.0, float("nan"))]):
        with pytest.raises(ValueError, match="needs points"):
            front_plot(Series("front", bad), None, "x", "y")


def test_a_training_is_drawn():
    losses = Series("loss", [(step, 50.0 / (1 + step)) for step in range(40)])
    svg = loss_plot(losses, 20, "step", "loss")
    ElementTree.fromstring(svg)
    assert "interrupted, resumed" in svg and "mean of the last 15" in svg
    assert "interrupted" not in loss_plot(losses, None, "step", "loss")
    with pytest.raises(ValueError, match="needs points"):
        loss_plot(Series("loss", []), None, "step", "loss")


@pytest.mark.parametrize("light", ["currentColor", "var(--line)", "var(--first)"])
def test_plots_take_the_page_s_colours_and_words(light):
    svg = loss_plot(Series("loss", [(0, 1.0), (1, 0.5)]), None, "step", "loss")
    assert light in svg and "<text" in svg
    assert "<style" not in svg and not re.search("#0[1-4]0[1-4]0[1-4]", svg)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_script_is_javascript(tmp_path):
    script = re.findall(r"<script>(.*?)</script>", page.page("", "", []), re.DOTALL)
    assert len(script) == 1
    (tmp_path / "script.js").write_text(script[0])
    done = subprocess.run(["node", "--check", tmp_path / "script.js"], capture_output=True)
    assert done.returncode == 0, done.stderr
