"""Coloured points as binary glTF, which web pages draw."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np

from ...common.files import atomic_write

__all__ = ["write_glb"]

_JSON, _BINARY = 0x4E4F534A, 0x004E4942
_POINTS, _FLOAT, _BYTE, _VERTICES = 0, 5126, 5121, 34962


def write_glb(path: str | os.PathLike, points: np.ndarray, colours: np.ndarray) -> None:
    """Write points as a binary glTF file, atomically.

    Args:
        path: the file to write.
        points: (N, 3) finite, x right, y down, z forward; glTF's own y goes up and z backward.
        colours: (N, 3) uint8 RGB.

    Raises:
        ValueError: there is no point, one is not finite, or shapes or types are others.
    """
    path, count = Path(path), len(points)
    if points.shape != (count, 3) or colours.shape != (count, 3) or colours.dtype != np.uint8:
        raise ValueError(
            f"{path}: points are (N, 3) with uint8 colours (N, 3), got {points.shape} with "
            f"{colours.dtype} {colours.shape}"
        )
    if count == 0 or not np.isfinite(points).all():
        raise ValueError(f"{path}: {'no point' if count == 0 else 'a point is not finite'}")
    placed = (points * (1, -1, -1)).astype("<f4")
    # glTF wants four bytes a colour, and keeps them linear where pictures are sRGB.
    paint = np.full((count, 4), 255, np.uint8)
    paint[:, :3] = np.rint(255 * (colours / 255) ** 2.2)
    binary = placed.tobytes() + paint.tobytes()
    accessor = {"count": count, "byteOffset": 0}
    low, high = (edge.tolist() for edge in (placed.min(axis=0), placed.max(axis=0)))
    placed_as = {"bufferView": 0, "componentType": _FLOAT, "type": "VEC3", "min": low, "max": high}
    painted_as = {"bufferView": 1, "componentType": _BYTE, "type": "VEC4", "normalized": True}
    attributes = {"POSITION": 0, "COLOR_0": 1}
    views = [(0, placed.nbytes), (placed.nbytes, paint.nbytes)]
    content = {
        "asset": {"version": "2.0", "generator": "vizoo"},
        "extensionsUsed": ["KHR_materials_unlit"],
        "materials": [{"extensions": {"KHR_materials_unlit": {}}}],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": attributes, "mode": _POINTS, "material": 0}]}],
        "buffers": [{"byteLength": len(binary)}],
        "bufferViews": [
            {"buffer": 0, "byteOffset": start, "byteLength": length, "target": _VERTICES}
            for start, length in views
        ],
        "accessors": [{**accessor, **placed_as}, {**accessor, **painted_as}],
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    whole = 12 + 8 + len(text) + 8 + len(binary)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("<4sII", b"glTF", 2, whole))
        for kind, chunk in ((_JSON, text), (_BINARY, binary)):
            file.write(struct.pack("<II", len(chunk), kind) + chunk)
