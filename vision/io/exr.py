"""OpenEXR images of one part in scan lines, uncompressed or compressed by ZIP, as depth maps are.

OpenCV's wheels come without OpenEXR more often than with it. Files of other compressions are left
to OpenCV all the same, where it can.

A file is a magic number, attributes (name, type, size, value), the offset of each chunk, and the
chunks: so many rows, in each row channel after channel in alphabetical order.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np

from ...common.files import existing, write_bytes

__all__ = ["read_exr", "write_exr"]

_MAGIC = b"v/1\x01"
_ROWS = {0: 1, 2: 1, 3: 16}  # of a chunk, by compression: none, ZIPS, ZIP
_OTHERS = {1: "RLE", 4: "PIZ", 5: "PXR24", 6: "B44", 7: "B44A", 8: "DWAA", 9: "DWAB"}
_TYPES = (np.dtype("<u4"), np.dtype("<f2"), np.dtype("<f4"))
_UNUSUAL = 0x200 | 0x800 | 0x1000  # tiles, deep pixels, several parts
_DEFLATE_RATIO = 1032  # deflate's best compression


def read_exr(path: str | os.PathLike) -> np.ndarray:
    """Read a map of one channel, or of several that are all the same.

    Returns:
        (H, W) float32; values are as stored: infinities and NaN are kept.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or holds something else; the message names it.
    """
    path = existing(path)
    try:
        channels = _decode(path)
    except _Refused as error:
        raise ValueError(f"{path}: {error}") from None
    except (struct.error, zlib.error, ValueError, LookupError, OverflowError) as error:
        raise ValueError(f"{path}: damaged or cut short OpenEXR file: {error}") from None
    first, *others = channels
    if any(not np.array_equal(first, other, equal_nan=True) for other in others):
        raise ValueError(f"{path}: {len(channels)} channels that differ; a map has one")
    return first


def write_exr(path: str | os.PathLike, values: np.ndarray) -> None:
    """Write a map (H, W) as the channel Y, 32-bit floats, ZIP, atomically.

    Raises:
        ValueError: another shape.
    """
    values = np.ascontiguousarray(values, dtype="<f4")
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"{path}: an OpenEXR map is (H, W), got an array of shape {values.shape}")
    height, width = values.shape
    window = struct.pack("<4i", 0, 0, width - 1, height - 1)
    header = _MAGIC + struct.pack("<i", 2)
    for name, kind, value in (
        ("channels", "chlist", b"Y\0" + struct.pack("<iB3xii", 2, 0, 1, 1) + b"\0"),
        ("compression", "compression", b"\3"),
        ("dataWindow", "box2i", window),
        ("displayWindow", "box2i", window),
        ("lineOrder", "lineOrder", b"\0"),
        ("pixelAspectRatio", "float", struct.pack("<f", 1)),
        ("screenWindowCenter", "v2f", struct.pack("<2f", 0, 0)),
        ("screenWindowWidth", "float", struct.pack("<f", 1)),
    ):
        header += f"{name}\0{kind}\0".encode() + struct.pack("<i", len(value)) + value
    header += b"\0"
    chunks = []
    for top in range(0, height, _ROWS[3]):
        plain = values[top : top + _ROWS[3]].tobytes()
        packed = zlib.compress(_predict(plain), 4)  # as OpenEXR: half the time, 6 % larger
        packed = packed if len(packed) < len(plain) else plain
        chunks.append(struct.pack("<2i", top, len(packed)) + packed)
    first = len(header) + 8 * len(chunks)
    offsets = np.cumsum([first, *(len(chunk) for chunk in chunks[:-1])]).astype("<u8")
    write_bytes(path, header + offsets.tobytes() + b"".join(chunks))


class _Refused(Exception):
    """The file is sound, or no OpenEXR at all, and is not read."""


def _decode(path: Path) -> list[np.ndarray]:
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise _Refused("not an OpenEXR file")
    if struct.unpack_from("<I", data, 4)[0] & _UNUSUAL:
        raise _Refused("an OpenEXR file of tiles, deep pixels or several parts is not read")
    attributes, at = _attributes(data)
    kinds = _channels(attributes["channels"])
    left, top, right, bottom = struct.unpack("<4i", attributes["dataWindow"])
    width, height = right - left + 1, bottom - top + 1
    row = sum(kind.itemsize for kind in kinds) * width
    if min(width, height) < 1 or row * height > _DEFLATE_RATIO * len(data):
        raise struct.error(f"{len(data)} bytes cannot hold {height}x{width} pixels")
    compression = attributes["compression"][0]
    if compression not in _ROWS:
        return _by_opencv(path, _OTHERS.get(compression, f"compression {compression}"))
    rows = _ROWS[compression]
    count = -(-height // rows)
    offsets = struct.unpack_from(f"<{count}Q", data, at)
    channels = [np.empty((height, width), np.float32) for _ in kinds]
    seen = set()
    for offset in offsets:
        first, size = struct.unpack_from("<2i", data, offset)
        first -= top
        if first % rows or not 0 <= first < height or first in seen or size < 0:
            raise struct.error(f"chunk of row {first} at byte {offset}")
        seen.add(first)
        packed, lines = data[offset + 8 : offset + 8 + size], min(rows, height - first)
        plain = _unpack(packed, row * lines) if compression else packed
        if len(packed) != size or len(plain) != row * lines:
            raise struct.error(f"rows from {first} have {len(plain)} bytes, not {row * lines}")
        block, start = np.frombuffer(plain, np.uint8).reshape(lines, row), 0
        for channel, kind in zip(channels, kinds, strict=True):
            part = np.ascontiguousarray(block[:, start : start + kind.itemsize * width])
            channel[first : first + lines] = part.view(kind)
            start += kind.itemsize * width
    return channels


def _attributes(data: bytes) -> tuple[dict[str, bytes], int]:
    """The header's values by name, and where it ends."""
    values, at = {}, 8
    while data[at] != 0:
        end = data.index(b"\0", at)
        kind = data.index(b"\0", end + 1)
        (size,) = struct.unpack_from("<i", data, kind + 1)
        start = kind + 5
        if size < 0 or start + size >= len(data):
            raise struct.error(f"attribute at byte {at}")
        values[data[at:end].decode()] = data[start : start + size]
        at = start + size
    return values, at + 1


def _channels(value: bytes) -> list[np.dtype]:
    kinds, at = [], 0
    while value[at] != 0:
        end = value.index(b"\0", at)
        kind, _, *sampling = struct.unpack_from("<iB3xii", value, end + 1)
        if not 0 <= kind < len(_TYPES) or sampling != [1, 1]:
            raise struct.error(f"channel {value[at:end]!r}")
        kinds.append(_TYPES[kind])
        at = end + 17
    if not kinds:
        raise struct.error("no channel")
    return kinds


def _unpack(packed: bytes, size: int) -> bytes:
    """Undo ZIP: inflate, add up differences, put the two halves between each other."""
    if len(packed) == size:  # it would not get smaller, and is stored as it is
        return packed
    flat = np.frombuffer(zlib.decompressobj().decompress(packed, size + 1), np.uint8)
    if len(flat) != size:
        raise zlib.error(f"{len(flat)} bytes, not {size}")
    halves = np.cumsum(flat, dtype=np.uint8)
    halves[1::2] += 128
    plain = np.empty(size, np.uint8)
    middle = (size + 1) // 2
    plain[0::2], plain[1::2] = halves[:middle], halves[middle:]
    return plain.tobytes()


def _predict(plain: bytes) -> bytes:
    """What `_unpack` undoes, but for the deflating."""
    flat = np.frombuffer(plain, np.uint8)
    halves = np.concatenate((flat[0::2], flat[1::2]))
    return (np.diff(halves, prepend=np.uint8(128)) + np.uint8(128)).tobytes()


def _by_opencv(path: Path, compression: str) -> list[np.ndarray]:
    os.environ.setdefault("OPENCV_IO_ENABLE_OPENEXR", "1")
    import cv2

    try:
        values = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        values = None
    if values is None:
        raise _Refused(
            f"OpenEXR packed by {compression}, which this OpenCV cannot read (or the file is "
            "damaged); store it uncompressed or by ZIP, or as .pfm"
        )
    values = values.astype(np.float32)
    return list(np.moveaxis(values, 2, 0)) if values.ndim == 3 else [values]
