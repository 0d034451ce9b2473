"""PFM: what real files hold is read, anything else refused before memory is taken."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vizoo.vision.io.pfm import read_pfm, write_pfm

ROWS = np.arange(6, dtype="<f4").reshape(2, 3)


def pfm(tmp_path, header: bytes, payload: bytes = ROWS.tobytes()):
    path = tmp_path / "a.pfm"
    path.write_bytes(header + payload)
    return path


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 7, 3), (3, 1)])
def test_round_trip(tmp_path, shape):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    array.flat[0] = np.inf
    write_pfm(tmp_path / "a.pfm", array)
    again = read_pfm(tmp_path / "a.pfm")
    assert again.dtype == np.float32 and again.flags.c_contiguous
    np.testing.assert_array_equal(again, array)


@pytest.mark.parametrize(
    "header",
    [
        b"Pf\n3 2\n-1.0\n",
        b"Pf \n3 2 \n-1.0 \n",  # Scene Flow's sample: blanks before the line ends
        b"Pf\r\n3 2\r\n-1\r\n",
        b"Pf 3  2\t-0.003922\n",  # Middlebury's scale, and other blanks
        b"Pf\n# by a camera\n3\n2\n-1e0\n",
        b"Pf\n3 2\n-1.0 ",
    ],
)
def test_headers_in_the_wild(tmp_path, header):
    np.testing.assert_array_equal(read_pfm(pfm(tmp_path, header)), ROWS[::-1])


def test_big_endian(tmp_path):
    path = pfm(tmp_path, b"Pf\n3 2\n1.0\n", ROWS.astype(">f4").tobytes())
    np.testing.assert_array_equal(read_pfm(path), ROWS[::-1])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "no magic at byte 0"),
        (b"P5\n3 2\n-1\n", "bad magic 'P5' at byte 0"),
        (b" Pf\n3 2\n-1\n", "magic"),
        (b"Pf\n0 2\n-1\n", "bad width '0' at byte 3"),
        (b"Pf\n3 -2\n-1\n", "bad height '-2' at byte 5"),
        (b"Pf\n3 2.0\n-1\n", "bad height"),
        (b"Pf\n99999999999 2\n-1\n", "bad width"),
        (b"Pf\n70000 2\n-1\n", "bad width"),
        (b"Pf\n3 2\n0\n", "bad scale '0' at byte 7"),
        (b"Pf\n3 2\n-0.0\n", "bad scale"),
        (b"Pf\n3 2\nnan\n", "bad scale"),
        (b"Pf\n3 2\n-inf\n", "bad scale"),
        (b"Pf\n3 2\n-1e999\n", "bad scale"),
        (b"Pf\n3 2\n1_0\n", "bad scale"),
    ],
)
def test_bad_headers(tmp_path, header, message):
    path = pfm(tmp_path, header, b"" if not header else ROWS.tobytes())
    with pytest.raises(ValueError, match=message) as caught:
        read_pfm(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_disk_that_gives_less_than_it_said(tmp_path, monkeypatch):
    path = pfm(tmp_path, b"Pf\n3 2\n-1\n")
    monkeypatch.setattr(np, "fromfile", lambda file, dtype: ROWS[0])
    with pytest.raises(ValueError, match="a.pfm: PFM data from byte 10 changed while being read"):
        read_pfm(path)


@pytest.mark.parametrize(("spare", "word"), [(-1, "cut short"), (1, "other bytes"), (4, "other")])
def test_wrong_size(tmp_path, spare, word):
    payload = (ROWS.tobytes() + bytes(8))[: ROWS.nbytes + spare]
    with pytest.raises(ValueError, match=f"from byte 12 are .*{word}.* need 24"):
        read_pfm(pfm(tmp_path, b"Pf\n3 2\n-1.0\n", payload))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_pfm(tmp_path / "a.pfm")


def test_size_is_checked_before_memory_is_taken(tmp_path):
    path = pfm(tmp_path, b"PF\n65536 65536\n-1\n")
    tracemalloc.start()
    with pytest.raises(ValueError, match="cut short"):
        read_pfm(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 3, 4)])
def test_writer_refuses_shapes(tmp_path, shape):
    with pytest.raises(ValueError, match="got an array of shape"):
        write_pfm(tmp_path / "a.pfm", np.zeros(shape))
    assert not list(tmp_path.iterdir())


TOKEN = st.sampled_from(
    [b"Pf", b"PF", b"3", b"2", b"-1.0", b"1e3", b"\n", b" ", b"#", b"nan", b"-"]
)


@given(data=st.one_of(st.binary(max_size=80), st.lists(TOKEN, max_size=14).map(b" ".join)))
def test_anything_else_is_a_value_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.pfm"
    path.write_bytes(data)
    try:
        assert read_pfm(path).ndim in (2, 3)
    except ValueError as error:
        assert str(path) in str(error)


def test_real_files(shared):
    map_ = read_pfm(shared / "data/sceneflow_sample/left_disparity.pfm")
    assert map_.shape == (540, 960)
    assert map_.mean() == pytest.approx(37.76, abs=0.01)
    known = np.isfinite(read_pfm(shared / "data/stereo_real/playground/disp0.pfm"))
    assert known.mean() == pytest.approx(0.496, abs=0.01)
