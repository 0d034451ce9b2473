"""Camera and pair files: both range forms, round trips, damage of any kind."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vizoo.datasets.mvs.camera_files import (
    parse_range,
    read_camera_file,
    read_pair_file,
    write_camera_file,
    write_pair_file,
)

CAMERA = """extrinsic
0.970263 0.00747983 0.241939 -191.02
-0.0147429 0.999493 0.0282234 3.28832
-0.241605 -0.030951 0.969881 22.5401
0.0 0.0 0.0 1.0

intrinsic
361.54125 0.0 82.900625
0.0 360.3975 66.383875
0.0 0.0 1.0

425.0 2.5
"""
PAIRS = "3\n0\n2 1 10.5 2 3.25\n1\n1 0 10.5\n2\n0\n"


def read_camera(tmp_path, text, form="auto"):
    path = tmp_path / "00000000_cam.txt"
    path.write_text(text)
    return read_camera_file(path, form)


def read_pairs(tmp_path, text):
    path = tmp_path / "pair.txt"
    path.write_text(text)
    return read_pair_file(path)


@pytest.mark.parametrize(
    ("line", "form", "expected"),
    [
        ("425 935", "auto", (425, 935)),
        ("425 2.5", "auto", (425, 425 + 2.5 * 191)),
        ("425 2.5 192", "auto", (425, 902.5)),
        ("425 2.5 256 1062.5", "auto", (425, 1062.5)),
        ("0.5 2.5", "auto", (0.5, 2.5)),
        ("0.5 2.5", "interval", (0.5, 0.5 + 2.5 * 191)),
        ("425 935 1 1", "max", (425, 935)),
        ("425 2.5", "max", (425, 2.5)),  # refused by whoever uses it
    ],
)
def test_both_forms_of_the_range(line, form, expected):
    assert parse_range([float(word) for word in line.split()], form) == expected


@pytest.mark.parametrize("numbers", [[1.0], [1.0] * 5])
def test_a_range_of_another_length(numbers):
    with pytest.raises(ValueError, match=f"has {len(numbers)} numbers"):
        parse_range(numbers)


def test_an_unknown_form():
    with pytest.raises(ValueError, match="range form 'mm' is none of auto, max, interval"):
        parse_range([1, 2], "mm")


def test_published_file(tmp_path):
    camera = read_camera(tmp_path, CAMERA)
    assert camera.extrinsics[0, 3] == pytest.approx(-191.02)
    assert camera.intrinsics[1, 2] == pytest.approx(66.383875)
    assert camera.depth_range == (425.0, 902.5)
    assert read_camera(tmp_path, CAMERA.rsplit("\n", 2)[0]).depth_range is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("extrinsic", "matrix", r"'extrinsic' expected, but line 1 has 'matrix'"),
        ("\nintrinsic", "\n", r"'intrinsic' expected, but line 8 has '361.54125'"),
        ("3.28832", "three", "line 3: 'three' is not a number"),
        ("3.28832", "nan", "line 3: 'nan' is not a number"),
        ("3.28832", "1e999", "line 3: '1e999' is not a number"),
        ("425.0 2.5", "425.0", "the depth range has 1 numbers"),
        ("0.0 0.0 1.0\n\n425.0 2.5\n", "", "intrinsic matrix has 6 of 9 numbers"),
    ],
)
def test_damage_is_named(tmp_path, old, new, said):
    with pytest.raises(ValueError, match=said) as caught:
        read_camera(tmp_path, CAMERA.replace(old, new, 1))
    assert "00000000_cam.txt" in str(caught.value)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone.txt: no such camera file"):
        read_camera_file(tmp_path / "gone.txt")
    with pytest.raises(ValueError, match="the pair file is empty"):
        read_pairs(tmp_path, "\n")
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not text at byte 0"):
        read_camera_file(tmp_path / "x")


@pytest.mark.parametrize("form", ["max", "interval"])
def test_written_cameras_come_back_to_the_bit(tmp_path, form):
    torch.manual_seed(3)
    intrinsics, extrinsics = torch.randn(3, 3) * 1000, torch.randn(4, 4) * 300
    path = tmp_path / "cam.txt"
    write_camera_file(path, intrinsics, extrinsics, (1.5, 7.25), form)
    camera = read_camera_file(path)
    assert torch.equal(camera.intrinsics, intrinsics)
    assert torch.equal(camera.extrinsics.float(), extrinsics)
    assert camera.extrinsics.dtype == torch.float64  # as positions on a map need
    assert camera.depth_range == (1.5, 7.25)
    assert len(path.read_text().splitlines()) == 12


def test_pairs(tmp_path):
    assert read_pairs(tmp_path, PAIRS) == {0: [(1, 10.5), (2, 3.25)], 1: [(0, 10.5)], 2: []}
    # The last list may be an empty line, and a list shorter than it says.
    assert read_pairs(tmp_path, "2\n0\n10 1 0.5\n1\n\n") == {0: [(1, 0.5)], 1: []}
    pairs = {5: [(7, 2.0)], 7: []}
    write_pair_file(tmp_path / "p.txt", pairs)
    assert read_pair_file(tmp_path / "p.txt") == pairs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("three\n", "line 1: the number of views expected, found 'three'"),
        ("2\n0\n1 1 0.5\n", "1 of 2 views; the file is cut short"),
        ("2\n0\n1 1 0.5\n0\n0\n", "line 4: view 0 is there twice"),
        ("1\n0\n2 1 0.5 2\n", "line 3: 2 sources stated, but 3 numbers follow"),
        ("1\n0\n2 1 0.5 1 0.4\n", "line 3: a source is listed twice"),
        ("1\n0\n1 -1 0.5\n", "line 3: a source expected, found '-1'"),
        ("1\n0\n0\n1\n0\n", "line 4: more views than the 1 of line 1"),
    ],
)
def test_damaged_pairs(tmp_path, text, said):
    with pytest.raises(ValueError, match=said) as caught:
        read_pairs(tmp_path, text)
    assert "pair.txt" in str(caught.value)


@given(data=st.data(), kind=st.sampled_from(["camera", "pairs"]))
def test_any_damage_is_one_clear_line(tmp_path_factory, data, kind):
    whole = CAMERA if kind == "camera" else PAIRS
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    text = whole[:start] + data.draw(st.text(max_size=20)) + whole[end:]
    path = tmp_path_factory.mktemp("damage") / "file.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        (read_camera_file if kind == "camera" else read_pair_file)(path)
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)
