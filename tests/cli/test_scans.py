"""`vizoo scans`."""

from __future__ import annotations

import pytest

from vizoo.__main__ import main
from vizoo.cli import scans as command
from vizoo.datasets.ct import CTPreset, MosMed, read_scan
from vizoo.datasets.ct.writers import LAYOUTS

pytest.importorskip("nibabel")


def test_writes_what_the_reader_reads(tmp_path, capsys):
    words = ["scans", str(tmp_path / "s"), "--layout", "mosmed", "--size", "24x24"]
    assert main([*words, "--slices", "6", "--scans", "2", "1", "1", "--seed", "3"]) == 0
    said, warned = capsys.readouterr()
    assert said.startswith(f"{tmp_path / 's'}: 4 scans of 6 slices of 24x24 pixels; train.json")
    assert warned == ""
    preset = CTPreset((16, 16), 4)
    sizes = [len(MosMed(tmp_path / "s", f"{name}.json", preset)) for name in ("train", "test")]
    assert sizes == [2, 1]
    (lesion, *_) = sorted((tmp_path / "s/lesions").iterdir())
    (scan,) = (tmp_path / "s").glob(f"*/study_{lesion.name.replace('_lesion', '')}")
    assert read_scan(scan).values.shape == (6, 24, 24)
    assert main([*words, "--slices", "6", "--scans", "1", "1", "1", "--seed", "3"]) == 0
    assert "s: scans of other runs are there too: 30003\n" in capsys.readouterr().err


@pytest.mark.parametrize("first", LAYOUTS)
def test_layouts_do_not_mix(tmp_path, capsys, first):
    """CC-CCII's and DICOM's slices would even lie in the same folders."""
    words = ["scans", str(tmp_path), "--size", "8x8", "--slices", "2", "--scans", "1", "1", "1"]
    for _ in range(2):
        assert main([*words, "--layout", first]) == 0
    before = sorted(tmp_path.rglob("*"))
    for second in LAYOUTS.keys() - {first}:
        assert main([*words, "--layout", second]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"vizoo: error: {tmp_path}: scans in the layout {first} are there")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_choices_are_the_writers():
    assert set(command._LAYOUTS) == set(LAYOUTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "16"], "--size 16: give height and width"),
        (["--slices", "1"], "--slices 1: must be at least 2"),
        (["--scans", "2", "0", "1"], "three numbers"),
        (["--layout", "lidc"], "invalid choice: 'lidc'"),
    ],
)
def test_refused(tmp_path, capsys, words, said):
    assert main(["scans", str(tmp_path / "s"), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["scans", "world"])
def test_a_file_is_no_folder(tmp_path, capsys, command):
    (tmp_path / "s").touch()
    assert main([command, str(tmp_path / "s")]) == 2
    assert f"error: OUT {tmp_path / 's'}: " in capsys.readouterr().err
