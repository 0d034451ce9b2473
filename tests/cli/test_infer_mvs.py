"""`vizoo infer mvs` and `vizoo evaluate mvs`: what they say, and one line for what is wrong."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from vizoo.__main__ import main
from vizoo.datasets import mvs
from vizoo.datasets.mvs.scene import truth_points
from vizoo.datasets.mvs.writers import write_scene
from vizoo.mvs import infer
from vizoo.vision.io.ply import read_ply, write_ply


@pytest.fixture(autouse=True)
def stand_in(monkeypatch, oracle, scene, tmp_path):
    """`--model stand-in` knows the depth of the scene in the folder `scene`."""
    monkeypatch.chdir(tmp_path)
    original = infer.load_network
    monkeypatch.setattr(
        infer, "load_network", lambda m, task: oracle if m == "stand-in" else original(m, task)
    )
    opened = mvs.open_scene

    def open_scene(path, *how, **options):
        return scene if path == "scene" else opened(path, *how, **options)

    monkeypatch.setattr(mvs, "open_scene", open_scene)


def call(*words):
    return main([*words])


def good(*words):
    words = ("infer", "mvs", "scene", "--model", "stand-in", "--out", "out", *words)
    assert call(*words, "--device", "cpu") == 0


def refused(capsys, *words):
    assert call(*words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("vizoo: error: "), lines
    return lines[0]


def test_a_scene(tmp_path, capsys):
    good()
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "world-17-000000: 4 views of 48x64"
    assert re.match(r"  depth \S+ to \S+, confidence 0\.\d\d, \S+ s a view: out/depth", out[1])
    assert "agreed on by 2 other views within 1 px and 1 %: out/cloud.ply" in out[2]
    assert (tmp_path / "out/cloud.png").is_file() and out[3] == "  picture: out/cloud.png"
    good()
    assert "4 views of 48x64 (4 of an earlier run)" in capsys.readouterr().out


def test_a_plane_sweep_beside_the_network_and_alone(tmp_path, capsys):
    good("--classical")
    out = capsys.readouterr().out.splitlines()
    place = out.index("By a plane sweep:")
    assert out[place + 1].endswith("s a view: out/classical/depth")
    assert re.fullmatch(r"  within 5 % of the network's in \d+% of the pixels", out[-2])
    assert call("infer", "mvs", "scene", "--classical", "--out", "alone", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["model"] == "PlaneSweep" and "classical" not in summary
    assert (tmp_path / "alone/cloud.ply").is_file() and not (tmp_path / "alone/classical").exists()


def test_guided_beside_the_plane_sweep(tmp_path, capsys):
    words = ("infer", "mvs", "scene", "--classical", "--guided", "--out", "out", "--json")
    assert call(*words, "--device", "cpu") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["model"] == "dispmvs_tiny" and summary["guided"]
    assert summary["classical"]["model"] == "PlaneSweep"
    # Nothing in it is random, so that another seed makes no other views.
    assert call(*words, "--device", "cpu", "--seed", "1") == 0
    summary = json.loads(capsys.readouterr().out)
    assert all(view["resumed"] for view in summary["views"])


def test_a_single_reference(scene, tmp_path, capsys):
    """Depth is all that can be made of one view with sources: that is no error."""
    path = write_scene(scene, tmp_path / "disk", "dtu", lossless=True)
    (pairs,) = path.rglob("pair.txt")
    pairs.write_text("4\n0\n3 1 9.0 2 8.0 3 7.0\n1\n0\n2\n0\n3\n0\n")
    assert call("infer", "mvs", str(path), "--model", "stand-in", "--out", "out") == 0
    said = capsys.readouterr()
    assert "nothing to fuse it with" in said.err and "points" not in said.out
    assert (tmp_path / "out/depth/00000000.pfm").is_file()


@pytest.mark.parametrize("layout", ["dtu", "colmap"])
def test_a_scene_on_disk(scene, tmp_path, capsys, layout):
    """As written by another command: COLMAP's workspace tells no range, so one is assumed."""
    path = write_scene(scene, tmp_path / "disk", layout, lossless=True)
    words = ("--model", "stand-in", "--out", "out", "--device", "cpu", "--json")
    assert call("infer", "mvs", str(path), *words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["layout"] == layout and summary["points"] > 0.4 * 4 * 48 * 64
    assumed = [note for note in summary["warnings"] if "no depth range is given" in note]
    assert len(assumed) == (layout == "colmap")


@pytest.mark.parametrize(("layout", "left"), [("dtu", 0), ("folder", 64)])
def test_a_damaged_photograph_is_passed_over(scene, tmp_path, capsys, layout, left):
    """It says so in a line, and the others are reconstructed without it."""
    path = write_scene(scene, tmp_path / "disk", layout, lossless=True)
    if layout == "folder":  # where pairs are scored by what the photographs are of
        cameras = json.loads((path / "cameras.json").read_text())
        for view in cameras["views"]:
            del view["sources"]
        (path / "cameras.json").write_text(json.dumps(cameras))
    photographs = sorted((path / "images").iterdir())
    photographs[1].write_bytes(photographs[1].read_bytes()[:left])
    words = ("infer", "mvs", str(path), "--model", "stand-in", "--out", "out", "--device", "cpu")
    assert call(*words, "--classical") == 1
    said = capsys.readouterr()
    first, last = said.err.splitlines()
    assert first.startswith(f"vizoo: warning: {photographs[1]}: ") and "left out" in first
    assert last == "vizoo: error: 1 of 4 views failed" and ": 3 views of 48x64" in said.out
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    *views, failed = summary["views"]
    assert failed.keys() == {"name", "error"} and failed["name"] == "00000001"
    assert [view["name"] for view in views] == ["00000000", "00000002", "00000003"]
    assert not any("00000001" in view["sources"] for view in views)
    assert summary["classical"]["agreed"].keys() == {view["name"] for view in views}
    assert summary["points"] > 1000
    for file in photographs[2:]:
        file.write_bytes(b"")
    said = refused(capsys, *words)
    assert f"{photographs[1]}: " in said and "(3 of 4 photographs cannot be read)" in said


def test_json_and_settings(capsys):
    good("--json", "--views", "3", "--size", "24x32", "--range", "1", "6", "--agree", "1")
    summary = json.loads(capsys.readouterr().out)
    assert summary["size"] == [24, 32] and summary["warnings"] == []
    assert all(view["depth_range"] == [1, 6] for view in summary["views"])
    assert all(len(view["sources"]) == 2 for view in summary["views"])
    assert summary["fusion"]["views"] == 1 and summary["fusion"]["pixels"] == 1


def test_published_thresholds(capsys):
    good("--json", "--thresholds", "dtu/scan9")
    fusion = json.loads(capsys.readouterr().out)["fusion"]
    assert (fusion["views"], fusion["pixels"], fusion["relative"]) == (3, 0.25, 0.01)


def test_single_thresholds_replace_those_of_the_scene(scene, tmp_path, capsys):
    path = str(write_scene(scene, tmp_path / "scan9", "dtu", lossless=True))
    words = ("infer", "mvs", path, "--model", "stand-in", "--out", "out", "--json")
    for more, wanted in (
        ((), (3, 0.25, 0.01)),
        (("--agree", "2"), (2, 0.25, 0.01)),
        (("--pixels", "0.75", "--relative", "0.02"), (3, 0.75, 0.02)),
        (("--thresholds", "default", "--agree", "1"), (1, 1, 0.01)),
    ):
        assert call(*words, *more, "--device", "cpu") == 0
        fusion = json.loads(capsys.readouterr().out)["fusion"]
        assert (fusion["views"], fusion["pixels"], fusion["relative"]) == wanted


def test_the_scene_is_left_as_it_is(scene, tmp_path, capsys, monkeypatch):
    """Results have names that the true depth of a folder has."""
    path = write_scene(scene, tmp_path / "disk", "folder", lossless=True)
    before = (path / "depth/00000000.pfm").read_bytes()
    words = ("--model", "stand-in", "--device", "cpu", "--out")
    for named in ("disk", "disk/cameras.json", "disk/../disk"):
        said = refused(capsys, "infer", "mvs", named, *words, "disk")
        assert "--out disk is where" in said and "name another folder" in said
    monkeypatch.chdir(path)
    assert "--out . is where disk lies" in refused(capsys, "infer", "mvs", ".", *words, ".")
    assert (path / "depth/00000000.pfm").read_bytes() == before
    assert call("infer", "mvs", ".", *words, "result") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "stand-in", "--out", "file"), "--out file: .*file is a file"),
        (("--model", "x.safetensors", "--out", "out"), "x.safetensors"),
        (("--model", "stand-in", "--out", "out", "--size", "12"), "--size 12: give height and"),
        (("--model", "stand-in", "--out", "out", "--views", "1"), "--views 1: must be at least 2"),
        (("--model", "stand-in", "--out", "out", "--range", "5", "2"), "depth range 5 to 2"),
        (("--model", "stand-in", "--out", "out", "--voxel", "0"), "--voxel: '0' is not above 0"),
        (("--model", "stand-in", "--out", "out", "--agree", "0"), "views must be positive, got 0"),
        (("--model", "stand-in", "--out", "out", "--agree", "9"), "9 other views must agree"),
        (("--model", "stand-in", "--out", "out", "--thresholds", "dtu/scan3"), "did you mean"),
        (("--model", "stand-in", "--out", "out", "--range", "0.1", "0.2"), "no point is left"),
        (("--model", "stand-in", "--out", "out", "--sise", "1"), "did you mean --size"),
    ],
)
def test_refused(tmp_path, capsys, words, message):
    (tmp_path / "file").touch()
    assert re.search(message, refused(capsys, "infer", "mvs", "scene", "--device", "cpu", *words))


def test_no_scene(capsys):
    words = ("infer", "mvs", "nowhere", "--model", "stand-in", "--out", "out")
    assert "nowhere: no such scene" in refused(capsys, *words)


@pytest.fixture
def clouds(tmp_path):
    """Two clouds, one of them shifted by a tenth along x, and the matrix that undoes it."""
    points = np.stack(np.meshgrid(*[np.arange(8.0)] * 3), -1).reshape(-1, 3)
    for name, shift in (("truth", 0), ("cloud", 0.1)):
        with write_ply(tmp_path / f"{name}.ply") as ply:
            ply.write(points + [shift, 0, 0], np.zeros(points.shape, np.uint8))
    matrix = np.eye(4)
    matrix[0, 3] = -0.1
    np.savetxt(tmp_path / "back.txt", matrix)


def test_f_score(clouds, capsys):
    words = ("evaluate", "mvs", "cloud.ply", "truth.ply", "--json")
    for more, wanted in (
        (("--distance", "0.2"), 1),
        (("--distance", "0.05"), 0),
        (("--distance", "0.05", "--align", "back.txt"), 1),
        (("--tanks", "Barn", "--align", "back.txt"), 1),
    ):
        if "--tanks" in more:
            pytest.importorskip("open3d", exc_type=ImportError)
        assert call(*words, *more) == 0
        assert json.loads(capsys.readouterr().out)["f_score"] == wanted
    assert call(*words[:-1], "--distance", "0.2") == 0
    assert "f_score       1.0000" in capsys.readouterr().out


def test_clouds_of_a_scene_that_was_moved_to_the_origin(
    clouds, tmp_path, capsys, monkeypatch, recwarn, scene
):
    """As in metres of a map; a survey has doubles there, a scene its own offset."""
    offset = [3e6, -5e6, 4e5]
    survey = read_ply("truth.ply")[0].astype(float) + offset
    lines = ["ply", "format ascii 1.0", f"element vertex {len(survey)}"]
    lines += [*(f"property double {name}" for name in "xyz"), "end_header"]
    rows = (" ".join(map(repr, row)) for row in survey.tolist())
    (tmp_path / "survey.ply").write_text("\n".join([*lines, *rows]) + "\n")
    (tmp_path / "truth").mkdir()
    with write_ply("seen/cloud.ply") as ply:
        ply.write(*(array.numpy() for array in truth_points(scene)))
    there = replace(scene, offset=tuple(offset))
    monkeypatch.setattr(mvs, "open_scene", lambda path: there)
    for folder in (tmp_path, tmp_path / "seen"):
        facts = json.dumps({"cloud": "elsewhere/cloud.ply", "offset": offset})
        (folder / "summary.json").write_text(facts)
    matrix = np.eye(4)
    matrix[:3, 3] = np.array(offset) - [0.1, 0, 0]
    np.savetxt("there.txt", matrix)
    for words, wanted in (
        (("cloud.ply", "survey.ply", "--distance", "0.2"), 1),
        (("cloud.ply", "survey.ply", "--distance", "0.05"), 0),
        (("cloud.ply", "survey.ply", "--distance", "0.05", "--align", "there.txt"), 1),
        (("survey.ply", "cloud.ply", "--distance", "0.2"), 1),
        (("seen/cloud.ply", "truth", "--distance", "0.001"), 1),
    ):
        assert call("evaluate", "mvs", *words, "--json") == 0
        assert json.loads(capsys.readouterr().out)["f_score"] == wanted
        said = [str(one.message) for one in recwarn.list]
        recwarn.clear()
        moved = "cloud.ply: moved by (3000000, -5000000, 400000), the `offset` in"
        assert len(said) == ("--align" not in words) and all(moved in one for one in said)
    (tmp_path / "summary.json").write_text('{"cloud": "cloud.ply", "offset": [1, 2]}')
    words = ("evaluate", "mvs", "cloud.ply", "survey.ply", "--distance", "1")
    assert "summary.json: its offset is [1, 2], not three" in refused(capsys, *words)


def test_crop(clouds, tmp_path, capsys):
    pytest.importorskip("open3d", exc_type=ImportError)
    polygon = [[-1, -1, 0], [4.5, -1, 0], [4.5, 9, 0], [-1, 9, 0]]
    crop = {"class_name": "SelectionPolygonVolume", "version_major": 1, "version_minor": 0}
    crop |= {"axis_max": 9.0, "axis_min": -1.0, "bounding_polygon": polygon}
    crop["orthogonal_axis"] = "Z"
    (tmp_path / "crop.json").write_text(json.dumps(crop))
    words = ("evaluate", "mvs", "cloud.ply", "truth.ply", "--distance", "0.2", "--crop")
    assert call(*words, "crop.json", "--json") == 0
    score = json.loads(capsys.readouterr().out)
    assert score["truth_points"] == score["points"] == 5 * 64
    (tmp_path / "bad.json").write_text("{}")
    assert "bad.json: not a polygon" in refused(capsys, *words, "bad.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --scan N"),
        (("--distance", "1", "--scan", "1"), "give --scan N"),
        (("--scan", "1", "--align", "back.txt"), "--align is of the F-score: leave it out"),
        (("--scan", "1", "--crop", "crop.json"), "--crop is of the F-score: leave it out"),
        (("--scan", "1", "--voxel", "0.2"), "--voxel is of the F-score: leave it out"),
        (("--distance", "1", "--seed", "0"), "--seed is of DTU's scores: leave it out"),
        (("--distance", "0"), "the distance must be positive"),
        (("--tanks", "family"), "the truth of barn"),
        (("--distance", "1", "--align", "none.txt"), "none.txt: no such file"),
        (("--distance", "1", "--align", "cloud.ply"), "cloud.ply: not a matrix"),
        (("--scan", "1"), "ObsMask1_10.mat: no such file"),
    ],
)
def test_refused_scores(clouds, capsys, words, message):
    assert message in refused(capsys, "evaluate", "mvs", "cloud.ply", "truth.ply", *words)


def test_the_written_cloud_scores(scene, tmp_path, capsys):
    """The cloud of exact depth maps against the true points: all of it right."""
    good()
    with write_ply("truth.ply") as ply:
        ply.write(*(array.numpy() for array in truth_points(scene)))
    write_scene(scene, tmp_path / "disk", "blendedmvs", lossless=True)
    capsys.readouterr()
    scores = []
    write_scene(scene, tmp_path / "own", "folder", lossless=True)
    for truth in ("truth.ply", "disk", "own/cameras.json"):
        words = ("evaluate", "mvs", "out/cloud.ply", truth, "--distance", "0.02", "--json")
        assert call(*words) == 0
        scores.append(json.loads(capsys.readouterr().out))
    score = scores[0]
    for other in scores[1:]:
        assert other["f_score"] == pytest.approx(score["f_score"], abs=1e-3)
    assert score["precision"] > 0.99 and score["recall"] > 0.75
    assert len(read_ply("out/cloud.ply")[0]) == score["points"]
