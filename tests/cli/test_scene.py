"""`vizoo scene`."""

from __future__ import annotations

import pytest

from vizoo.__main__ import main
from vizoo.cli import scene as command
from vizoo.datasets.mvs import open_scene
from vizoo.datasets.mvs.writers import WRITERS
from vizoo.vision.io.ply import read_ply


@pytest.mark.parametrize("layout", sorted(set(WRITERS) - {"dtu_training"}))
def test_every_layout(tmp_path, capsys, layout):
    words = ["scene", str(tmp_path / "s"), "--layout", layout, "--views", "3", "--size", "24x32"]
    assert main([*words, "--truth", str(tmp_path / "truth.ply")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{tmp_path / 's'}: 3 views of 32x24 pixels, depth 425 to 935"
    assert said[1] == f"{tmp_path / 'truth.ply'}: {3 * 24 * 32} true points"
    assert len(open_scene(tmp_path / "s")) == 3
    assert len(read_ply(tmp_path / "truth.ply")[0]) == 3 * 24 * 32


def test_the_choices_are_the_writers():
    assert set(command._LAYOUTS) == set(WRITERS)


def test_options(tmp_path):
    words = ["scene", str(tmp_path), "--size", "24x32", "--wide", "--untextured", "--lossless"]
    assert main(words) == 0
    scene = open_scene(tmp_path)
    assert len(scene) == 5 and scene.views[0].image.endswith(".png")
    assert scene.views[0].depth_range[1] > 4000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--views", "1"], "views 1: want at least 2"),
        (["--size", "24"], "--size 24: give height and width"),
        (["--layout", "dtu_training", "--size", "24x32"], "holds 512x640 alone"),
        (["--mesh", "gone.ply"], "gone.ply: no such mesh"),
        (["--mesh", "gone.ply", "--wide"], "--mesh goes with neither"),
    ],
)
def test_one_line_errors(tmp_path, capsys, words, said):
    assert main(["scene", str(tmp_path / "s"), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vizoo: error: ") and said in error and error.count("\n") == 1
    assert not (tmp_path / "s").exists()
