"""What the page finds for a pair, as files and words; the page itself is opened in tests/cli."""

from __future__ import annotations

import errno
import json
import re
import threading
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from stereo_fixtures import small_clouds  # noqa: F401

from vizoo.datasets.stereo.calibration import StereoCalibration, write_calibration
from vizoo.datasets.stereo.scenes import GeneratedStereo
from vizoo.stereo.choices import WITHIN
from vizoo.stereo.trials import Trials
from vizoo.vision.io.images import write_image

TINY = "fadnet_plus_tiny.generated"


@pytest.fixture(scope="module")
def trials():
    return Trials([TINY, "easnet_small"], "cpu", max_pixels=50_000)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two image files."""
    folder = tmp_path_factory.mktemp("pair")
    scene = GeneratedStereo(1, 96, 160, seed=0, max_disparity=20.0)[0]
    for side in ("left", "right"):
        write_image(folder / f"{side}.png", scene[side])
    return str(folder / "left.png"), str(folder / "right.png")


def test_a_pair_without_calibration(trials, pair, tmp_path):
    found = trials.find(*pair, tmp_path, model=TINY)
    for picture in (found.disparity, found.confidence):
        assert Image.open(picture).size[0] >= 160
    assert found.occluded is None
    content = found.cloud.read_bytes()
    length = int.from_bytes(content[12:16], "little")
    placed = json.loads(content[20 : 20 + length])["accessors"][0]
    # Around the origin, and in sight of a camera 1 before it.
    assert placed["min"] == pytest.approx([-edge for edge in placed["max"]], abs=0.02)
    assert 0 < placed["max"][2] < 1
    assert f"**{TINY}** on cpu, 96x160: network " in found.facts
    assert "the cloud assumes a focal length of 160 px (53°)" in found.facts
    names = zipfile.ZipFile(found.results).namelist()
    assert "pair_disparity.pfm" in names and "pair_cloud.ply" not in names
    kept = {found.disparity, found.confidence, found.cloud, found.results}
    assert set(found.results.parent.iterdir()) == kept


def test_both_views_calibrated_and_sure(trials, pair, tmp_path):
    how = {"both": True, "least": 0.3, "focal": 150.0, "baseline": 0.1}
    found = trials.find(*pair, tmp_path, model=TINY, **how)
    assert np.isinf(found.result.disparity).any()
    assert found.occluded.is_file()
    assert "assumes" not in found.facts and "scaled" not in found.facts
    assert "depth by a focal length of 150 px and a baseline of 0.1 m" in found.facts
    names = zipfile.ZipFile(found.results).namelist()
    assert {"pair_cloud.ply", "pair_depth.npy", "pair_occluded.png"} <= set(names)


def test_a_limit_holds_for_both_views(trials, pair, tmp_path, monkeypatch):
    asked = []

    def choose(offer, limit, height, width, report, views):
        asked.append((offer, limit, height, width, views))
        return "chosen", trials.choices.network(TINY)

    monkeypatch.setattr(trials.choices, "choose", choose)
    found = trials.find(*pair, tmp_path, model=WITHIN, limit=500.0)
    assert re.search(r"\*\*chosen\*\* .* network \d+ ms \(limit 500 ms\), in all", found.facts)
    trials.find(*pair, tmp_path, model=WITHIN, limit=500.0, both=True)
    assert asked == [(WITHIN, 500.0, 96, 160, views) for views in (1, 2)]


def test_nothing_is_left_where_all_is_unsure(trials, pair, tmp_path):
    found = trials.find(*pair, tmp_path, model=TINY, least=1.0)
    assert found.cloud is None and "disparity" not in found.facts


def test_what_is_refused_names_no_folder(trials, pair, tmp_path):
    left, right = pair
    small, text, empty = (tmp_path / name for name in ("small.png", "text.png", "empty.png"))
    write_image(small, np.zeros((8, 9, 3), np.uint8))
    text.write_text("no image")
    empty.touch()
    large = tmp_path / "large.png"
    Image.new("L", (300, 200)).save(large)
    for wrong, words in {
        None: "the right image is missing",
        str(tmp_path / "gone.png"): "the right image is no longer here; drop it again",
        str(text): "the right image: not an image of a common kind",
        str(empty): "the right image: not an image",
        str(small): "left and right differ in size: 96x160 against 8x9",
        str(large): "the right image: 200x300 are 0.1 million pixels, more than the 0.1",
        left: "same picture",
    }.items():
        with pytest.raises(ValueError, match=words) as told:
            trials.find(left, wrong, tmp_path, model=TINY)
        assert str(tmp_path) not in str(told.value)
    with pytest.raises(ValueError, match="takes both numbers"):
        trials.find(left, right, tmp_path, model=TINY, focal=100.0)


def test_what_to_do_about_a_raw_pair_is_on_the_page(trials, pair, tmp_path):
    left, right = (np.array(Image.open(path)) for path in pair)
    write_image(tmp_path / "raw.png", np.roll(right, 7, axis=0))
    raw = (pair[0], str(tmp_path / "raw.png"))
    facts = trials.find(*raw, tmp_path, model=TINY).facts
    assert "⚠ the pair is not rectified" in facts and "tick “Rectify first”" in facts
    assert "--auto-rectify" not in facts
    how = {"rectify": True, "focal": 150.0, "baseline": 0.1}
    facts = trials.find(*raw, tmp_path, model=TINY, **how).facts
    assert "not rectified" not in facts and "⚠ rectified by" in facts and "--raw" not in facts
    assert "no calibration holds: no depth" in facts and "the cloud assumes" in facts
    noise = np.random.default_rng(0).integers(0, 255, left.shape, np.uint8)
    write_image(tmp_path / "noise.png", noise)
    with pytest.raises(ValueError, match="needed to rectify") as told:
        trials.find(pair[0], str(tmp_path / "noise.png"), tmp_path, model=TINY, rectify=True)
    assert "--raw" not in str(told.value)


def test_a_pair_in_the_wrong_order_is_said(trials, pair, tmp_path):
    mirrored = []
    for name, path in zip(("a", "b"), pair, strict=True):
        write_image(tmp_path / f"{name}.png", np.array(Image.open(path))[:, ::-1])
        mirrored.append(str(tmp_path / f"{name}.png"))
    assert "⚠ left and right look swapped" in trials.find(*mirrored, tmp_path, model=TINY).facts


def test_two_scenes_are_said(trials, pair, tmp_path, monkeypatch):
    def far_off(left, right):
        return torch.full((1, *left.shape[1:]), 99.0)

    monkeypatch.setattr(trials.choices.network(TINY), "maps", far_off)
    facts = trials.find(*pair, tmp_path, model=TINY).facts
    assert "of the pixels are matched beyond the edge" in facts


def test_a_calibration_file(trials, pair, tmp_path):
    file = tmp_path / "calib.txt"
    write_calibration(file, StereoCalibration(150.0, 0.1, 79.5, 47.5, width=160, height=96))
    how = {"model": TINY, "calibration": str(file)}
    found = trials.find(*pair, tmp_path, **how)
    assert "pair_depth.npy" in zipfile.ZipFile(found.results).namelist()
    assert "assumes" not in found.facts
    assert "depth by a focal length of 150 px and a baseline of 0.1 m" in found.facts
    write_calibration(file, StereoCalibration(300.0, 0.1, 159.5, 95.5, width=320, height=192))
    facts = trials.find(*pair, tmp_path, **how).facts
    assert "depth by a focal length of 150 px" in facts
    assert "⚠ the calibration is for 192x320 images (height x width) and was scaled" in facts
    with pytest.raises(ValueError, match="either a calibration file or"):
        trials.find(*pair, tmp_path, **how, focal=150.0)
    file.write_text("nothing")
    with pytest.raises(ValueError, match="the calibration: not a calibration file") as told:
        trials.find(*pair, tmp_path, **how)
    assert str(tmp_path) not in str(told.value)
    write_calibration(file, StereoCalibration(150.0, 0.1, 79.5, 47.5, width=100, height=100))
    with pytest.raises(ValueError, match="calibration is for images of 100x100"):
        trials.find(*pair, tmp_path, **how)
    facts = trials.find(*pair, tmp_path, model=TINY, focal=150.0, baseline=120.0).facts
    assert "⚠ a baseline of 120 m: metres, not millimetres?" in facts


def test_a_full_disk_is_said_and_leaves_nothing(trials, pair, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "secret"))

    before = set(tmp_path.iterdir())
    monkeypatch.setattr("vizoo.stereo.trials.write_glb", full)
    with pytest.raises(ValueError, match="cannot be written .*: No space left on device") as told:
        trials.find(*pair, tmp_path, model=TINY)
    assert str(tmp_path) not in str(told.value) and set(tmp_path.iterdir()) == before
    monkeypatch.setattr("vizoo.stereo.trials.write_glb", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trials.find(*pair, tmp_path, model=TINY)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("size", [(1 << 60,), None])
def test_too_little_memory_is_said(trials, pair, tmp_path, monkeypatch, size):
    def maps(left, right):
        if size is None:
            raise MemoryError
        return torch.empty(size)

    monkeypatch.setattr(trials.choices.network(TINY), "maps", maps)
    with pytest.raises(ValueError, match="has not enough memory for 96x160 pixels now; drop smal"):
        trials.find(*pair, tmp_path, model=TINY)

    def wrong(left, right):
        return torch.ones(2) @ torch.ones(3)

    monkeypatch.setattr(trials.choices.network(TINY), "maps", wrong)
    with pytest.raises(RuntimeError, match="size"):
        trials.find(*pair, tmp_path, model=TINY)


def test_what_is_beyond_reach_is_said_without_options(trials, pair, tmp_path, monkeypatch):
    monkeypatch.setattr(trials.choices.network(TINY), "reach", 4.0)
    facts = trials.find(*pair, tmp_path, model=TINY).facts
    assert "beyond the network's 4 px: the pair was matched at" in facts and "scale" not in facts


def test_results_have_names_that_nobody_guesses(trials, pair, tmp_path):
    folders = {trials.find(*pair, tmp_path, model=TINY).results.parent for _ in range(2)}
    assert len(folders) == 2
    assert all(len(folder.name) >= 22 and folder.stat().st_mode & 0o077 == 0 for folder in folders)


def test_threads_wait_for_each_other(trials, pair, tmp_path, monkeypatch):
    network = trials.choices.network(TINY)
    at_once, most, wait = [], [], threading.Event()

    def maps(left, right):
        at_once.append(None)
        most.append(len(at_once))
        wait.wait(0.1)
        at_once.pop()
        raise ValueError("enough")

    monkeypatch.setattr(network, "maps", maps)

    def find(_):
        with pytest.raises(ValueError, match="enough"):
            trials.find(*pair, tmp_path, model=TINY)

    filters = list(warnings.filters)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(find, range(3)))
    assert set(most) == {1} and warnings.filters == filters
