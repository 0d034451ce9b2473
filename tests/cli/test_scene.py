"""`vizoo scene`."""

from __future__ import annotations

import pytest
import torch

from vizoo.__main__ import main
from vizoo.cli import scene as command
from vizoo.datasets.mvs import open_scene
from vizoo.datasets.mvs.writers import WRITERS
from vizoo.datasets.worlds.views import WorldViews
from vizoo.vision.io.ply import read_ply


@pytest.mark.parametrize("layout", sorted(set(WRITERS) - {"dtu_training"}))
def test_every_layout(tmp_path, capsys, layout):
    words = ["scene", str(tmp_path / "s"), "--layout", layout, "--views", "3", "--size", "24x32"]
    assert main([*words, "--truth", str(tmp_path / "truth.ply")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{tmp_path / 's'}: 3 views of 24x32 pixels, depth ")
    assert said[1] == f"{tmp_path / 'truth.ply'}: {3 * 24 * 32} true points"
    assert len(open_scene(tmp_path / "s")) == 3
    assert len(read_ply(tmp_path / "truth.ply")[0]) == 3 * 24 * 32


def test_the_choices_are_the_writers():
    assert set(command._LAYOUTS) == set(WRITERS)


def test_it_is_a_room_of_the_worlds(tmp_path):
    words = ["scene", str(tmp_path), "--size", "24x32", "--seed", "3", "--lossless"]
    assert main(words) == 0
    scene = open_scene(tmp_path)
    assert len(scene) == 5 and scene.views[0].image.endswith(".png")
    made = WorldViews(1, 24, 32, seed=3, layouts=["room"]).scene(0)
    torch.testing.assert_close(scene.image(4), made.image(4), rtol=0, atol=1e-6)


def test_scans_of_dtu_are_counted_by_the_seed(tmp_path):
    words = ["scene", str(tmp_path), "--layout", "dtu_training", "--views", "2", "--seed", "4"]
    assert main(words) == 0
    assert open_scene(tmp_path / "Rectified" / "scan4_train").has_truth


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--views", "1"], "world: views 1 (want 2 or more)\n"),
        (["--size", "24"], "--size 24: give height and width"),
        (["--layout", "dtu_training", "--size", "24x32"], "holds 512x640 alone"),
        (["--truth", "truth.txt"], "--truth truth.txt: true points are written as .ply"),
        (["--truth", ""], "--truth .: true points are written as .ply"),
    ],
)
def test_one_line_errors(tmp_path, capsys, words, said):
    assert main(["scene", str(tmp_path / "s"), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vizoo: error: ") and said in error and error.count("\n") == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", ["scene", "rooms"])
def test_a_folder_without_a_name_is_refused(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    assert main([command, ""]) == 2
    assert capsys.readouterr().err.startswith("vizoo: error: OUT is empty; name a folder")
    assert not list(tmp_path.iterdir())
