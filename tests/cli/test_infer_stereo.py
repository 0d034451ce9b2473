"""`vizoo infer stereo`: what it writes, and one line for whatever is wrong."""

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from stereo_fixtures import BlockMatcher, Constant, pair_of, refused_line

from vizoo.__main__ import main
from vizoo.datasets.stereo.calibration import StereoCalibration, write_calibration
from vizoo.stereo import infer
from vizoo.vision.io.images import read_image, to_bytes, write_image
from vizoo.vision.io.pfm import read_pfm

SIZE = (32, 48)
pytestmark = pytest.mark.usefixtures("stand_in")


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """The current folder, with l.png, r.png and calib.txt."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (2, *SIZE, 3), dtype=np.uint8)
    for image, name in zip(images, ("l.png", "r.png"), strict=True):
        write_image(tmp_path / name, image)
    camera = StereoCalibration(100.0, 0.5, cx=23.5, cy=15.5, width=48, height=32)
    write_calibration(tmp_path / "calib.txt", camera)
    return tmp_path


def call(*words: str) -> int:
    return main(["infer", "stereo", *words])


def good(*words: str) -> int:
    return call("l.png", "r.png", "--model", "stand-in", "--out", "out", *words)


def refused(capsys, *words: str) -> str:
    return refused_line(capsys, ["infer", "stereo", *words])


def results(folder) -> set[str]:
    assert (folder / "summary.json").is_file()
    return {file.name for file in folder.iterdir()} - {"summary.json"}


def test_one_pair(scene, capsys):
    assert good() == 0
    names = {"l_disparity.pfm", "l_disparity.png", "l_disparity.npy", "l_disparity_colour.png"}
    names |= {"l_confidence.pfm", "l_confidence.png"}
    assert results(scene / "out") == names
    out = capsys.readouterr().out
    assert "l.png: disparity 5.0 to 5.0 px" in out
    assert all(str(name) in out for name in names)
    assert "out/l_disparity.png  16-bit, 256 per pixel; looks black in viewers\n" in out
    assert out.count("16-bit") == 1


@pytest.mark.parametrize(
    "words", [("--calib", "calib.txt"), ("--focal", "100", "--baseline", "0.5")]
)
def test_metric(scene, capsys, words):
    assert good(*words, "--format", "npy", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert results(scene / "out") == {
        "l_disparity.npy",
        "l_disparity_colour.png",
        "l_confidence.pfm",
        "l_confidence.png",
        "l_depth.npy",
        "l_depth_colour.png",
        "l_cloud.ply",
        "l_cloud.png",
    }
    assert np.load(scene / "out/l_depth.npy") == pytest.approx(10)
    (pair,) = report["pairs"]
    assert pair["disparity"] == {"min": 5, "median": 5, "max": 5} and pair["size"] == [32, 48]
    assert len(pair["files"]) == 8


def test_generated_pairs_have_depth(scene, capsys):
    """`vizoo world` writes a calibration of each pair, which is found."""
    assert main(["world", "made", "--count", "2", "--size", "64x128"]) == 0
    capsys.readouterr()
    assert call("made", "--no-check", "--json", "--out", "out") == 0
    found = json.loads(capsys.readouterr().out)["pairs"]
    assert len(found) == 2
    assert all(any(name.endswith("_depth.npy") for name in pair["files"]) for pair in found)
    assert call("made", "--calib", "made/calib", "--out", "out") == 2
    assert "made/calib: a folder; name a calibration file" in capsys.readouterr().err


def test_the_default_model_is_guided_and_others_as_asked(scene, capsys):
    assert main(["world", "made", "--count", "1", "--size", "64x128"]) == 0
    words = ["made", "--no-check", "--format", "npy", "--json", "--out", "out"]
    maps = []
    for more, guided in (
        ([], True),
        (["--no-guided"], False),
        (["--model", "easnet_small.worlds"], False),
        (["--model", "easnet_small.worlds", "--guided"], True),
    ):
        capsys.readouterr()
        assert call(*words, *more) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["guided"] is guided
        (file,) = [file for file in report["items"][0]["files"] if file.endswith("disparity.npy")]
        maps.append(np.load(file))
    assert not np.allclose(maps[0], maps[1]) and not np.allclose(maps[2], maps[3])


@pytest.mark.parametrize(
    "words", [("--calib", "mine.txt"), ("--focal", "200", "--baseline", "0.5")]
)
def test_a_calibration_that_is_given_counts_more_than_one_that_is_found(scene, words):
    (scene / "pair").mkdir()
    for name, side in (("l.png", "left.png"), ("r.png", "right.png"), ("calib.txt", "calib.txt")):
        shutil.copy(scene / name, scene / "pair" / side)
    camera = StereoCalibration(200.0, 0.5, cx=23.5, cy=15.5, width=48, height=32)
    write_calibration(scene / "mine.txt", camera)
    depths = []
    for more in ((), words):
        assert call("pair", "--model", "stand-in", "--no-check", "--out", "out", *more) == 0
        depths.append(np.load(scene / "out/pair_depth.npy"))
    np.testing.assert_allclose(depths[1], 2 * depths[0], rtol=1e-5)


@pytest.mark.parametrize("found", [True, False])
def test_kittis_grey_cameras_have_their_own_baseline(scene, found):
    """Of the odometry's calib.txt, which has all four."""
    matrices = ((0, 0.0), (1, -53.7), (2, 4.5), (3, -48.7))
    lines = [f"P{camera}: 100 0 24 {shift} 0 100 16 0 0 0 1 0" for camera, shift in matrices]
    folder = scene / "00"
    for sides, baseline in ((("image_0", "image_1"), 0.537), (("image_2", "image_3"), 0.532)):
        for side, name in zip(sides, ("l.png", "r.png"), strict=True):
            (folder / side).mkdir(parents=True)
            shutil.copy(scene / name, folder / side / "0.png")
        calib = folder / "calib.txt" if found else scene / "mine.txt"
        calib.write_text("\n".join(lines))
        words = [str(folder)] if found else [str(folder / side) for side in sides]
        words += [] if found else ["--calib", str(calib)]
        assert call(*words, "--model", "stand-in", "--no-check", "--out", "out") == 0
        depth = np.load(scene / "out/0_depth.npy")
        assert np.median(depth) == pytest.approx(100 * baseline / 5, rel=1e-4)
        shutil.rmtree(folder)


def test_globs_as_a_shell_expands_them(scene, capsys):
    for side in ("left", "right"):
        (scene / side).mkdir()
        for name in ("a.png", "b.png", "c.png"):
            shutil.copy(scene / f"{side[0]}.png", scene / side / name)
    words = [f"{side}/{name}.png" for side in ("left", "right") for name in "abc"]
    assert call(*words, "--no-check", "--json", "--out", "out") == 0
    found = json.loads(capsys.readouterr().out)["pairs"]
    assert [pair["right"][-5:] for pair in found] == ["a.png", "b.png", "c.png"]
    assert call(*words[:-1], "--out", "out") == 2
    assert "gives 3 images and right/a.png ... gives 2" in capsys.readouterr().err


def test_calibration_at_another_scale_is_said(scene, capsys):
    camera = StereoCalibration(200.0, 0.5, cx=47.5, cy=31.5, width=96, height=64)
    write_calibration(scene / "big.txt", camera)
    assert good("--calib", "big.txt") == 0
    assert "64x96 images (height x width) and was scaled to 32x48" in capsys.readouterr().err
    assert np.load(scene / "out/l_depth.npy") == pytest.approx(10)
    assert good("--calib", "big.txt", "--baseline-unit", "m") == 0
    assert "big.txt: a baseline of 500 m: is --baseline-unit that" in capsys.readouterr().err
    (scene / "other.txt").write_text((scene / "calib.txt").read_text().replace("48", "99"))
    assert good("--calib", "other.txt") == 2
    assert "32x99 (height x width), these have 32x48" in capsys.readouterr().err


def near_pair(folder):
    """Writes a pair of 120x600 with a disparity of 48 px."""
    for view, name in zip(pair_of(torch.full((120, 600), 48.0)), ("l.png", "r.png"), strict=True):
        write_image(folder / name, to_bytes(view))


def test_disparities_beyond_the_network(scene, capsys, monkeypatch):
    monkeypatch.setattr(infer, "load_network", lambda model, task: BlockMatcher(30))
    near_pair(scene)
    assert good("--json") == 0
    said = capsys.readouterr()
    assert "vizoo: warning: l.png: disparities reach about 48 px, beyond the" in said.err
    (pair,) = json.loads(said.out)["pairs"]
    assert "matched at 0.48 of its size, then at its own" in pair["warnings"][0]
    assert pair["scale"] == 0.48 and pair["size"] == [120, 600]
    assert pair["disparity"]["median"] == pytest.approx(48, abs=0.5)
    assert good("--scale", "1", "--json", "--out", "kept") == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert "take the scale 0.48 or auto" in pair["warnings"][0] and pair["scale"] == 1
    camera = StereoCalibration(200.0, 0.5, 150, 30, width=300, height=60, ndisp=37)
    write_calibration(scene / "bound.txt", camera)
    for words in (("--scale", "0.4"), ("--max-disparity", "74"), ("--calib", "bound.txt")):
        assert good(*words, "--json", "--out", words[1] + ".out") == 0
        said = capsys.readouterr()
        assert "beyond" not in said.err and json.loads(said.out)["pairs"][0]["scale"] == 0.4
    assert good("--scale", "0.4") == 0
    assert "(120x600, matched at 0.4 of its size, " in capsys.readouterr().out


def test_what_is_not_sure_is_left_out(scene, capsys, monkeypatch):
    monkeypatch.setattr(infer, "load_network", lambda model, task: BlockMatcher(60))
    near_pair(scene)
    assert good("--both", "--min-confidence", "0.3", "--focal", "300", "--baseline", "0.1") == 0
    said = capsys.readouterr().out
    assert "% left out (120x600" in said and "out/l_occluded.png" in said
    sure = read_pfm(scene / "out/l_confidence.pfm")
    out = np.isinf(read_pfm(scene / "out/l_disparity.pfm"))
    assert out[sure < 0.299].all() and out[sure > 0.301].mean() < 0.01  # what is 0 is unknown too
    assert (np.load(scene / "out/l_depth.npy")[out] == 0).all()
    assert read_pfm(scene / "out/l_right_disparity.pfm").shape == (120, 600)
    (pair,) = json.loads((scene / "out/summary.json").read_text())["pairs"]
    assert pair["left_out"] == pytest.approx(out.mean(), abs=1e-3) and 0 < pair["confidence"] < 1
    assert good("--min-confidence", "1", "--out", "none") == 0
    assert "nothing is sure enough, 100% left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--min-confidence", "1.5"), "'1.5' is not from 0 to 1"),
        (("--memory", "0"), "'0' is not above 0"),
        (("--max-disparity", "far"), "'far' is not above 0"),
        (("--max-depth", "nan"), "'nan' is not above 0"),
    ],
)
def test_numbers_that_are_none(scene, capsys, words, message):
    said = refused(capsys, "l.png", "r.png", "--out", "out", *words)
    assert f"{words[0]}: {message}" in said


def folders(scene, left=3, right=3):
    for side, count, name in (("a", left, "l.png"), ("b", right, "r.png")):
        (scene / side).mkdir()
        for number in range(count):
            (scene / side / f"{number}.png").write_bytes((scene / name).read_bytes())


@pytest.mark.parametrize("words", [("a", "b"), ("a/*.png", "b/?.png")])
def test_folders_and_globs(scene, words):
    folders(scene)
    assert call(*words, "--model", "stand-in", "--out", "out", "--format", "npy") == 0
    wanted = {f"{i}_disparity{e}" for i in range(3) for e in (".npy", "_colour.png")}
    wanted |= {f"{i}_confidence{e}" for i in range(3) for e in (".pfm", ".png")}
    assert results(scene / "out") == wanted


def test_equal_names_get_their_folders(scene):
    for name in ("one", "two"):
        (scene / name).mkdir()
        for side in ("l.png", "r.png"):
            (scene / name / side).write_bytes((scene / side).read_bytes())
    words = ("*/l.png", "*/r.png", "--model", "stand-in", "--out", "out", "--format", "npy")
    assert call(*words) == 0
    assert {"one_l_disparity.npy", "two_l_disparity.npy"} < results(scene / "out")


def test_list(scene, capsys):
    folders(scene)
    (scene / "pairs.txt").write_text(
        "# left right calibration\na/0.png b/0.png\n\n'l.png' r.png calib.txt  # with depth\n"
    )
    assert call("--list", "pairs.txt", "--model", "stand-in", "--out", "out") == 0
    assert "l_depth.npy" in results(scene / "out")
    assert "0_depth.npy" not in results(scene / "out")
    (scene / "pairs.txt").write_text("a/0.png b/0.png\na/7.png b/0.png\n")
    assert "line 2" in refused(capsys, "--list", "pairs.txt", "--out", "o")
    (scene / "pairs.txt").write_text("a/0.png\n")
    assert "LEFT RIGHT [CALIBRATION]" in refused(capsys, "--list", "pairs.txt", "--out", "o")
    (scene / "pairs.txt").write_text("l.png r.png calib.txt more.txt\n")
    assert "4 columns" in refused(capsys, "--list", "pairs.txt", "--out", "o")
    (scene / "pairs.txt").write_text("a/0.png b/0.png\na/0.png b/1.png\n")
    said = refused(capsys, "--list", "pairs.txt", "--out", "o")
    assert "a/0.png and a/0.png would write results of one name" in said


def test_the_list_of_a_data_set(scene, capsys):
    (scene / "train.list").write_text("l.png r.png nowhere/d.pfm nowhere/normal.exr\n")
    assert call("--list", "train.list", "--model", "stand-in", "--out", "out") == 0
    assert "third column of 1 lines is a disparity map" in capsys.readouterr().err
    assert "l_disparity.pfm" in results(scene / "out")


def test_names_that_do_not_agree_are_said(scene, capsys):
    folders(scene)
    words = ("--model", "stand-in", "--out", "out", "--format", "npy")
    assert call("a", "b", *words) == 0
    assert "is paired with" not in capsys.readouterr().err
    (scene / "b/0.png").rename(scene / "b/3.png")
    assert call("a", "b", *words) == 0
    assert "warning: a/0.png is paired with b/1.png, and 3 of 3" in capsys.readouterr().err


def test_one_bad_pair_of_many(scene, capsys):
    folders(scene)
    (scene / "a/1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code = call("a", "b", "--model", "stand-in", "--out", "out", "--format", "npy")
    assert code == 1
    error = capsys.readouterr().err
    assert "1.png: cut short" in error and "1 of 3 pairs failed" in error
    assert {"0_disparity.npy", "2_disparity.npy"} < results(scene / "out")


def test_a_pair_too_large_for_memory_is_one_bad_pair(scene, capsys, monkeypatch):
    folders(scene)

    def full(_, left, right):
        if left.mean() != full.first:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
        return left[:, :1] * 0 + 5

    first = read_image(scene / "a/0.png")
    full.first = first.mean()
    monkeypatch.setattr(Constant, "forward", full)
    words = ("--model", "stand-in", "--no-check", "--out", "out", "--format", "npy")
    shutil.copy(scene / "a/0.png", scene / "a/1.png")
    dark = to_bytes(read_image(scene / "a/2.png")) // 2
    write_image(scene / "a/2.png", dark)
    assert call("a", "b", *words) == 1
    error = capsys.readouterr().err
    assert "a/2.png and b/2.png: there is not enough memory for it: make" in error
    assert "1 of 3 pairs failed" in error and "Traceback" not in error
    assert {"0_disparity.npy", "1_disparity.npy"} < results(scene / "out")


def test_bad_images(scene, capsys):
    data = (scene / "r.png").read_bytes()
    rest = ("--model", "stand-in", "--out", "out")
    (scene / "r.png").write_bytes(data[: len(data) // 2])
    assert "r.png: damaged" in refused(capsys, "l.png", "r.png", *rest)
    (scene / "r.png").write_text("no image at all, but quite a long text in its place")
    assert "not an image" in refused(capsys, "l.png", "r.png", *rest)
    assert "x.png: no such file" in refused(capsys, "l.png", "x.png", *rest)
    assert "no file matches" in refused(capsys, "q*.png", "r.png", *rest)
    write_image(scene / "r.png", np.zeros((8, 8, 3), np.uint8))
    said = refused(capsys, "l.png", "r.png", *rest)
    assert "error: l.png and r.png: left and right differ in size: 32x48 against 8x8" in said
    assert not (scene / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "fadnet_plus_tyny"), "did you mean fadnet_plus_tiny"),
        (("--runtime", "tensorrt"), "--runtime: invalid choice: 'tensorrt'"),
        (("--model", "none.ckpt"), "none.ckpt: no such weight file"),
        (("--model", "stand-in", "--focal", "100"), "--focal needs --baseline too"),
        (("--model", "stand-in", "--baseline", "1"), "--baseline needs --focal too"),
        (("--model", "stand-in", "--cx", "1"), "--cx needs --focal too"),
        (("--model", "stand-in", "--focal", "0", "--baseline", "1"), "focal must be positive"),
        (("--model", "stand-in", "--focal", "9", "--baseline", "-1"), "baseline must be positive"),
        (("--model", "stand-in", "--focal", "9", "--calib", "calib.txt"), "not both"),
        (
            ("--model", "stand-in", "--focal", "9", "--baseline", "4", "--baseline-unit", "cm"),
            "--baseline takes metres",
        ),
        (
            ("--model", "stand-in", "--baseline-unit", "cm"),
            "of a calibration file, and there is none",
        ),
        (("--model", "stand-in", "--calib", "l.png"), "not a calibration file"),
        (("--model", "stand-in", "--calib", "none.txt"), "no such calibration file"),
        (("--model", "stand-in", "--max-depth", "inf"), "--max-depth needs a calibration"),
        (("--model", "stand-in", "--format", "tiff"), "--format: invalid choice: 'tiff'"),
        (("--model", "stand-in", "--dtype", "half"), "--dtype: invalid choice: 'half'"),
        (("--model", "stand-in", "--list", "pairs.txt"), "not both"),
    ],
)
def test_bad_options(scene, capsys, words, message):
    assert message in refused(capsys, "l.png", "r.png", "--out", "out", *words)
    assert not (scene / "out").exists()


@pytest.mark.parametrize("kind", ["stereo", "video"])
def test_help_names_exported_files(kind, capsys):
    assert main(["infer", kind, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "what `vizoo export --dynamic` wrote (.onnx, .xml), or a checkpoint" in said


def test_bad_requests(scene, capsys):
    folders(scene, right=2)
    assert "LEFT and RIGHT are missing" in refused(capsys, "--out", "out")
    assert "l.png: RIGHT is missing" in refused(capsys, "l.png", "--out", "out")
    assert "counts must agree" in refused(capsys, "a", "b", "--out", "out")
    assert "name them as in 'a/*_L.png' 'a/*_R.png'" in refused(capsys, "a", "--out", "out")
    assert "where l.png lies" in refused(capsys, "l.png", "r.png", "--out", ".")
    assert "is a file" in refused(capsys, "l.png", "r.png", "--out", "calib.txt")
    (scene / "empty").mkdir()
    (scene / "empty/.hidden.gif").touch()
    assert "no image in this folder" in refused(capsys, "a", "empty", "--out", "out")
    for name in ("a.gif", "b.HEIC"):
        (scene / "empty" / name).touch()
    told = refused(capsys, "a", "empty", "--out", "out")
    assert "empty: no image in this folder (" in told and told.endswith("), but .gif .heic")


def test_warnings(scene, capsys):
    noise = np.random.default_rng(3).integers(0, 256, (160, 280, 3), dtype=np.uint8)
    texture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2.0), None, 0, 255, cv2.NORM_MINMAX)
    write_image(scene / "l.png", texture[:, :260])
    write_image(scene / "r.png", texture[:, 9:269])
    assert good() == 0
    assert capsys.readouterr().err == ""
    assert call("r.png", "l.png", "--model", "stand-in", "--out", "out") == 0
    assert "vizoo: warning: r.png: left and right look swapped" in capsys.readouterr().err
    write_image(scene / "r.png", np.roll(texture, 6, axis=0)[:, 9:269])
    assert good() == 0
    assert "not rectified: median vertical offset 6.0 px" in capsys.readouterr().err
    assert good("--no-check", "--out", "unchecked") == 0
    assert capsys.readouterr().err == ""
    assert good("--focal", "9", "--baseline", "60") == 0
    assert "takes metres" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("", "--out is empty"),
        ("l.png", "is a file; name a folder"),
        ("l.png/sub/out", "l.png is a file; name a folder"),
        ("gone/out", "gone is a link to what is not there; name a folder"),
        ("/proc/out", "--out /proc/out: /proc is not writable ("),
    ],
)
def test_no_place_for_results(scene, capsys, out, says):
    (scene / "gone").symlink_to(scene / "nowhere")
    assert says in refused(capsys, "l.png", "r.png", "--model", "stand-in", "--out", out)


def test_nothing_to_match(scene, capsys):
    rest = ("--model", "stand-in", "--out", "out")
    assert "are the same picture: there is nothing to" in refused(capsys, "l.png", "l.png", *rest)
    write_image(scene / "r.png", np.full((*SIZE, 3), 90, np.uint8))
    assert "the right image is all of one colour" in refused(capsys, "l.png", "r.png", *rest)
    assert not (scene / "out").exists()


def test_results_of_an_earlier_run_are_named(scene, capsys):
    assert good("--focal", "100", "--baseline", "0.5") == 0
    assert "earlier run" not in capsys.readouterr().err
    assert good("--focal", "100", "--baseline", "0.5") == 0
    count = len(results(scene / "out"))
    said = capsys.readouterr().err
    assert said.strip().endswith(f"vizoo: replaced {count} files of an earlier run in out")
    assert good("--format", "pfm") == 0
    said = capsys.readouterr().err
    assert "replaced 4 files" in said
    assert "of an earlier run, not of this one: out/l_cloud" in said
    (said,) = [line for line in said.splitlines() if "not of this one" in line]
    assert "out/l_depth.npy" in said and "out/l_disparity.png" in said
    assert "l_disparity.pfm" not in said and "l_disparity_colour.png" not in said


def test_what_takes_long_is_said_before(scene, capsys, monkeypatch):
    monkeypatch.setattr(infer.StereoPredictor, "estimate", lambda self, *size: 0.1 * size[1])
    assert good() == 0 and "about" not in capsys.readouterr().err
    for seed, name in enumerate(("l.png", "r.png")):
        noise = np.random.default_rng(seed).integers(0, 256, (600, 900, 3), dtype=np.uint8)
        write_image(scene / name, noise)
    assert good("--no-check", "--out", "large") == 0
    said = capsys.readouterr().err
    assert "vizoo: warning: l.png: 600x900 pixels take about 90 s on cpu, several" in said
    assert good("--no-check", "--scale", "0.1", "--out", "small") == 0
    assert "about" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is not told elsewhere")
def test_a_process_stays_within_the_memory_that_is_given(tmp_path):
    for view, name in zip(pair_of(torch.full((1600, 2400), 24.0)), ("l.png", "r.png"), strict=True):
        write_image(tmp_path / name, to_bytes(view))
    words = (
        "infer",
        "stereo",
        "l.png",
        "r.png",
        "--memory",
        "1.4",
        "--format",
        "npy",
        "--out",
        "o",
    )
    # What `resource` says began with this process's own memory, of which it is a fork.
    code = "import re, sys; from vizoo.__main__ import main; print(main(sys.argv[1:])); "
    code += "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True
    )
    status, kibibytes = ran.stdout.splitlines()[-2:]
    assert status == "0" and "then at 1 in tiles" in ran.stderr
    assert int(kibibytes) * 1024 <= 1.4e9


def test_large_pairs_take_the_memory_that_is_given(scene, capsys, monkeypatch):
    """In tiles, with about the result of one piece; a line where not even a tile fits."""
    for view, name in zip(pair_of(torch.full((360, 600), 12.0)), ("l.png", "r.png"), strict=True):
        write_image(scene / name, to_bytes(view))
    words = ("--no-check", "--device", "cpu", "--no-guided", "--format", "npy")
    monkeypatch.setattr(infer, "load_network", lambda model, task: BlockMatcher(24))
    monkeypatch.setattr("vizoo.stereo.infer.held_memory", lambda: 0)
    peak = nullcontext(SimpleNamespace(bytes=400 * 256 * 512))
    monkeypatch.setattr(infer, "PeakMemory", lambda device: peak)  # measured, it is by chance
    monkeypatch.setattr(infer.StereoPredictor, "estimate", lambda self, *size: 0.0)
    assert call("l.png", "r.png", *words, "--out", "whole") == 0
    assert call("l.png", "r.png", *words, "--memory", "0.075", "--out", "tiles") == 0
    whole, tiles = (np.load(scene / folder / "l_disparity.npy") for folder in ("whole", "tiles"))
    assert np.median(np.abs(whole - tiles)) < 0.1
    assert (tiles != whole).any()
    capsys.readouterr()
    assert call("l.png", "r.png", *words, "--memory", "0.01", "--out", "out") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("vizoo: error: l.png and r.png: a pair of 360x600 pixels does not fit")


PAIR_FOLDERS = [
    ("im0.png", "im1.png"),
    ("left.jpg", "right.jpg"),
    ("view1.png", "view5.png"),
    ("image_0.png", "image_1.png"),
    ("image_2.ppm", "image_3.ppm"),
]


@pytest.mark.parametrize("names", PAIR_FOLDERS)
def test_folders_of_pair_folders(scene, capsys, names):
    for folder in ("b", "a"):
        (scene / "pairs" / folder).mkdir(parents=True)
        for name, side in zip(names, ("l.png", "r.png"), strict=True):
            cv2.imwrite(f"pairs/{folder}/{name}", cv2.imread(side))
    (scene / "pairs/a/calib.txt").write_text((scene / "calib.txt").read_text())
    (scene / "pairs/c").mkdir()
    half = shutil.copy(scene / "pairs/b" / names[1], f"pairs/c/{names[1]}")
    shutil.copytree(scene / "pairs/b", scene / "pairs/.trash")
    (scene / "pairs/c/im0.heic").touch()
    rest = ("--model", "stand-in", "--format", "npy", "--json")
    assert call("pairs", "--out", "out", *rest) == 0
    said = capsys.readouterr()
    lacking = names[0].rpartition(".")[0]
    assert f"vizoo: warning: {half}: passed over: no image {lacking} is beside it\n" in said.err
    assert "1 image in folders passed over, of kinds that are not read: .heic\n" in said.err
    pairs = json.loads(said.out)["pairs"]
    assert [pair["left"] for pair in pairs] == [f"pairs/{f}/{names[0]}" for f in "ab"]
    found = results(scene / "out")
    assert {"a_disparity.npy", "b_disparity.npy", "a_depth.npy"} <= found
    assert "b_depth.npy" not in found
    assert call("pairs/b", "--out", "one", *rest) == 0
    endings = ("disparity.npy", "disparity_colour.png", "confidence.pfm", "confidence.png")
    assert results(scene / "one") == {f"b_{ending}" for ending in endings}
    said = refused(capsys, "pairs", "pairs", "--out", "o", *rest)
    assert f"'pairs/*/{names[0]}' 'pairs/*/{names[1]}'" in said


@pytest.mark.parametrize("sides", [("image_2", "image_3"), ("left", "right")])
def test_a_folder_of_two_folders(scene, sides):
    for side, name in zip(sides, ("l.png", "r.png"), strict=True):
        (scene / "kitti" / side).mkdir(parents=True)
        for number in range(2):
            (scene / "kitti" / side / f"{number}.png").write_bytes((scene / name).read_bytes())
    assert call("kitti", "--model", "stand-in", "--out", "out", "--format", "npy") == 0
    assert {"0_disparity.npy", "1_disparity.npy"} < results(scene / "out")


def test_a_folder_of_something_else(scene, capsys):
    (scene / "other/x").mkdir(parents=True)
    (scene / "other/x/l.png").write_bytes((scene / "l.png").read_bytes())
    said = refused(capsys, "other", "--out", "out")
    assert "other: no pairs in it" in said and "'other/*/L.png' 'other/*/R.png'" in said


@pytest.mark.parametrize("scale", ["0", "1.5", "nan", "half"])
def test_scales_that_are_none(scene, capsys, scale):
    said = refused(capsys, "l.png", "r.png", "--out", "out", "--scale", scale)
    assert f"--scale: '{scale}' is not above 0 and at most 1" in said


def test_a_format_too_narrow_leaves_nothing_half_written(scene, capsys, monkeypatch):
    monkeypatch.setattr(Constant, "forward", lambda _, left, right: left[:, :1] * 0 + 300)
    assert good("--format", "pfm", "png") == 2
    why, failed = capsys.readouterr().err.splitlines()  # what explains a failure is said before it
    assert why.startswith("vizoo: warning: l: 100% of the pixels are matched beyond the edge")
    assert failed.startswith("vizoo: error: ") and "a 16-bit PNG ends below 256 px" in failed
    assert not (scene / "out").exists()


def test_a_calibration_of_infinite_depth(scene, capsys):
    assert good("--focal", "1e30", "--baseline", "1e30") == 0
    assert "no point cloud written" in capsys.readouterr().err


def test_a_folder_as_model(scene, capsys):
    (scene / "run").mkdir()
    words = ("l.png", "r.png", "--model", "run", "--out", "out")
    assert "run: is a folder; name the weight file in it" in refused(capsys, *words)
