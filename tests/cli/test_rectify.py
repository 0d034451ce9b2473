"""Raw cameras from the command line: calibrate, rectify, infer; one line for whatever is wrong."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from raw_rigs import HEIGHT, WIDTH, Board, chessboard, make_rig, two_planes
from torch import nn

from vizoo.__main__ import main
from vizoo.datasets.stereo.calibration import read_calibration
from vizoo.datasets.stereo.rigs import read_rig, write_rig
from vizoo.stereo import board_calibration, infer
from vizoo.stereo.rectify import RigRectifier, check_rows
from vizoo.vision.io.images import read_image, read_pixels, write_image
from vizoo.vision.io.pfm import read_pfm

SIZE = (3, HEIGHT, WIDTH)


class Constant(nn.Module):
    def forward(self, left, right):
        return torch.full_like(left[:, :1], 20.0)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    rig = make_rig("radtan")
    write_rig(folder / "rig.yml", rig)
    for number in range(2):
        for side, image in zip(("left", "right"), two_planes(rig, number), strict=True):
            write_image(folder / side / f"{number}.png", image)
    for side, image in zip(("l", "r"), two_planes(make_rig("plain")), strict=True):
        write_image(folder / f"{side}.png", image)
    return folder


@pytest.fixture
def raw(rendered, tmp_path, monkeypatch):
    """The rendered folder; the current one is empty; `stand-in` always answers 20 px."""
    monkeypatch.setattr(infer, "load_network", lambda model, task: Constant())
    monkeypatch.chdir(tmp_path)
    return rendered


def pair(raw, *words):
    return [*words, str(raw / "left"), str(raw / "right"), "--out", "out"]


def inferred(raw, *words, sides=("left", "right")):
    files = [str(raw / side) for side in sides]
    return main(["infer", "stereo", *files, "--model", "stand-in", "--out", "out", *words])


def refused(capsys, words):
    assert main(words) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "warning" not in x]
    assert line.startswith("vizoo: error: ")
    return line


def test_rectify_and_infer(raw, tmp_path, capsys):
    assert main(pair(raw, "rectify", str(raw / "rig.yml"))) == 0
    said = capsys.readouterr()
    assert "pinhole lenses, baseline 0.1 m" in said.out and "rows agree to 0." in said.out
    assert "next: vizoo infer stereo out" in said.out and said.err == ""
    names = ["left/0.png", "left/1.png", "right/0.png", "right/1.png"]
    assert all(read_image(tmp_path / "out" / name).shape == SIZE for name in names)
    rectifier = RigRectifier(read_rig(raw / "rig.yml"), HEIGHT, WIDTH)
    found = read_calibration(tmp_path / "out/calib.txt")
    assert found.focal == pytest.approx(rectifier.calibration.focal)
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [item["row_offset"] < 0.5 for item in summary["items"]] == [True, True]
    # The folder is one that `infer stereo` takes, and has its calibration.
    assert main(["infer", "stereo", "out", "--model", "stand-in", "--out", "depths"]) == 0
    depth = np.load(tmp_path / "depths/0_depth.npy")
    assert depth == pytest.approx(found.focal * found.baseline / 20)
    assert "not rectified" not in capsys.readouterr().err


def test_rectify_options(raw, tmp_path, capsys):
    words = ["--fov", "50", "--size", "100x200", "--json"]
    assert main([*pair(raw, "rectify", str(raw / "rig.yml")), *words]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["items"][0]["size"] == [100, 200] and 0 < summary["kept"] < 1
    found = read_calibration(tmp_path / "out/calib.txt")
    assert found.focal == pytest.approx(100 / np.tan(np.radians(25)))
    assert (found.width, found.height) == (200, 100)
    words += ["--baseline-unit", "mm"]
    assert main([*pair(raw, "rectify", str(raw / "rig.yml")), *words]) == 0
    assert "a baseline of 0.0001 m: is --baseline-unit that of the file?" in capsys.readouterr().err


def test_infer_raw(raw, tmp_path, capsys):
    assert inferred(raw, "--raw", str(raw / "rig.yml"), "--format", "npy") == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"0_depth.npy", "0_depth_raw.npy", "0_rectified.png", "1_cloud.ply"} <= names
    assert "0_depth_raw.npy" in capsys.readouterr().out
    rectifier = RigRectifier(read_rig(raw / "rig.yml"), HEIGHT, WIDTH)
    depth = np.load(tmp_path / "out/0_depth.npy")
    found = np.load(tmp_path / "out/0_depth_raw.npy")
    assert found == pytest.approx(rectifier.depth_in_raw(depth)) and found.shape == (240, 320)
    # A fronto-parallel plane before the turned camera leans a little before the raw one.
    assert np.median(found[found > 0]) == pytest.approx(np.median(depth), rel=0.05)
    assert 0.7 < (found > 0).mean() <= 1


def test_infer_raw_with_all_there_is(raw, tmp_path, capsys):
    sides = ("left/0.png", "right/0.png")
    rig = str(raw / "rig.yml")
    assert inferred(raw, "--raw", rig, "--both", sides=sides) == 0
    rectifier = RigRectifier(read_rig(rig), HEIGHT, WIDTH)
    sure = read_pfm(tmp_path / "out/0_confidence_raw.pfm")
    expected = rectifier.in_raw(read_pfm(tmp_path / "out/0_confidence.pfm"))
    assert sure == pytest.approx(expected) and sure.shape == (HEIGHT, WIDTH)
    hidden = read_pixels(tmp_path / "out/0_occluded_raw.png")
    depth = np.load(tmp_path / "out/0_depth_raw.npy")
    assert set(np.unique(hidden)) <= {0, 255} and (hidden[depth == 0] == 255).all()
    capsys.readouterr()
    assert inferred(raw, "--auto-rectify", sides=sides) == 0
    said = capsys.readouterr().err
    for name in ("depth_raw.npy", "confidence_raw.pfm", "occluded_raw.png"):
        assert f"out/0_{name}" in said
    assert "of an earlier run, not of this one" in said and "out/0_rectified" not in said
    assert inferred(raw, "--no-check", sides=sides) == 0
    assert "out/0_rectified.png, out/0_depth_raw.npy" in capsys.readouterr().err


def test_pixels_that_are_not_sure_have_no_depth_in_the_raw_image(raw, tmp_path):
    words = ["--raw", str(raw / "rig.yml"), "--min-confidence", "1"]
    assert inferred(raw, *words, sides=("left/0.png", "right/0.png")) == 0
    assert not np.load(tmp_path / "out/0_depth_raw.npy").any()


def test_a_calibration_beside_raw_images_is_passed_over(raw, tmp_path, capsys):
    """It is of other pictures, or of none."""
    for side in ("left", "right"):
        write_image(tmp_path / "pairs" / side / "0.png", read_image(raw / side / "0.png"))
    (tmp_path / "pairs/calib.txt").write_text("M1 = []")
    words = ["infer", "stereo", "pairs", "--model", "stand-in", "--out", "out"]
    assert "not a calibration file" in refused(capsys, words)
    assert main([*words, "--raw", str(raw / "rig.yml")]) == 0
    found = np.load(tmp_path / "out/0_depth.npy").max()
    calibration = RigRectifier(read_rig(raw / "rig.yml"), HEIGHT, WIDTH).calibration
    assert found == pytest.approx(calibration.focal * calibration.baseline / 20)
    assert main([*words, "--auto-rectify"]) == 0


def test_pairs_of_an_earlier_run(raw, tmp_path, capsys):
    rig = str(raw / "rig.yml")
    assert main(pair(raw, "rectify", rig)) == 0
    files = [str(raw / side / "1.png") for side in ("left", "right")]
    assert main(pair(raw, "rectify", rig)) == 0
    assert "earlier run" not in capsys.readouterr().err
    assert main(["rectify", rig, *files, "--out", "out", "--fov", "60"]) == 0
    said = capsys.readouterr()
    old = "of an earlier run, not of this one: out/left/0.png, out/right/0.png; out/calib"
    assert old in said.err and "next:" not in said.out


def test_a_pair_that_was_half_written_is_of_this_run(raw, monkeypatch, capsys):
    def write_once(file, image):
        if Path(file).parts[-2:] == ("right", "1.png"):
            raise KeyboardInterrupt
        write_image(file, image)

    monkeypatch.setattr("vizoo.vision.io.images.write_image", write_once)
    assert main(pair(raw, "rectify", str(raw / "rig.yml"))) == 130
    said = capsys.readouterr()
    assert "earlier run" not in said.err and "1 of 2 pairs finished" in said.err
    assert Path("out/left/1.png").exists() and "next:" not in said.out


def test_nothing_comes_next_where_all_pairs_failed(raw, tmp_path, capsys):
    for side in ("left", "right"):
        for number in range(2):
            flat = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
            write_image(tmp_path / side / f"{number}.png", flat)
    assert main(["rectify", str(raw / "rig.yml"), "left", "right", "--out", "out"]) == 1
    said = capsys.readouterr()
    assert "2 of 2 pairs failed" in said.err and "next:" not in said.out


def test_the_calibration_is_said_once_where_no_picture_can_be_written(raw, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/left").touch()
    assert main(pair(raw, "rectify", str(raw / "rig.yml"))) == 1
    said = capsys.readouterr()
    assert said.out.count("rectified: focal length") == 1 and "2 of 2 pairs failed" in said.err
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["rectified"] == "out/calib.txt"


def test_a_run_without_a_picture_leaves_the_calibration_of_those_there(raw, tmp_path, capsys):
    assert main(pair(raw, "rectify", str(raw / "rig.yml"))) == 0
    before = (tmp_path / "out/calib.txt").read_bytes()
    write_image(tmp_path / "flat.png", np.full((HEIGHT, WIDTH, 3), 90, np.uint8))
    words = ["rectify", str(raw / "rig.yml"), "flat.png", "flat.png", "--out", "out"]
    assert main([*words, "--fov", "60"]) == 2
    shutil.copy(tmp_path / "flat.png", tmp_path / "other.png")
    words = ["rectify", str(raw / "rig.yml"), "flat.png", "other.png", "flat.png", "other.png"]
    assert main([*words, "--out", "out", "--fov", "60"]) == 1
    assert (tmp_path / "out/calib.txt").read_bytes() == before


def test_rectify_without_a_calibration(raw, tmp_path, capsys):
    files = [str(raw / "l.png"), str(raw / "r.png"), "--out", "out"]
    assert main(["rectify", "--auto", *files]) == 0
    said = capsys.readouterr()
    assert "without a calibration: rows agree" in said.err and "next: vizoo infer" in said.out
    pixels = [read_pixels(tmp_path / "out" / side / "l.png") for side in ("left", "right")]
    assert check_rows(*pixels)[0] < 0.5 and not (tmp_path / "out/calib.txt").exists()
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["calibration"] is None and summary["items"][0]["row_offset"] < 0.5
    (tmp_path / "out/calib.txt").touch()
    assert main(["rectify", *files, "--auto"]) == 0
    said = capsys.readouterr()
    assert "not of these pairs: out/calib.txt" in said.err and "next:" not in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--auto", "l.png", "r.png", "--fov", "60"], "--fov goes with CALIBRATION"),
        (["--auto", "l.png", "r.png", "--baseline-unit", "m"], "--baseline-unit goes with"),
        (["--list", "pairs.txt"], "CALIBRATION is missing: name its file, or give --auto"),
        (["left", "right"], "left: no calibration in this folder"),
        (["rig.yml", "l.png", "r.png", "--size", "99999x99999"], "more than 4 times the pixels"),
    ],
)
def test_what_rectify_refuses(raw, monkeypatch, capsys, words, message):
    monkeypatch.chdir(raw)
    assert message in refused(capsys, ["rectify", *words, "--out", "refused"])


@pytest.mark.parametrize(
    "words",
    [
        ["left/0.png", "left/1.png", "right/0.png", "right/1.png"],
        ["left/*.png", "right/*.png"],
        ["."],
        ["--list", "list.txt"],
    ],
)
def test_ways_to_name_pairs(raw, tmp_path, monkeypatch, words):
    (raw / "list.txt").write_text("left/0.png right/0.png\nleft/1.png right/1.png\n")
    monkeypatch.chdir(raw)
    assert main(["rectify", "rig.yml", *words, "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    pairs = [(Path(item["left"]), Path(item["right"])) for item in summary["items"]]
    assert [(one.parent.name, one.name, two.parent.name, two.name) for one, two in pairs] == [
        ("left", f"{number}.png", "right", f"{number}.png") for number in range(2)
    ]
    (raw / "list.txt").unlink()


def test_pairs_that_do_not_go_together(raw, monkeypatch, capsys):
    monkeypatch.chdir(raw)
    words = ["left/0.png", "left/1.png", "right/0.png", "--out", "out"]
    said = refused(capsys, ["rectify", "rig.yml", *words])
    assert "left/0.png ... gives 2 images and right/0.png gives 1" in said
    said = refused(capsys, ["rectify", "rig.yml", "--out", "out"])
    assert "LEFT and RIGHT are missing" in said and "vizoo rectify --help" in said


@pytest.mark.parametrize("words", [["--raw", "rig.yml"], ["--auto-rectify"]])
def test_one_damaged_picture_of_several(raw, tmp_path, capsys, words):
    """The others are worked on, the first though it be."""
    for side in ("left", "right"):
        for number in range(2):
            write_image(tmp_path / side / f"{number}.png", read_image(raw / side / f"{number}.png"))
    file = tmp_path / "left/0.png"
    file.write_bytes(file.read_bytes()[:3000])
    words = [str(raw / word) if word == "rig.yml" else word for word in words]
    sides = ["left", "right", "--out", "out", "--model", "stand-in"]
    assert main(["infer", "stereo", *sides, *words]) == 1
    assert "left/0.png" in capsys.readouterr().err
    assert (tmp_path / "out/1_rectified.png").is_file()
    assert main(["rectify", str(raw / "rig.yml"), "left", "right", "--out", "rectified"]) == 1
    assert not (tmp_path / "rectified/left/0.png").exists()
    capsys.readouterr()
    for words in (["infer", "stereo", "--auto-rectify"], ["rectify", str(raw / "rig.yml")]):
        files = ["left/0.png", "right/0.png", "--out", "o"]
        assert "left/0.png" in refused(capsys, [*words, *files])


def test_a_pair_that_looks_unrectified_is_told_how(raw, capsys):
    assert inferred(raw) == 0
    said = capsys.readouterr().err
    assert "not rectified" in said and "`vizoo rectify`" in said and "--auto-rectify" in said


def test_infer_without_a_calibration(raw, tmp_path, capsys):
    assert inferred(raw, "--auto-rectify", sides=("l.png", "r.png")) == 0
    said = capsys.readouterr().err
    assert "rectified by" in said and "without a calibration" in said
    assert "not rectified" not in said
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert "l_rectified.png" in names and not any("depth" in name for name in names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--raw", "rig.yml", "--calib", "calib.txt"], "either --calib or --raw"),
        (["--raw", "rig.yml", "--auto-rectify"], "either --raw or --auto-rectify"),
        (["--auto-rectify", "--focal", "9", "--baseline", "1"], "either --focal or --auto-rectify"),
        (["--lens", "fisheye"], "--lens goes with --raw"),
        (["--fov", "90"], "--fov goes with --raw"),
        (["--raw", "none.yml"], "none.yml: no such calibration file"),
        (["--calib", "rig.yml"], "is in it; one of raw cameras is for --raw and `vizoo rectify`"),
        (["--max-depth", "3"], "--max-depth needs a calibration: --calib, --raw"),
    ],
)
def test_options_that_do_not_go_together(raw, capsys, words, message):
    words = [str(raw / word) if word == "rig.yml" else word for word in words]
    if "calib.txt" in words:
        words[words.index("--calib") + 1] = str(raw / "calib.txt")
        (raw / "calib.txt").write_text("cam0=[9 0 4; 0 9 3; 0 0 1]\nbaseline=10\n")
    files = [str(raw / "left"), str(raw / "right"), "--out", "out"]
    assert message in refused(capsys, ["infer", "stereo", *files, *words])
    (raw / "calib.txt").unlink(missing_ok=True)


def test_images_of_another_size(raw, tmp_path, capsys):
    for side in ("left", "right"):
        image = read_image(raw / side / "0.png")
        write_image(tmp_path / "half" / side / "0.png", image[:, ::2, ::2])
        write_image(tmp_path / "cut" / side / "0.png", image[:, :, :200])
    half, cut = (
        [str(tmp_path / name / side) for side in ("left", "right")] for name in ("half", "cut")
    )
    assert main(["rectify", str(raw / "rig.yml"), *half, "--out", "out"]) == 0
    told = "for 240x320 images (height x width) and was scaled to 120x160"
    assert told in capsys.readouterr().err
    said = refused(capsys, ["rectify", str(raw / "rig.yml"), *cut, "--out", "out"])
    assert "rig.yml: " in said and "240x320 (height x width), these have 240x200" in said


def test_exchanged_pictures_are_doubted(raw, capsys):
    files = [str(raw / "right"), str(raw / "left")]
    assert main(["rectify", str(raw / "rig.yml"), *files, "--out", "out"]) == 0
    assert "the calibration does not fit these images" in capsys.readouterr().err


def test_pictures_of_any_depth(raw, tmp_path, capsys):
    for side in ("left", "right"):
        grey = read_pixels(raw / side / "0.png")[..., 0]
        (tmp_path / side).mkdir()
        write_image(tmp_path / side / "0.png", grey)
        write_image(tmp_path / side / "1.png", grey.astype(np.uint16) * 257)
    assert main(["rectify", str(raw / "rig.yml"), "left", "right", "--out", "out"]) == 0
    assert main(pair(raw, "rectify", str(raw / "rig.yml"))[:-1] + ["colour"]) == 0
    for side in ("left", "right"):
        expected = read_pixels(tmp_path / "colour" / side / "0.png")
        for number in range(2):
            assert (read_pixels(tmp_path / "out" / side / f"{number}.png") == expected).all()


def test_one_picture_twice_is_not_rectified_apart(raw, capsys):
    words = ["infer", "stereo", *[str(raw / "left/0.png")] * 2, "--auto-rectify", "--out", "out"]
    assert "the same picture" in refused(capsys, words)


def test_one_picture_twice(raw, capsys):
    left = str(raw / "left/0.png")
    said = refused(capsys, ["rectify", str(raw / "rig.yml"), left, left, "--out", "out"])
    assert "left and right are the same picture" in said


def test_inputs_are_not_written_over(raw, capsys):
    words = ["rectify", str(raw / "rig.yml"), str(raw / "left"), str(raw / "right")]
    assert "name another folder" in refused(capsys, [*words, "--out", str(raw)])


@pytest.fixture(scope="module")
def boards(tmp_path_factory):
    """Pictures of a chessboard of 7x5 squares of 60 mm."""
    folder, generator = tmp_path_factory.mktemp("boards"), np.random.default_rng(5)
    for number in range(6):
        turn = generator.uniform(-0.4, 0.4, 3)
        origin = np.array([-0.2, -0.14, 0.5]) + generator.uniform(-0.05, 0.05, 3)
        views = Board(origin, turn).pair(make_rig("radtan"), chessboard(7, 5, 0.06))
        for side, image in zip(("left", "right"), views, strict=True):
            write_image(folder / side / f"{number}.png", image)
    return folder


BOARD = ["--board", "chessboard", "--squares", "7x5", "--square", "60mm"]


def test_what_comes_next_can_be_pasted(boards, raw, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*pair(boards, "calibrate", "stereo"), *BOARD, "--out", "a b"]) == 0
    assert "next: vizoo rectify 'a b/calibration.yml' LEFT RIGHT --out" in capsys.readouterr().out
    assert main([*pair(raw, "rectify", str(raw / "rig.yml")), "--out", "a b"]) == 0
    assert "next: vizoo infer stereo 'a b' --out 'a b/result'" in capsys.readouterr().out


def test_calibrate(boards, tmp_path, monkeypatch, capsys):
    calibrate, made = board_calibration.calibrate_rig, []

    def noted(*given):
        made.append(calibrate(*given))
        return made[0]

    monkeypatch.setattr(board_calibration, "calibrate_rig", noted)
    monkeypatch.chdir(tmp_path)
    assert main([*pair(boards, "calibrate", "stereo"), *BOARD]) == 0
    said = capsys.readouterr()
    assert "24 corners, left 0." in said.out and "of 6 pairs: error 0." in said.out
    assert "few; 15 and more are better" in said.err
    assert "next: vizoo rectify out/calibration.yml LEFT RIGHT" in said.out
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "calibration.yml",
        "calibration.json",
        "calibration.png",
    }
    assert read_rig("out/calibration.yml").baseline == pytest.approx(0.1, rel=0.02)
    assert read_rig("out").baseline == read_rig("out/calibration.yml").baseline
    monkeypatch.setattr(board_calibration, "calibrate_rig", lambda *given: made[0])
    assert main([*pair(boards, "calibrate", "stereo"), *BOARD, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["error"] < 0.3 and len(report["views"]) + len(report["skipped"]) == 6


def test_a_damaged_picture_of_a_board(boards, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for file in boards.glob("*/*.png"):
        (tmp_path / file.parent.name).mkdir(exist_ok=True)
        (tmp_path / file.parent.name / file.name).write_bytes(file.read_bytes())
    broken = tmp_path / "left/2.png"
    broken.write_bytes(broken.read_bytes()[:2000])
    words = [f"left/{number}.png" for number in range(6)]
    words += [f"right/{number}.png" for number in range(6)]
    assert main(["calibrate", "stereo", *words, *BOARD, "--out", "out"]) == 0
    said = capsys.readouterr()
    assert "of 6 pairs: error 0." in said.out and "warning: left/2.png: " in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*BOARD[:2], "--squares", "7", *BOARD[4:]], "as in --squares 10x7"),
        ([*BOARD[:4], "--square", "60"], "'60' is no length with its unit, such as 25mm"),
        (["--board", "charuco", *BOARD[2:]], "give the side of a ChArUco"),
        ([*BOARD, "--marker", "15mm"], "marker: a chessboard has none"),
        ([*BOARD[:2], "--squares", "9x8", *BOARD[4:]], "found in 0 of 6 pairs"),
    ],
)
def test_boards_that_are_none(boards, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, [*pair(boards, "calibrate", "stereo"), *words])
