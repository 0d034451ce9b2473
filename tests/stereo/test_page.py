"""What the page finds for a pair, as files and words; the page itself is opened in tests/cli."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from PIL import Image

from vizoo.datasets.stereo.scenes import GeneratedStereo
from vizoo.stereo.page import WITHIN, Bench
from vizoo.vision.io.images import write_image

TINY = "fadnet_plus_tiny.generated"


@pytest.fixture(scope="module")
def bench():
    return Bench([TINY, "easnet_small"], "cpu", max_pixels=50_000)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two image files."""
    folder = tmp_path_factory.mktemp("pair")
    scene = GeneratedStereo(1, 96, 160, seed=0, max_disparity=20.0)[0]
    for side in ("left", "right"):
        write_image(folder / f"{side}.png", scene[side])
    return str(folder / "left.png"), str(folder / "right.png")


def test_a_pair_without_calibration(bench, pair, tmp_path):
    found = bench.find(*pair, tmp_path, model=TINY)
    for picture in (found.disparity, found.confidence):
        assert Image.open(picture).size[0] >= 160
    assert found.occluded is None
    assert found.cloud.read_bytes()[:4] == b"glTF"
    assert f"**{TINY}** on cpu, 160x96: network " in found.facts
    assert "the cloud assumes a focal length of 160 px (53°)" in found.facts
    names = zipfile.ZipFile(found.results).namelist()
    assert "pair_disparity.pfm" in names and "pair_cloud.ply" not in names
    kept = {found.disparity, found.confidence, found.cloud, found.results}
    assert set(found.results.parent.iterdir()) == kept


def test_both_views_calibrated_and_sure(bench, pair, tmp_path):
    how = {"both": True, "least": 0.3, "focal": 150.0, "baseline": 0.1}
    found = bench.find(*pair, tmp_path, model=TINY, **how)
    assert np.isinf(found.result.disparity).any()
    assert found.occluded.is_file()
    assert "assumes" not in found.facts
    names = zipfile.ZipFile(found.results).namelist()
    assert {"pair_cloud.ply", "pair_depth.npy", "pair_occluded.png"} <= set(names)


def test_a_network_by_its_time(bench, pair, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_speeds", {TINY: 1e-6, "easnet_small": 2e-6})
    pixels = 96 * 160
    assert bench.within(1.1e-6 * pixels, 96, 160) == TINY
    assert bench.within(2.1e-6 * pixels, 96, 160) == "easnet_small"
    found = bench.find(*pair, tmp_path, model=WITHIN, limit=1.5e-3 * pixels)
    assert f"**{TINY}**" in found.facts and "⚠" not in found.facts
    # Both views take twice as long.
    found = bench.find(*pair, tmp_path, model=WITHIN, limit=1.5e-3 * pixels, both=True)
    assert (
        f"⚠ no network takes 12 ms or less here at 160x96 pixels; the fastest, {TINY}, takes"
        in (found.facts)
    )
    with pytest.raises(ValueError, match="give the time limit"):
        bench.find(*pair, tmp_path, model=WITHIN)


def test_speeds_are_measured_once(bench, monkeypatch):
    monkeypatch.setattr(bench, "_speeds", {})
    calls = []
    for name in bench.models:
        predictor = bench.predictor(name)
        monkeypatch.setattr(predictor, "estimate", lambda h, w: calls.append(h * w) or 1.0)
    assert bench.within(1.0, 100, 100) == bench.within(1.0, 200, 200)
    assert calls == [1_000_000] * 2


def test_nothing_is_left_where_all_is_unsure(bench, pair, tmp_path):
    found = bench.find(*pair, tmp_path, model=TINY, least=1.0)
    assert found.cloud is None and "disparity" not in found.facts


def test_what_is_refused_names_no_folder(bench, pair, tmp_path):
    left, right = pair
    small, text, empty = (tmp_path / name for name in ("small.png", "text.png", "empty.png"))
    write_image(small, np.zeros((8, 9, 3), np.uint8))
    text.write_text("no image")
    empty.touch()
    large = tmp_path / "large.png"
    Image.new("L", (300, 200)).save(large)
    for wrong, words in {
        None: "the right image is missing",
        str(text): "the right image: not an image of a common kind",
        str(empty): "the right image: not an image",
        str(small): "left and right differ in size: 160x96 against 9x8",
        str(large): "the right image: 300x200 are 0.1 million pixels, more than the 0.1",
        left: "same picture",
    }.items():
        with pytest.raises(ValueError, match=words) as told:
            bench.find(left, wrong, tmp_path, model=TINY)
        assert str(tmp_path) not in str(told.value)
    with pytest.raises(ValueError, match="takes both numbers"):
        bench.find(left, right, tmp_path, model=TINY, focal=100.0)


def test_a_pair_in_the_wrong_order_is_said(bench, pair, tmp_path, monkeypatch):
    monkeypatch.setattr("vizoo.stereo.infer.check_pair", lambda *_: ["these look swapped"])
    assert "⚠ these look swapped" in bench.find(*pair, tmp_path, model=TINY).facts


def test_names_of_files_hide_their_folders(tmp_path):
    with pytest.raises(FileNotFoundError):
        Bench([str(tmp_path / "absent.safetensors")])
    bench = Bench.__new__(Bench)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "predictor", lambda self, name: None)
        Bench.__init__(bench, [str(tmp_path / "mine.ckpt")])
    assert list(bench.models) == ["mine.ckpt"]
