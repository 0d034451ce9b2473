"""`vizoo demo`: a page from weights that are there, and what is said where something is not."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
import toy_matcher
from toy_matcher import match_plain, match_super

from vizoo.__main__ import main
from vizoo.cli._demo import networks, pair, tour
from vizoo.nas.supernet import search_space
from vizoo.vision.hub import download, registry
from vizoo.vision.hub.create import create_model
from vizoo.vision.hub.record import WeightsRecord
from vizoo.vision.hub.sharing import save_pretrained
from vizoo.vision.hub.weights import save_weights
from vizoo.vision.io.images import write_image

_room = functools.cache(pair.generated_sample)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A supernet and a network, without weights; what is computed is tiny, a room built once."""
    fusion = registry.model_info("disparity_fusion")
    weights = fusion.record.sources[0].removeprefix("package:")
    (tmp_path / weights).parent.mkdir(parents=True)
    shutil.copy(download._ROOT / weights, tmp_path / weights)
    toy_matcher.register(monkeypatch, fusion)
    monkeypatch.setattr(download, "_ROOT", tmp_path)
    monkeypatch.setenv("VIZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(networks, "DEFAULT_MODEL", "match_plain")
    monkeypatch.setattr(networks, "_SCENES", 2)
    monkeypatch.setattr(networks, "_HEIGHT", 32)
    monkeypatch.setattr(networks, "_WIDTH", 48)
    monkeypatch.setitem(pair._ROOM, "height", 48)
    monkeypatch.setitem(pair._ROOM, "width", 96)
    monkeypatch.setattr(pair, "_SECONDS", 0.05)
    monkeypatch.setattr(tour, "generated_sample", lambda seed: replace(_room(seed), notes=[]))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shipped(models, tmp_path):
    """Weights of both, as if they came with the package."""
    for function in (match_plain, match_super):
        name = function.__name__
        path = save_weights(create_model(name), tmp_path / f"stereo/{name}.safetensors")
        record = WeightsRecord(
            sources=(f"package:stereo/{name}.safetensors",),
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            size=path.stat().st_size,
            licence="Apache-2.0",
            trained_on="scenes <made> for tests",
        )
        registry.register_model(task="stereo", weights={"toy": record})(function)


@pytest.fixture
def front(shipped, tmp_path):
    """A front of the supernet beside its weights."""
    space = search_space(create_model("match_super"))
    rows = [
        {"error": 3.0 / w, "latency": 10.0 * w, "architecture": a.to_json()}
        for w in (6, 4, 2)
        for a in (space.build(lambda choice, w=w: w),)
    ]
    conditions = {"device": "cpu", "device_name": "Toy", "dtype": "float32", "threads": 2}
    conditions |= {"height": 288, "width": 576, "batch": 1}
    content = {"supernet": "match_super.toy", "metric": "val/epe", "cost": "latency"}
    content |= {"evaluated": 20, "conditions": conditions, "front": rows}
    path = tmp_path / "stereo/match_super.front.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def own(tmp_path):
    """A pair of files."""
    texture = torch.rand(3, 40, 72)
    write_image(tmp_path / "l.png", texture[:, :, :64])
    write_image(tmp_path / "r.png", texture[:, :, 8:])
    return ["l.png", "r.png"]


PAIR = ["demo", "--seed", "3"]


def test_a_generated_pair(front, tmp_path, capsys):
    assert main(["demo", "--model", "match_super", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    page = (tmp_path / report["page"]).read_text()
    assert report["page"] == os.path.join("demo", "pair.html")
    assert report["bytes"] == len(page.encode())
    assert all((tmp_path / file).is_file() for file in report["files"])
    assert report["pair"]["size"] == [48, 96]
    names = [network["name"] for network in report["networks"]]
    subnets = ["large subnet", "middle subnet", "small subnet"]
    assert names == [*subnets, "match_plain.toy, guided", "StereoSGBM (OpenCV)"]
    assert [n["architecture"] and n["architecture"]["choices"]["width"] for n in report["networks"]]
    widths = [n["architecture"]["choices"]["width"] for n in report["networks"][:3]]
    assert widths == [6, 4, 2]
    assert all(n["latency"]["median"] > 0 and n["epe"] > 0 for n in report["networks"])
    assert report["networks"][-1]["weights"] is None
    assert report["front"] == {"metric": "val/epe", "subnets": 3}
    assert report["weights"]["trained on"] == "scenes <made> for tests"
    for piece in ("scenes &lt;made&gt; for tests", "<svg", "mean error (EPE) [px]", "latency [ms]"):
        assert piece in page
    assert 'class="cloud"' in page and "True disparity" in page and "Toy, float32" in page
    assert "vizoo infer stereo demo/pair/left.png demo/pair/right.png --model match_super" in page
    assert page.count("<img ") == 3 + 4 + 3
    # It needs nothing else.
    addresses = re.findall(r"""(?:src|href|url|action|data)\s*[=(]\s*["']?([^"'\s>)]+)""", page)
    assert addresses and all(address.startswith(("data:", "#")) for address in addresses)
    assert "default-src 'none'" in page
    assert not re.search(r"\bfetch\(|XMLHttpRequest|import\(|@import", page)


def test_the_best_shipped_network_leads_beside_opencv(shipped, tmp_path, capsys):
    assert main([*PAIR, "--json"]) == 0
    names = [network["name"] for network in json.loads(capsys.readouterr().out)["networks"]]
    assert names == ["match_plain.toy, guided", "StereoSGBM (OpenCV)"]
    page = (tmp_path / "demo/pair.html").read_text()
    assert "One supernet" not in page and "“Guided”: " in page


@pytest.mark.parametrize(("most", "says"), [(1, "pixels, once each"), (3, "median of 3")])
def test_a_single_measurement_has_no_range(shipped, monkeypatch, most, says):
    monkeypatch.setattr(pair, "_MOST", most)
    monkeypatch.setattr(pair, "_SECONDS", 1e6)
    assert main(PAIR) == 0
    with open("demo/pair.html", encoding="utf-8") as file:
        page = file.read()
    assert says in page and ("10 to 90 %" in page) == (most > 1)
    assert bool(re.search(r"[0-9.]+ to [0-9.]+ ms", page)) == (most > 1)


def test_without_a_front(shipped, tmp_path):
    assert main(["demo", "--seed", "3", "--model", "match_super"]) == 0
    page = (tmp_path / "demo/pair.html").read_text()
    assert "did not come with the weights" in page and "<svg" not in page
    assert "Generated room 3" in page


def test_a_front_of_another_supernet(front, capsys):
    front.write_text(front.read_text().replace('"width": 4', '"width": 5'))
    assert main(["demo", "--model", "match_super"]) == 2
    assert "match_super.front.json: a front of another supernet" in capsys.readouterr().err
    assert not os.path.exists("demo")


def test_a_pair_of_ones_own(shipped, own, tmp_path, capsys):
    assert main(["demo", *own]) == 0
    said = capsys.readouterr()
    assert "page: demo/yours.html" in said.out and "EPE" not in said.out
    assert "\ndisparity: demo/yours\n" in said.out and not list(tmp_path.glob("demo/yours/*.ply"))
    page = (tmp_path / "demo/yours.html").read_text()
    assert "No calibration was given" in page and "True disparity" not in page
    assert "StereoSGBM" in page and "vizoo infer stereo l.png r.png --out result" in page
    assert (tmp_path / "demo/yours/l_disparity.pfm").is_file()
    (tmp_path / "calib.txt").write_text(
        "cam0=[80 0 31.5; 0 80 19.5; 0 0 1]\ncam1=[80 0 31.5; 0 80 19.5; 0 0 1]\n"
        "doffs=0\nbaseline=100\nwidth=64\nheight=40\n"
    )
    assert main(["demo", *own, "--calib", "calib.txt"]) == 0
    assert "\npictures and point cloud: demo/yours\n" in capsys.readouterr().out
    assert list(tmp_path.glob("demo/yours/*.ply"))
    assert "No calibration" not in (tmp_path / "demo/yours.html").read_text()


def test_a_doubtful_pair_is_shown_with_a_warning(shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(3).integers(0, 256, (96, 200, 3), dtype=np.uint8)
    texture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2.0), None, 0, 255, cv2.NORM_MINMAX)
    cv2.imwrite("l.png", texture[:, 9:189])
    cv2.imwrite("r.png", texture[:, :180])
    assert main(["demo", "l.png", "r.png"]) == 0
    assert "left and right look swapped" in capsys.readouterr().err
    page = (tmp_path / "demo/yours.html").read_text()
    assert '<p class="warning">left and right look swapped' in page


def test_one_picture_twice(shipped, own, capsys):
    assert main(["demo", own[0], own[0]]) == 2
    assert "the same picture: there is nothing to match" in capsys.readouterr().err
    assert not os.path.exists("demo")


def test_weights_of_ones_own(shipped, tmp_path, capsys):
    net = create_model("match_plain")
    save_weights(net, tmp_path / "mine.safetensors", trained_on="my garden")
    assert main(["demo", "--model", "mine.safetensors"]) == 0
    page = (tmp_path / "demo/pair.html").read_text()
    assert "my garden" in page and "One supernet" not in page


def test_a_released_folder(shipped, tmp_path, capsys):
    net = create_model("match_plain")
    save_pretrained(net, tmp_path / "mine", licence="MIT", trained_on="my garden")
    assert main(["demo", "--model", "local-dir:mine"]) == 0
    page = (tmp_path / "demo/pair.html").read_text()
    assert "<dd>my garden</dd>" in page and "<dd>MIT</dd>" in page


def test_a_folder_that_bears_a_model_s_name_is_not_meant(shipped, tmp_path, capsys):
    (tmp_path / "match_plain").mkdir()
    assert main([*PAIR, "--json"]) == 0
    names = [network["name"] for network in json.loads(capsys.readouterr().out)["networks"]]
    assert "match_plain.toy, guided" in names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["l.png"], "both LEFT and RIGHT"),
        (["l.png", "no.png"], "no.png: no such"),
        (["l.png", "tall.png"], "differ in size: l.png 40x64 against tall.png 44x64"),
        (["--calib", "c.txt"], "give LEFT and RIGHT too"),
        (["l.png", "r.png", "--calib", "c.txt"], "c.txt: no such"),
        (["l.png", "r.png", "--seed", "3"], "with LEFT and RIGHT there is none"),
        (["--seed", "-1"], "--seed -1: must be at least 0"),
        (["--epochs", "2"], "belongs to --train"),
        (["--train", "--epochs", "0"], "--epochs 0: must be at least 1"),
        (["--train", "--model", "x"], "--train or --model, not both"),
        (["--train", "--seed", "1"], "--train or --seed, not both"),
        (["--train", "l.png", "r.png"], "--train or LEFT and RIGHT, not both"),
        (["--model", "none.safetensors"], "none.safetensors: no such weight file"),
        (["--device", "abacus"], "abacus"),
        (["--out", "l.png/x"], "l.png is a file"),
    ],
)
def test_refusals(shipped, own, capsys, tmp_path, words, message):
    write_image(tmp_path / "tall.png", torch.rand(3, 44, 64))
    said = [line for line in capsys.readouterr().err.splitlines() if "vizoo demo:" not in line]
    assert said == []
    assert main(["demo", *words]) == 2
    errors = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("vizoo demo:")]
    assert len(errors) == 1 and message in errors[0]
    assert not os.path.exists("demo")


def test_interrupted_leaves_nothing(shipped, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pair, "scores", stop)
    assert main(PAIR) == 130
    assert not os.path.exists("demo")
