"""`vizoo infer video`: what it writes and says, and one line for whatever is wrong."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from raw_rigs import make_rig, two_planes
from sequences import (
    TOPICS,
    Camera,
    bag_rows,
    compressed,
    read_video,
    views,
    write_bag,
    write_video,
)
from stereo_fixtures import BlockMatcher, refused_line
from trainers import Forked

from vizoo.__main__ import main
from vizoo.datasets.stereo.calibration import StereoCalibration, write_calibration
from vizoo.datasets.stereo.rigs import write_rig
from vizoo.stereo import DEFAULT_MODEL, captures, infer, streaming
from vizoo.vision.io.images import read_pixels, write_image

pytestmark = pytest.mark.usefixtures("stand_in")


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
        write_image(tmp_path / f"copy/{index}.png", pair[0])
    return tmp_path


REST = ("--model", "stand-in", "--out", "out")


def call(*words: str) -> int:
    return main(["infer", "video", *REST, *words])


def refused(capsys, *words: str) -> str:
    return refused_line(capsys, ["infer", "video", *REST, *words])


def summary(folder) -> dict:
    (item,) = json.loads((folder / "out/summary.json").read_text())["items"]
    return item


def test_two_videos(scene, capsys):
    assert call("left.mp4", "right.mp4") == 0
    said = capsys.readouterr()
    assert said.err == ""
    first, second, *files = said.out.splitlines()
    assert first.startswith("left.mp4: 6 frames of 48x80 in ") and "the network alone " in first
    assert second == "  disparity 5.0 to 5.0 px, median 5.0"
    assert files == ["  out/left_disparity.mp4", "out/summary.json"]
    pictures, rate = read_video("out/left_disparity.mp4")
    assert len(pictures) == 6 and rate == 20
    item = summary(scene)
    assert item["name"] == "left" and item["size"] == [48, 80] and item["frames"] == 6
    assert (item["left"], item["right"]) == ("left.mp4", "right.mp4")
    assert item["files"] == ["out/left_disparity.mp4"] and item["warnings"] == []


def test_guided_as_pairs_are(scene, capsys):
    words = ["left.mp4", "right.mp4", "--frames", "2", "--json", "--model"]
    for more, guided in (
        ([DEFAULT_MODEL], True),
        ([DEFAULT_MODEL, "--no-guided"], False),
        (["stand-in"], False),
        (["stand-in", "--guided"], True),
    ):
        assert call(*words, *more) == 0
        assert json.loads(capsys.readouterr().out)["guided"] is guided


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


@pytest.mark.parametrize("words", [["pairs"], ["pairs/left", "pairs/right"]])
def test_images_that_are_not_read_are_counted(scene, capsys, words):
    (scene / "pairs/left/6.gif").write_bytes(b"GIF89a")
    assert call(*words) == 0
    said = "vizoo: warning: 1 image in folders passed over, of kinds that are not read: .gif\n"
    assert capsys.readouterr().err == said
    assert call("pairs/left/*", "pairs/right/*") == 0
    said = "vizoo: warning: pairs/left/*: 1 passed over, of kinds that are not read, first "
    assert capsys.readouterr().err == f"{said}pairs/left/6.gif\n"


@pytest.fixture
def signalled(monkeypatch):
    """Sends this process a signal after the third frame, twice: users are in a hurry."""
    run, sent = streaming._run, []

    def running(results, write, limit, total, tell):
        def telling(done, *more):
            tell(done, *more)
            for number in sent * 2 if done == 3 else ():
                os.kill(os.getpid(), number)

        return run(results, write, limit, total, telling)

    monkeypatch.setattr(streaming, "_run", running)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where tests run under nohup
    yield sent.append
    signal.signal(signal.SIGHUP, before)


def test_a_camera_until_ctrl_c(scene, capsys, monkeypatch, signalled):
    """The usual end of a camera; what comes while the network is busy is counted."""
    monkeypatch.setattr(Camera, "pictures", {0: [np.hstack(pair) for pair in views(5)] * 99})
    monkeypatch.setattr(Camera, "pause", 0.05)
    capture = captures.cv2.VideoCapture
    monkeypatch.setattr(captures.cv2, "VideoCapture", Camera)
    signalled(signal.SIGINT)
    assert call("camera:0") == 0
    assert "ended by Ctrl+C" in capsys.readouterr().out
    monkeypatch.setattr(captures.cv2, "VideoCapture", capture)
    assert len(read_video("out/camera0_disparity.mp4")[0]) >= 3
    item = summary(scene)
    assert item["interrupted"] and item["frames"] == 3


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_whole_files(scene, capsys, signalled, name):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    signalled(number)
    assert call("pairs", "--format", "video", "png") == 128 + number
    assert signal.getsignal(number) is before
    said = capsys.readouterr()
    assert "ended by Ctrl+C or a signal" in said.out and said.err == ""
    item = summary(scene)
    assert item["interrupted"] and item["frames"] == 3
    assert len(read_video("out/pairs_disparity.mp4")[0]) == 3
    names = {path.name for path in (scene / "out").rglob("*")}
    pngs = {f"{i}.png" for i in range(3)}
    assert names == {"pairs_disparity", "pairs_disparity.mp4", "summary.json"} | pngs


def test_an_error_on_the_way(scene, capsys):
    write_image(scene / "pairs/left/4.png", np.zeros((50, 80, 3), np.uint8))
    assert call("pairs") == 1
    error = capsys.readouterr().err
    assert "frame 4: the pictures have 48x80 and 50x80 pixels, the first 48x80" in error
    assert "what was written so far is complete" in error
    item = summary(scene)
    assert item["frames"] == 4 and "50x80" in item["error"]
    assert len(read_video("out/pairs_disparity.mp4")[0]) == 4


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
@pytest.mark.parametrize("kind", ["raw", "compressed"])
def test_a_bag(scene, capsys, storage, kind):
    rows = list(bag_rows(4))
    if kind == "compressed":
        rows = [(topic, time, bytes(compressed(p, ".jpg").data)) for topic, time, p in rows]
    write_bag(scene / "bag", rows, storage=storage)
    topics = ("--topics", *TOPICS) if kind == "raw" else ()
    assert call("bag", *topics, "--format", "video", "png") == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.startswith("bag: 4 frames of 48x80 in ")
    assert f"left {TOPICS[0]}, right {TOPICS[1]}" in said.out
    item = summary(scene)
    assert item["topics"] == list(TOPICS) and item["frames"] == 4
    assert len(read_video("out/bag_disparity.mp4")[0]) == len(list(scene.glob("out/bag_*/*"))) == 4
    assert "left and right are both /left/image_raw; there are: /left/image_raw (4), " in refused(
        capsys, "bag", "--topics", TOPICS[0], TOPICS[0]
    )


def test_a_recording(scene, capsys):
    """What was recorded is read again, as the viewer does."""
    rerun = pytest.importorskip("rerun")
    write_bag(scene / "bag", bag_rows(3))
    words = ("bag", "--format", "rrd", "--focal", "100", "--baseline", "0.2")
    assert call(*words) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["  out/bag.rrd", "out/summary.json"]
    done = subprocess.run(
        [sys.executable, "-m", "rerun", "rrd", "print", "out/bag.rrd"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and rerun.__version__, done.stderr
    for entity in ("camera", "camera/left", "camera/depth", "disparity"):
        assert f"/{entity}" in done.stdout, entity


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """The current folder, with raw.mp4 of both views, rig.yml, and plain.mp4 of two pinholes."""
    monkeypatch.chdir(tmp_path)
    for lens, name in (("radtan", "raw.mp4"), ("plain", "plain.mp4")):
        write_video(tmp_path / name, [np.hstack(two_planes(make_rig(lens)))] * 3)
    write_rig(tmp_path / "rig.yml", make_rig("radtan"))
    return tmp_path


def test_raw_videos(raw, capsys):
    """The warning's remedy: rectified by the calibration, with depth; or by what matches."""
    assert call("raw.mp4") == 0
    said = capsys.readouterr()
    assert "the pair is not rectified" in said.err and "infer stereo" not in said.err
    assert "`vizoo infer video --raw CALIBRATION`" in said.err and "--auto-rectify" in said.err
    assert call("raw.mp4", "--raw", "rig.yml", "--format", "png", "video") == 0
    said = capsys.readouterr()
    assert "not rectified" not in said.err
    endings = ("disparity", "left", "depth", "depth_raw")
    for ending in endings:
        assert len(list((raw / f"out/raw_{ending}").iterdir())) == 3
    camera = summary(raw)["camera"]
    assert (camera["width"], camera["height"]) == (320, 240) and camera["focal"] > 100
    assert camera["baseline"] == pytest.approx(0.1, rel=0.01)
    depth = read_pixels(raw / "out/raw_depth/000002.png")
    assert np.median(depth) == pytest.approx(1e3 * camera["focal"] * camera["baseline"] / 5, abs=1)
    assert call("plain.mp4", "--auto-rectify", "--format", "png", "--out", "auto") == 0
    said = capsys.readouterr()
    assert "matches, without a calibration: rows agree" in said.err
    assert "not rectified" not in said.err
    assert not (raw / "auto/plain_depth").exists()
    assert (raw / "auto/plain_left/000000.png").exists()


def test_the_bound_of_a_calibration_is_used(scene, monkeypatch):
    monkeypatch.setattr(infer, "load_network", lambda model, task: BlockMatcher(3))
    camera = StereoCalibration(100.0, 0.2, 39.5, 23.5, width=160, height=96, ndisp=12)
    write_calibration(scene / "calib.txt", camera)
    assert call("pairs", "--calib", "calib.txt", "--no-check") == 0
    item = summary(scene)
    assert item["scale"] == 0.5 and item["reach"] == 6  # of pictures half as large
    scaled = "the calibration is for 96x160 images (height x width) and was scaled to 48x80"
    assert item["warnings"] == [scaled]
    assert call("pairs", "--calib", "calib.txt", "--max-disparity", "4", "--no-check") == 0
    assert summary(scene)["scale"] == 0.75


def test_a_calibration_of_other_pictures(scene, capsys):
    camera = StereoCalibration(100.0, 0.2, 39.5, 23.5, width=99, height=48)
    write_calibration(scene / "calib.txt", camera)
    said = refused(capsys, "pairs", "--calib", "calib.txt")
    known = "48x99 (height x width), these have 48x80"
    assert f"pairs: calib.txt: calibration is for images of {known}" in said
    write_calibration(scene / "pairs/calib.txt", camera)
    assert "pairs: pairs/calib.txt: calibration is for" in refused(capsys, "pairs")


def test_depth_of_rectified_videos(scene, capsys):
    camera = StereoCalibration(100.0, 0.2, 39.5, 23.5, width=80, height=48)
    write_calibration(scene / "calib.txt", camera)
    assert call("left.mp4", "right.mp4", "--calib", "calib.txt", "--format", "png") == 0
    assert set(read_pixels(scene / "out/left_depth/000001.png").flat) == {4000}
    assert summary(scene)["camera"]["focal"] == 100
    assert capsys.readouterr().err == ""
    assert call("left.mp4", "right.mp4", "--focal", "50", "--baseline", "0.2") == 0
    assert summary(scene)["camera"]["focal"] == 50
    said = "no depth in `--format video`; `--format png` or `rrd` writes it"
    assert capsys.readouterr().err == f"vizoo: warning: {said}\n"


def test_depth_of_a_folder_with_its_calibration(scene):
    camera = StereoCalibration(100.0, 0.2, 39.5, 23.5, width=80, height=48)
    write_calibration(scene / "pairs/calib.txt", camera)
    assert call("pairs", "--format", "png") == 0
    assert set(read_pixels(scene / "out/pairs_depth/1.png").flat) == {4000}
    assert call("pairs", "--focal", "50", "--baseline", "0.2") == 0
    assert summary(scene)["camera"]["focal"] == 50


def test_the_grey_cameras_of_a_folder(scene):
    """Which of KITTI's cameras it is, is told by the folders that were found."""
    (scene / "pairs/left").rename(scene / "pairs/image_0")
    (scene / "pairs/right").rename(scene / "pairs/image_1")
    shifts = {"P0": 0, "P1": -20, "P2": 0, "P3": -50}
    rows = (f"{name}: 100 0 40 {shift} 0 100 24 0 0 0 1 0" for name, shift in shifts.items())
    (scene / "pairs/calib.txt").write_text("\n".join(rows))
    for words in ((), ("--calib", "pairs/calib.txt")):
        assert call("pairs", *words) == 0
        assert summary(scene)["camera"]["baseline"] == 0.2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("gone.mp4", "gone.mp4: no such file or folder"),
        ("left.mp4", "neither its halves"),
        ("left.mp4 right.mp4 --format gif", "--format: invalid choice: 'gif'"),
        ("left.mp4 right.mp4 --frames 0", "--frames 0: must be at least 1"),
        ("left.mp4 right.mp4 --rate 0", "--rate 0: frames a second"),
        ("left.mp4 right.mp4 --colours 9 3", "--colours 9 3: two disparities"),
        ("left.mp4 right.mp4 --scale 2", "not above 0 and at most 1"),
        ("left.mp4 right.mp4 --layout top-bottom", "not for two"),
        ("pairs --topics /a /b", "topics are for bags"),
        ("pairs --min-confidence 2", "--min-confidence: '2' is not from 0 to 1"),
        ("pairs --max-disparity 0", "--max-disparity: '0' is not above 0"),
        ("pairs --focal 100", "--focal needs --baseline too"),
        ("pairs --calib gone.txt", "gone.txt: no such calibration file"),
        ("pairs --raw gone.yaml", "gone.yaml"),
        ("pairs --baseline-unit cm", "--baseline-unit is that of a calibration file, and there is"),
        ("pairs --fov 90", "--fov goes with --raw CALIBRATION"),
        ("pairs --auto-rectify --focal 9 --baseline 1", "not both"),
        ("left.mp4 left.mp4", "left.mp4: named for both views"),
        ("pairs/left copy", "left and right are the same picture"),
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
    done = Forked(["infer", "video", "text.mp4", "right.mp4", "--out", "out"], scene)
    assert done.wait(300) == 2
    assert (scene / "stderr.txt").read_text().splitlines() == [
        "vizoo: error: text.mp4: no video, or one whose end was never written, or of unknown "
        "coding; copy it once more, or record to AVI or MKV, which can be read without their end"
    ]
