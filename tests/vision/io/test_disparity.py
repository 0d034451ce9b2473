"""Disparity encodings: round trips, masks, and files of the wrong kind."""

import io

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vizoo.vision.io.disparity import read_disparity, write_disparity
from vizoo.vision.io.exr import write_exr

ENCODINGS = [("a.pfm", None, 0.0), ("a.npy", None, 0.0), ("a.png", None, 1 / 512)]
ENCODINGS += [("b.png", "sintel", 2**-15)]


@pytest.fixture
def disparity():
    values = torch.rand(1, 9, 11) * 200 + 0.01
    values[0, 0, :5] = torch.tensor([0.0, -3.0, torch.inf, torch.nan, -torch.inf])
    return values


@pytest.mark.parametrize(("name", "encoding", "error"), ENCODINGS)
def test_round_trip(tmp_path, disparity, name, encoding, error):
    write_disparity(tmp_path / name, disparity, encoding)
    read, valid = read_disparity(tmp_path / name, encoding)
    assert read.shape == valid.shape == (1, 9, 11)
    assert read.dtype == torch.float32 and valid.dtype == torch.bool
    assert not valid[0, 0, :5].any() and valid.sum() == 94
    assert (read[~valid] == 0).all()
    assert (read - disparity)[valid].abs().max() <= error + 1e-6


def test_known_values_never_round_to_unknown(tmp_path):
    write_disparity(tmp_path / "a.png", np.full((2, 2), 1e-4, np.float32))
    read, valid = read_disparity(tmp_path / "a.png")
    assert valid.all() and (read == 1 / 256).all()


@pytest.mark.parametrize(("encoding", "limit"), [("kitti", 256), ("sintel", 1024)])
def test_too_large_for_png(tmp_path, encoding, limit):
    write_disparity(tmp_path / "a.png", np.full((2, 2), limit - 0.01), encoding)
    with pytest.raises(ValueError, match=f"ends below {limit} px"):
        write_disparity(tmp_path / "b.png", np.full((2, 2), limit), encoding)
    assert not (tmp_path / "b.png").exists()


def test_kitti_values(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.array([[0, 1, 256, 65535]], np.uint16))
    read, valid = read_disparity(tmp_path / "a.png")
    assert read.tolist() == [[[0, 1 / 256, 1, 65535 / 256]]]
    assert valid.tolist() == [[[False, True, True, True]]]


def test_sintel_values(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.array([[[128, 32, 5]]], np.uint8))  # B, G, R
    read, _ = read_disparity(tmp_path / "a.png", "sintel")
    assert read.item() == 5 * 4 + 32 / 64 + 128 / 2**14


def test_middlebury_scale(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.array([[0, 40]], np.uint8))
    read, valid = read_disparity(tmp_path / "a.png", "middlebury:4")
    assert read.tolist() == [[[0, 10]]] and valid.tolist() == [[[False, True]]]
    for bad in ("middlebury:", "middlebury:0", "middlebury:-1", "middlebury:x", "middlebury:9999"):
        with pytest.raises(ValueError, match="bad scale"):
            read_disparity(tmp_path / "a.png", bad)


def test_wrong_kind_of_png(tmp_path):
    cv2.imwrite(str(tmp_path / "grey.png"), np.zeros((2, 2), np.uint8))
    cv2.imwrite(str(tmp_path / "colour.png"), np.zeros((2, 2, 3), np.uint8))
    cv2.imwrite(str(tmp_path / "deep.png"), np.zeros((2, 2), np.uint16))
    for name, encoding, message in (
        ("grey.png", None, "8 bits.*middlebury:N"),
        ("colour.png", None, "colour image.*sintel"),
        ("deep.png", "middlebury:4", "16 bits.*kitti"),
        ("deep.png", "sintel", "8-bit RGB"),
    ):
        with pytest.raises(ValueError, match=message):
            read_disparity(tmp_path / name, encoding)


def test_unknown_encoding_or_file(tmp_path):
    (tmp_path / "a.tif").write_bytes(b"")
    with pytest.raises(ValueError, match="names no disparity format"):
        read_disparity(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="unknown disparity encoding 'kiti'"):
        read_disparity(tmp_path / "a.tif", "kiti")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_disparity(tmp_path / "a.pfm")
    with pytest.raises(ValueError, match="not 'exr'"):
        write_disparity(tmp_path / "a.exr", np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"got \(2, 3, 4\)"):
        write_disparity(tmp_path / "a.pfm", np.ones((2, 3, 4)))


def test_exr(tmp_path):
    write_exr(tmp_path / "a.exr", np.array([[2.5, np.inf, 0]]))
    disparity, valid = read_disparity(tmp_path / "a.exr")
    assert disparity.tolist() == [[[2.5, 0, 0]]] and valid.tolist() == [[[True, False, False]]]
    (tmp_path / "a.exr").write_bytes(b"v/1\x01 and not much more")
    with pytest.raises(ValueError, match="damaged or cut short OpenEXR"):
        read_disparity(tmp_path / "a.exr")


def saved(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(1, 7.0).reshape(2, 3)),
        np.ones((1, 2, 3), ">f4"),
        np.ones((2, 3), int),
    ],
)
def test_npy_variants(tmp_path, array):
    (tmp_path / "a.npy").write_bytes(saved(array))
    read, _ = read_disparity(tmp_path / "a.npy")
    np.testing.assert_array_equal(read[0].numpy(), array.reshape(2, 3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (saved(np.array([[{}]], dtype=object)), "object"),
        (saved(np.ones((2, 2), complex)), "complex128"),
        (saved(np.ones((2, 2), bool)), "bool"),
        (saved(np.ones(4)), r"shape \(4,\)"),
        (saved(np.ones((2, 3, 3))), "shape"),
        (saved(np.ones((0, 3))), "shape"),
        (saved(np.ones((2, 2)))[:-1], "needs 32"),
        (saved(np.ones((2, 2))) + b"x", "needs 32"),
        (b"\x93NUMPY", "not a NumPy array"),
        (saved(np.ones((2, 2))).replace(b"(2, 2)", b"(9**9)"), "not a NumPy array"),
        (saved(np.ones((222, 22))).replace(b"(222, 22)", b"(99999999, 99999999)"), "NumPy|needs"),
    ],
)
def test_npy_refused(tmp_path, data, message):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_disparity(tmp_path / "a.npy")
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


GOOD = saved(np.ones((3, 4), np.float32))


@given(at=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255), cut=st.integers(0, 60))
def test_damaged_npy_is_a_value_error(tmp_path_factory, at, value, cut):
    data = bytearray(GOOD)
    data[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.npy"
    path.write_bytes(data[: len(data) - cut])
    try:
        assert read_disparity(path)[0].ndim == 3
    except ValueError as error:
        assert str(path) in str(error)


def test_real_files(shared):
    data = shared / "data"
    read, valid = read_disparity(data / "kitti_sample/left_disparity_aanet_prediction.png")
    assert read.shape == (1, 375, 1242) and valid.all()
    assert read.max() == pytest.approx(67.6, abs=0.1)
    read, valid = read_disparity(data / "stereo_real/cones/gt.png", "middlebury:1")
    assert read.max() == 55 and 0.9 < valid.float().mean() < 1
    with pytest.raises(ValueError, match="8 bits"):
        read_disparity(data / "stereo_real/cones/gt.png")


def test_disparities_of_the_other_sign_are_refused(tmp_path):
    file = tmp_path / "left.npy"
    np.save(file, -np.arange(12, dtype=np.float32).reshape(3, 4))
    with pytest.raises(
        ValueError, match="left.npy: disparities are negative, -11 to -1; .* negate"
    ):
        read_disparity(file)
    np.save(file, np.full((3, 4), -1, np.float32))  # unknown everywhere
    assert not read_disparity(file)[1].any()
