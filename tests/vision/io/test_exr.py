"""OpenEXR maps: files of the reference implementation, round trips, damage."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest

from vizoo.vision.io.exr import read_exr, write_exr

# Written by OpenEXR 3.5, then deflated to be short: uncompressed floats (2, 3); halves (18, 16) in
# three channels, ZIP; the same as one channel of floats, PIZ.
PLAIN = (
    "eNqFTksKAjEMTcWFCwXBg4hewFEPILhQcFenUQM1LW3QmZUexaPamREd3RgIPF7eJ5fxRHUAID9pZrQxAUtRYJS4HVSX"
    "atRrIXdnHzBGcvyF66PRorfExl1h74opwRA+03lFGIre6vKvzhLjKhgMLVS3eCrQzqPHXNZayMHBOi3Qrd33WcwDIjfx"
    "S2RJtsv0AL1WRVuyJSOnnwgpPUKUQHyEQa3XXD1BZ31EWKgmZaM+if3GeavcCWTqzWVZ4tI+sicx/09b"
)
HALVES = (
    "eNor0zdkZGJgYEjOSMzLS80pBjJyMotLGMyBYk4MjAwQwAjF7hgiQRgiDMn5uQVFqcXFmfl5KGyQJHNKYklieGZeSn45"
    "Q1J+hVEmgwADAvADsSAQp2QWF+QkVhJUl5OZl+pflJJahMQCO6EgsyI1x7G4IDW5JCixJDOfIS0nP7GEgQWsu8G+OLko"
    "NTUPYrxzal4JUFuZURoDB5IVyErCM1NKMtCMKKksSGUoLinKzEtn4AWrT8wDOSIzNzE9lSENGii7GBEm+gBxRVxyxgLb"
    "hAWGdgZHPjKprHFo6O9zvxq8rs4ZCLyBONjZuVmcsQ5IOSsLrVM9kN/yjFEi1r/Bf11V0sGAcH8tCVN5ewaG7zeZv4IC"
    "RApqZkbGjIYWZo4PFw0Vvwo6+HgzMDDdiT8JAFQGc3Q="
)
PIZ = (
    "eNor0zdkZGJgYEjOSMzLS80pBjJyMotLGISBYpEMIBkQYIRihuT83IKi1OLizPw8FDZIkiUlsSQxPDMvJb+cISm/wiiT"
    "QYABAfiBWBCIUzKLC3ISKwmqy8nMS/UvSkktQmKBnVCQWZGa41hckJpcEpRYkpnPkJaTn1jCwALW3WBfnFyUmpoHMd45"
    "Na8EqK3MKI2BA8kKZCXhmSklGWhGlFQWpDIUlxRl5qUz8ILVJ+aBHJGZm5ieymDFiDBpOTCADrArciAJwcMLnUbFaBAN"
    "CKKB0FBbJoTZp4BGfILy2T82/peRKTz+fxQMQfCm/Y9K/AHnDwrsIgUN/+wf7u//fe/73veV/+rnPwezKvb/7/6PLhb/"
    "+P8/+/fVQPbzn0BRMOvR/3/6/9HEHtQ3/eP/4Q9mHwAAUmNXww=="
)


@pytest.fixture
def stored(tmp_path):
    def write(text: str):
        path = tmp_path / "stored.exr"
        path.write_bytes(zlib.decompress(base64.b64decode(text)))
        return path

    return write


def test_files_of_the_reference_implementation(stored):
    assert read_exr(stored(PLAIN)).tolist() == [[np.inf, 1, 2], [3, 4, 5]]
    want = (np.arange(18 * 16).reshape(18, 16) // 4 / 8).astype(np.float32)
    found = read_exr(stored(HALVES))
    assert found.dtype == np.float32 and (found == want).all()
    try:
        found = read_exr(stored(PIZ))
    except ValueError as error:
        assert "packed by PIZ" in str(error) and "\n" not in str(error)
    else:  # an OpenCV that has OpenEXR
        assert (found == want).all()


@pytest.mark.parametrize("shape", [(1, 1), (16, 8), (37, 5)])
def test_round_trip(tmp_path, shape):
    noise = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    noise[-1, -1] = np.inf
    for values in (noise, np.full(shape, 2.5, np.float32), noise.astype(np.float64)):
        write_exr(tmp_path / "a.exr", values)
        assert (read_exr(tmp_path / "a.exr") == values.astype(np.float32)).all()


def test_a_map_is_small(tmp_path):
    write_exr(tmp_path / "a.exr", np.full((64, 128), 2.5))
    assert (tmp_path / "a.exr").stat().st_size < 4 * 64 * 128 / 20


def test_damage_is_one_line(tmp_path):
    path, random = tmp_path / "a.exr", np.random.default_rng(1)
    write_exr(path, random.random((20, 30)))
    whole = path.read_bytes()
    for cut in (*range(0, 400, 7), len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"a\.exr: ") as error:
            read_exr(path)
        assert "\n" not in str(error.value)
    for _ in range(300):
        changed = bytearray(whole)
        for place in random.integers(0, 400, 3):
            changed[place] = random.integers(256)
        path.write_bytes(changed)
        try:
            assert read_exr(path).dtype == np.float32
        except ValueError as error:
            assert str(error).startswith(f"{path}: ")


def test_refuses(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_exr(tmp_path / "a.exr")
    (tmp_path / "a.exr").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ValueError, match="not an OpenEXR file"):
        read_exr(tmp_path / "a.exr")
    with pytest.raises(ValueError, match=r"\(2, 3, 3\)"):
        write_exr(tmp_path / "b.exr", np.ones((2, 3, 3)))


def test_channels_that_differ_are_no_map(tmp_path, stored):
    path = stored(HALVES)
    plain = bytearray(path.read_bytes())
    plain[-3] ^= 1
    path.write_bytes(plain)
    with pytest.raises(ValueError, match="channels that differ|damaged"):
        read_exr(path)
