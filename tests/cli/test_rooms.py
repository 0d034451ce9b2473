"""`vizoo rooms`."""

from __future__ import annotations

import pytest

from vizoo.__main__ import main
from vizoo.cli import rooms as command
from vizoo.datasets.panorama import Matterport3D
from vizoo.datasets.panorama.writers import LAYOUTS


def test_writes_what_the_reader_reads(tmp_path, capsys):
    words = ["rooms", str(tmp_path / "r"), "--layout", "matterport3d", "--size", "16x32"]
    assert main([*words, "--rooms", "2", "1", "1", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert said == f"{tmp_path / 'r'}: 4 rooms of 16x32 pixels; train.txt, val.txt, test.txt\n"
    sizes = [len(Matterport3D(tmp_path / "r", f"{n}.txt", size=None)) for n in ("train", "test")]
    assert sizes == [2, 1]


def test_the_choices_are_the_writers():
    assert set(command._LAYOUTS) == set(LAYOUTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "16x16"], "a panorama is twice as wide as high"),
        (["--size", "16"], "--size 16: give height and width"),
        (["--rooms", "2", "0", "1"], "three numbers"),
        (["--layout", "kitti"], "invalid choice"),
    ],
)
def test_one_line_errors(tmp_path, capsys, words, said):
    assert main(["rooms", str(tmp_path / "r"), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vizoo: error: ") and said in error and error.count("\n") == 1
    assert not (tmp_path / "r").exists()
