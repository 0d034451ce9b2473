"""`vizoo rooms`."""

from __future__ import annotations

import pytest

from vizoo.__main__ import main
from vizoo.cli import rooms as command
from vizoo.datasets.panorama import Matterport3D
from vizoo.datasets.panorama.writers import LAYOUTS
from vizoo.datasets.worlds.panorama import WorldPanoramas


def test_writes_what_the_reader_reads(tmp_path, capsys):
    words = ["rooms", str(tmp_path / "r"), "--layout", "matterport3d", "--size", "16x32"]
    assert main([*words, "--rooms", "2", "1", "1", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert said == f"{tmp_path / 'r'}: 4 rooms of 16x32 pixels; train.txt, val.txt, test.txt\n"
    made = iter(WorldPanoramas(4, 16, seed=3))
    for name, count in (("train", 2), ("val", 1), ("test", 1)):
        found = Matterport3D(tmp_path / "r", f"{name}.txt", size=None)
        assert len(found) == count
        for sample in found:  # each room is in one list alone
            assert (sample["depth"] - next(made)["depth"]).abs().max() < 1e-3


def test_the_choices_are_the_writers():
    assert set(command._LAYOUTS) == set(LAYOUTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "16x16"], "a panorama is twice as wide as high"),
        (["--size", "16"], "--size 16: give height and width"),
        (["--rooms", "2", "0", "1"], "--rooms 2 0 1: want 1 or more"),
        (["--layout", "kitti"], "invalid choice"),
    ],
)
def test_one_line_errors(tmp_path, capsys, words, said):
    assert main(["rooms", str(tmp_path / "r"), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vizoo: error: ") and said in error and error.count("\n") == 1
    assert not (tmp_path / "r").exists()
