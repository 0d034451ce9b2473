"""`vizoo infer video`: what it writes and says, and one line for whatever is wrong."""

import json
import subprocess
import sys

import numpy as np
import pytest
from sequences import Camera, Constant, read_video, views, write_video

from vizoo.__main__ import main
from vizoo.stereo import captures, infer, streaming
from vizoo.vision.io.images import write_image


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """`--model stand-in` is a network that always answers 5 px."""
    original = infer.load_network
    monkeypatch.setattr(
        infer, "load_network", lambda m, task: Constant() if m == "stand-in" else original(m, task)
    )


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """The current folder, with left.mp4, right.mp4, both.mp4 and a folder pairs."""
    monkeypatch.chdir(tmp_path)
    pairs = list(views(6))
    write_video(tmp_path / "left.mp4", [left for left, _ in pairs])
    write_video(tmp_path / "right.mp4", [right for _, right in pairs])
    write_video(tmp_path / "both.mp4", [np.vstack(pair) for pair in pairs])
    for index, pair in enumerate(pairs):
        for side, picture in zip(("left", "right"), pair, strict=True):
            write_image(tmp_path / f"pairs/{side}/{index}.png", picture)
    return tmp_path


def call(*words: str) -> int:
    return main(["infer", "video", *words, "--model", "stand-in", "--out", "out"])


def refused(capsys, *words: str) -> str:
    """Run what must fail; return its one line."""
    assert call(*words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("vizoo: error: "), lines
    return lines[0]


def summary(folder) -> dict:
    (item,) = json.loads((folder / "out/summary.json").read_text())["items"]
    return item


def test_two_videos(scene, capsys):
    assert call("left.mp4", "right.mp4") == 0
    said = capsys.readouterr()
    assert said.err == ""
    first, second, *files = said.out.splitlines()
    assert first.startswith("left.mp4: 6 frames of 80x48 in ") and "the network alone " in first
    assert second == "  disparity 5.0 to 5.0 px, median 5.0"
    assert files == ["  out/left_disparity.mp4", "out/summary.json"]
    pictures, rate = read_video("out/left_disparity.mp4")
    assert len(pictures) == 6 and rate == 20
    item = summary(scene)
    assert item["name"] == "left" and item["size"] == [48, 80] and item["frames"] == 6
    assert (item["left"], item["right"]) == ("left.mp4", "right.mp4")
    assert item["files"] == ["out/left_disparity.mp4"] and item["warnings"] == []


def test_all_options(scene, capsys):
    words = "both.mp4 --format video png --steady --scale 0.5 --frames 4 --rate 7 --colours 0 9"
    assert call(*words.split(), "--layout", "top-bottom", "--no-check", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "sequences" and report["model"] == "stand-in"
    (item,) = report["items"]
    assert item["layout"] == "top-bottom" and item["steady"] and item["scale"] == 0.5
    assert item["frames"] == 4 and item["disparity"]["median"] == pytest.approx(10, abs=1e-3)
    assert read_video("out/both_disparity.mp4")[1] == 7
    assert len(list((scene / "out/both_disparity").iterdir())) == 4


def test_a_folder_with_a_damaged_frame(scene, capsys):
    (scene / "pairs/left/2.png").write_bytes(b"no image")
    assert call("pairs") == 0
    said = capsys.readouterr()
    assert "warning: 1 frame passed over: " in said.err and "pairs: 5 frames" in said.out
    assert len(summary(scene)["warnings"]) == 1


def test_a_camera_until_ctrl_c(scene, capsys, monkeypatch):
    """The usual end of a camera; a file that is interrupted is not done."""
    pairs = list(views(5))
    monkeypatch.setattr(Camera, "pictures", {0: [np.hstack(pair) for pair in pairs] * 9})
    capture = captures.cv2.VideoCapture
    run = streaming._run

    def interrupted(*args):
        *rest, _ = args

        def tell(done, total, rate):
            if done == 3:
                raise KeyboardInterrupt

        return run(*rest, tell)

    monkeypatch.setattr(streaming, "_run", interrupted)
    monkeypatch.setattr(captures.cv2, "VideoCapture", Camera)
    assert call("camera:0") == 0
    assert "ended by Ctrl+C" in capsys.readouterr().out
    monkeypatch.setattr(captures.cv2, "VideoCapture", capture)
    assert len(read_video("out/camera0_disparity.mp4")[0]) >= 3
    assert summary(scene)["interrupted"]
    assert call("left.mp4", "right.mp4") == 130
    assert len(read_video("out/left_disparity.mp4")[0]) == 3


def test_an_error_on_the_way(scene, capsys):
    write_image(scene / "pairs/left/4.png", np.zeros((50, 80, 3), np.uint8))
    assert call("pairs") == 1
    error = capsys.readouterr().err
    assert "frame 4: the pictures have 80x48 and 80x50 pixels, the first 80x48" in error
    assert "what was written so far is complete" in error
    item = summary(scene)
    assert item["frames"] == 4 and "80x50" in item["error"]
    assert len(read_video("out/pairs_disparity.mp4")[0]) == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("gone.mp4", "gone.mp4: no such file or folder"),
        ("left.mp4", "neither its halves"),
        ("left.mp4 right.mp4 --format gif", "unknown format 'gif': video, png, rrd"),
        ("left.mp4 right.mp4 --frames 0", "--frames 0: must be at least 1"),
        ("left.mp4 right.mp4 --rate 0", "--rate 0: frames a second"),
        ("left.mp4 right.mp4 --colours 9 3", "--colours 9 3: two disparities"),
        ("left.mp4 right.mp4 --scale 2", "not above 0 and at most 1"),
        ("left.mp4 right.mp4 --layout top-bottom", "not for two"),
        ("pairs --topics /a /b", "topics are for bags"),
        ("left.mp4 left.mp4", "left and right are the same picture"),
    ],
)
def test_refused(scene, capsys, words, told):
    assert told in refused(capsys, *words.split())
    assert not (scene / "out").exists()


def test_results_do_not_go_where_the_pictures_are(scene, capsys):
    words = ["pairs/left", "pairs/right", "--model", "stand-in", "--out", "pairs/left"]
    assert main(["infer", "video", *words]) == 2
    assert "name another folder" in capsys.readouterr().err


def test_what_decoders_print_is_not_heard(scene):
    """In a process of its own: FFmpeg learns once how much it may say."""
    (scene / "text.mp4").write_text("no video\n")
    words = ["infer", "video", "text.mp4", "right.mp4", "--out", "out"]
    code = f"import sys; from vizoo.__main__ import main; sys.exit(main({words}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "vizoo: error: text.mp4: no video, or one whose end was never written, or of unknown coding"
    ]
