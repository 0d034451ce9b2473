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
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vizoo.cli._demo.families import Card
from vizoo.cli._demo.networks import Candidate, Weights
from vizoo.cli._demo.pair import Finding, Sample
from vizoo.cli._demo.report import make_page
from vizoo.cli._demo.subnets import Subnet
from vizoo.cli._demo.training import Training
from vizoo.cli._demo.viewer import cloud_view
from vizoo.common.timing import Timing
from vizoo.datasets.stereo.calibration import StereoCalibration
from vizoo.nas.search.front import Front, FrontRow
from vizoo.nas.space import Architecture
from vizoo.stereo.result import StereoResult
from vizoo.vision.io.images import to_bytes
from vizoo.vision.subnets import best
from vizoo.vision.viz.page import Legend, Picture
from vizoo.vision.viz.plot import Series, front_plot, loss_plot

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
    return points, colours, cloud_view(points, colours, **options)


def stored(view):
    data, count = base64.b64decode(view["data"]), view["numbers"]["count"]
    whole = np.frombuffer(data, "<u2", 3 * count).reshape(count, 3)
    low, high = (np.array(json.loads(view["numbers"][name])) for name in ("low", "high"))
    colours = np.frombuffer(data, np.uint8, offset=6 * count).reshape(count, 3)
    return low + whole / 65535 * (high - low), colours, view["numbers"]


def whole_page(folder=Path("elsewhere")):
    """Every part of the page, with text that is to be escaped wherever people's own comes in."""
    image, shown = torch.rand(3, 40, 60), np.full((40, 60), 5.0, np.float32)
    truth, valid = torch.full((1, 40, 60), 5.0), torch.ones(1, 40, 60, dtype=torch.bool)
    camera = StereoCalibration(focal=60.0, baseline=0.1, width=60, height=40)
    sample = Sample(NASTY, image, image, camera, False, truth, valid, [NASTY])
    result, timing = StereoResult(shown, to_bytes(image)), Timing(10.0, 9.0, 11.0, 5)
    facts = {"trained on": NASTY, NASTY: NASTY, "empty": ""}
    weights = Weights(NASTY, NASTY, nn.Identity(), facts)
    network = Candidate(NASTY, nn.Identity(), weights, Architecture({"width": 4}))
    scores = dict.fromkeys(("epe", "bad1", "bad2", "bad3", "d1"), 0.5)
    origin = network.weights, network.architecture
    findings = [Finding(NASTY, result, timing, scores, *origin, 1000, 1000)]
    findings += [Finding("OpenCV", result, timing, scores)]
    row = FrontRow(network.architecture, 0.5, {"latency": 1.0})
    front = Front("val/epe", "latency", 1, (row,))
    costs = {"parameters": 1000, "measured": {"median": 60.0}}
    cut = network.net, network.architecture, {"latency": 50.0}, {}, costs, [], 0.0, NASTY
    subnet = Subnet(best.Subnet(*cut), Path("x"), result, scores)
    curves = [(0, 9.0), (1, 7.0)], [(2, 4.0)]
    training = Training([NASTY], Path("x"), Path("x"), *curves, 1, 60.0)
    cards = [Card(NASTY, NASTY, [Picture(to_bytes(image), NASTY)], [NASTY, "second line"])]
    machine = {"device": NASTY, "threads": 2, "software": NASTY}
    common = (sample, findings, machine, NASTY, folder)
    pair = make_page(*common, front)
    return pair, make_page(*common, None, [subnet], training, cards)


def test_a_page_is_well_formed_and_escapes():
    pair, tour = whole_page()
    for text in (pair, tour):
        Balance(text)
        assert "<b>\"'" not in text and "empty" not in text
        assert text.count("$title") == text.count("&amp;$title") > 10
    assert pair.count("<svg") == tour.count("<svg") == 1
    assert "A network for your latency" not in pair and "One supernet" not in tour


def test_pages_to_read_on_are_there(tmp_path):
    _, tour = whole_page(tmp_path)
    links = re.findall('<a href="([^"]*)"', tour)
    assert len(links) > 5 and all((tmp_path / link).resolve().is_file() for link in links)


def test_pictures_come_back():
    picture = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)

    def read(uri):
        return np.array(Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2]))))

    np.testing.assert_array_equal(read(Picture(picture, "").uri), picture)
    assert Picture(picture, "", photo=True).uri.startswith("data:image/jpeg")
    assert read(Picture(np.zeros((8, 2560, 3), np.uint8), "").uri).shape == (4, 1280, 3)
    with pytest.raises(ValueError, match=r"got \(8, 12\)"):
        Picture(picture[:, :, 0], "").uri  # noqa: B018


def test_legend():
    legend = Legend(0, 4)
    assert (legend.stops[0], legend.stops[-1]) == ("#30123b", "#7a0403")  # turbo's ends
    assert legend.ticks == ["0.0 px", "1.0 px", "2.0 px", "3.0 px", "4.0 px"]
    assert Legend(0, 1).ticks[1] == "0.25 px" and Legend(0, 40).ticks[1] == "10 px"


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
        cloud_view(behind, np.zeros((2, 3)), focal=1, size=(2, 2), caption="")
    with pytest.raises(ValueError, match=r"both \(N, 3\)"):
        cloud_view(behind, np.zeros((3, 3)), focal=1, size=(2, 2), caption="")


def marks(svg, colour):
    """Where the points of a colour of the page's are drawn, from the left; not the legend's."""
    tag = "{http://www.w3.org/2000/svg}use"
    drawn = ElementTree.fromstring(svg[: svg.index('<g id="legend')] + "</g></g></svg>")
    uses = [use for use in drawn.iter(tag) if colour in use.get("style", "")]
    return sorted((float(use.get("x")), float(use.get("y"))) for use in uses)


def test_a_front_is_drawn():
    points = [(300.0, 1.2), (100.0, 2.0), (200.0, 1.5)]
    svg = front_plot(Series("front", points), Series("m", points[:1], ["here $_$"]), "ms", "px")
    front = marks(svg, "var(--first)")
    assert len(front) == 3 and marks(svg, "var(--second)") == front[2:]
    assert [y for _, y in front] == sorted(y for _, y in front)  # slower is better: further down
    assert "here $_$" in svg and "ms" in svg and "px" in svg
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
    script = re.findall(r"<script>(.*?)</script>", whole_page()[0], re.DOTALL)
    assert len(script) == 1
    (tmp_path / "script.js").write_text(script[0])
    done = subprocess.run(["node", "--check", tmp_path / "script.js"], capture_output=True)
    assert done.returncode == 0, done.stderr
