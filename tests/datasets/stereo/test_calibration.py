"""Calibration files: Middlebury, ETH3D, KITTI, and impossible cameras."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vizoo.datasets.stereo.calibration import StereoCalibration, read_calibration, write_calibration

MIDDLEBURY = """cam0=[3997.684 0 1176.728; 0 3997.684 1011.728; 0 0 1]
cam1=[3997.684 0 1307.839; 0 3997.684 1011.728; 0 0 1]
doffs=131.111
baseline=193.001
width=2964
height=1988
ndisp=280
isint=0
vmin=31
vmax=257
"""
KITTI = """calib_time: 09-Jan-2012 13:57:47
S_rect_02: 1.242000e+03 3.750000e+02
P_rect_02: 7.215e+02 0 6.095e+02 4.485e+01 0 7.215e+02 1.728e+02 2.163e-01 0 0 1 2.745e-03
P_rect_03: 7.215e+02 0 6.095e+02 -3.395e+02 0 7.215e+02 1.728e+02 2.199e+00 0 0 1 2.729e-03
"""


def read(tmp_path, text: str, **options) -> StereoCalibration:
    path = tmp_path / "calib.txt"
    path.write_text(text)
    return read_calibration(path, **options)


def test_middlebury(tmp_path):
    found = read(tmp_path, MIDDLEBURY)
    assert (found.focal, found.focal_y, found.cx, found.cy) == (3997.684,) * 2 + (
        1176.728,
        1011.728,
    )
    assert found.baseline == 0.193001 and found.doffs == 131.111
    assert (found.width, found.height, found.ndisp) == (2964, 1988, 280)
    assert read(tmp_path, MIDDLEBURY, baseline_unit="m").baseline == 193.001
    assert read(tmp_path, MIDDLEBURY.replace("ndisp=280", "ndisp=2964")).ndisp is None


def test_doffs_follows_from_the_cameras(tmp_path):
    found = read(tmp_path, MIDDLEBURY.replace("doffs=131.111\n", ""))
    assert found.doffs == pytest.approx(131.111)
    assert read(tmp_path, "cam0=[9 0 4; 0 9 3; 0 0 1]\nbaseline=10").doffs == 0


def test_kitti(tmp_path):
    found = read(tmp_path, KITTI)
    assert found.baseline == pytest.approx(0.5327, abs=1e-3) and found.doffs == 0
    assert (found.focal, found.cx, found.cy) == (721.5, 609.5, 172.8)
    assert (found.width, found.height) == (1242, 375)
    assert read(tmp_path, KITTI.replace("P_rect_0", "P")).width is None
    assert read(tmp_path, KITTI, grey=True) == found  # where there is but one pair


def test_written_and_read_again(tmp_path):
    found = read(tmp_path, MIDDLEBURY)
    own = {name: value and np.float64(value) for name, value in vars(found).items()}
    sizes = {name: np.int64(own[name]) for name in ("width", "height", "ndisp")}
    for same in (found, replace(found, **(own | sizes))):
        write_calibration(tmp_path / "b.txt", same)
        assert read_calibration(tmp_path / "b.txt") == found
    with pytest.raises(ValueError, match="needs cx, cy"):
        write_calibration(tmp_path / "c.txt", StereoCalibration(500, 0.1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("baseline=193.001", "baseline=0", "baseline must be positive"),
        ("baseline=193.001", "baseline=-1", "baseline must be positive"),
        ("baseline=193.001", "baseline=nan", "baseline is not finite"),
        ("baseline=193.001", "baseline=far", "baseline is not a number: 'far'"),
        ("baseline=193.001", "", "no baseline="),
        ("cam0=[3997.684 0", "cam0=[0 0", "cam0 is singular"),
        ("cam0=[3997.684 0", "cam0=[-5 0", "cam0 is singular"),
        ("cam0=[3997.684 0", "cam0=[3997.684", "cam0 is not a matrix"),
        ("; 0 0 1]\ncam1", "; 0 0 0]\ncam1", "cam0 is singular"),
        ("width=2964", "width=0", "width must be positive"),
        ("width=2964", "width=29.5", "width is not a whole number"),
        ("doffs=131.111", "doffs=inf", "doffs is not finite"),
    ],
)
def test_impossible_cameras(tmp_path, old, new, message):
    assert old in MIDDLEBURY
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, MIDDLEBURY.replace(old, new, 1))
    assert "calib.txt" in str(caught.value)


def test_kitti_impossible(tmp_path):
    with pytest.raises(ValueError, match="baseline must be positive"):
        read(tmp_path, KITTI.replace("-3.395e+02", "3.395e+02"))
    with pytest.raises(ValueError, match="P_rect_03 has 11 numbers"):
        read(tmp_path, KITTI.replace(" 2.729e-03", ""))


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such calibration file"):
        read_calibration(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="not a calibration file"):
        read(tmp_path, "721.5 0 609.5")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ValueError, match="not text at byte 0"):
        read_calibration(tmp_path / "a.png")
    with pytest.raises(ValueError, match="too long"):
        read(tmp_path, "x" * 70000)
    with pytest.raises(ValueError, match="'inch' is none of"):
        read_calibration(tmp_path / "a.png", "inch")


def test_resized(tmp_path):
    half = read(tmp_path, MIDDLEBURY).resized(994, 1482)
    assert (half.focal, half.focal_y, half.doffs) == (3997.684 / 2, 3997.684 / 2, 131.111 / 2)
    assert half.cx == (1176.728 + 0.5) / 2 - 0.5 and half.baseline == 0.193001
    with pytest.raises(ValueError, match=r"1988x2964 \(height x width\), these have 480x640"):
        read(tmp_path, MIDDLEBURY).resized(480, 640)
    with pytest.raises(ValueError, match="not known"):
        StereoCalibration(500, 0.1).resized(480, 640)


PIECE = st.sampled_from(
    [*MIDDLEBURY.split("\n"), *KITTI.split("\n"), "cam0=[", "[;;]", "P2: 1", "=", ":"]
)


@given(text=st.one_of(st.text(max_size=60), st.lists(PIECE, max_size=8).map("\n".join)))
def test_any_text_is_read_or_a_value_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.txt"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        assert read_calibration(path).baseline > 0
    except ValueError as error:
        assert str(path) in str(error)


@given(at=st.integers(0, len(MIDDLEBURY) - 1), byte=st.binary(min_size=1, max_size=2))
def test_damaged_file_is_read_or_a_value_error(tmp_path_factory, at, byte):
    path = tmp_path_factory.getbasetemp() / "fuzz.txt"
    data = MIDDLEBURY.encode()
    path.write_bytes(data[:at] + byte + data[at + 1 :])
    try:
        assert read_calibration(path).baseline > 0
    except ValueError as error:
        assert str(path) in str(error)


def test_eth3d_baseline_is_in_millimetres(shared):
    found = read_calibration(shared / "data/stereo_real/playground/calib.txt")
    assert found.baseline == pytest.approx(0.0595549)
    assert (found.width, found.height, found.doffs) == (941, 490, 0)
