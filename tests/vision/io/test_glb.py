"""Points as binary glTF, read back by the format's own words."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from vizoo.vision.io.glb import write_glb


def test_points_come_back(tmp_path):
    points = np.array([(1, 2, 3), (-4, 5, 6.5)], np.float32)
    colours = np.array([(0, 255, 128), (1, 2, 3)], np.uint8)
    write_glb(tmp_path / "cloud.glb", points, colours)
    data = (tmp_path / "cloud.glb").read_bytes()
    magic, version, length = struct.unpack_from("<4sII", data)
    assert (magic, version, length) == (b"glTF", 2, len(data))
    size, kind = struct.unpack_from("<I4s", data, 12)
    assert kind == b"JSON" and size % 4 == 0
    content = json.loads(data[20 : 20 + size])
    binary_size, kind = struct.unpack_from("<I4s", data, 20 + size)
    binary = data[28 + size :]
    assert kind == b"BIN\0" and len(binary) == binary_size == content["buffers"][0]["byteLength"]
    places, paints = (
        binary[view["byteOffset"] : view["byteOffset"] + view["byteLength"]]
        for view in content["bufferViews"]
    )
    placed = np.frombuffer(places, "<f4").reshape(-1, 3)
    assert (placed == points * (1, -1, -1)).all()
    where, paint = content["accessors"]
    assert where["min"] == [-4, -5, -6.5] and where["max"] == [1, -2, -3]
    assert where["count"] == paint["count"] == 2
    painted = np.frombuffer(paints, np.uint8).reshape(-1, 4)
    assert painted[0].tolist() == [0, 255, 56, 255]  # linear light
    assert content["meshes"][0]["primitives"][0]["mode"] == 0


@pytest.mark.parametrize(
    ("points", "colours", "words"),
    [
        (np.zeros((0, 3)), np.zeros((0, 3), np.uint8), "no point"),
        (np.full((1, 3), np.inf), np.zeros((1, 3), np.uint8), "not finite"),
        (np.zeros((2, 3)), np.zeros((1, 3), np.uint8), "uint8 colours"),
        (np.zeros((1, 3)), np.zeros((1, 3)), "float64"),
    ],
)
def test_what_is_no_cloud_is_refused(tmp_path, points, colours, words):
    with pytest.raises(ValueError, match=words):
        write_glb(tmp_path / "cloud.glb", points, colours)
    assert list(tmp_path.iterdir()) == []
