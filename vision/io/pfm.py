"""Portable float maps (PFM): the format of Scene Flow's, Middlebury's and ETH3D's disparities.

A text header of four tokens (``PF`` or ``Pf``, width, height, scale), then float32 rows, the bottom
row first. A negative scale means little endian. Its magnitude is ignored, as the data sets' own
tools do: Middlebury 2014 writes 0.003922 there over disparities in plain pixels.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import numpy as np

from ...common.files import atomic_write, existing

__all__ = ["read_pfm", "write_pfm"]

_HEADER_LIMIT = 1024  # bytes; real headers have about 20
_SIZE_LIMIT = 1 << 16  # pixels along one side
_BLANK = rb"(?:[ \t\r\n]|#[^\n]*\n)"
_TOKEN = re.compile(rb"%s*([^\s#]+)" % _BLANK)
_END = re.compile(rb"[ \t\r]*\n|[ \t\r]")
_WHOLE = re.compile(rb"[0-9]{1,9}")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def read_pfm(path: str | os.PathLike) -> np.ndarray:
    """Read a PFM file, strictly.

    Returns:
        float32 array in the machine's byte order, top row first: (H, W) for ``Pf``, (H, W, 3) for
        ``PF``. Values are as stored: infinities and NaN are kept.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a PFM file, is cut short or has bytes to spare; the message
            names the file and the byte offset. The size is checked before memory is taken.
    """
    path = existing(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        shape, order, start = _parse_header(file.read(_HEADER_LIMIT), path)
        wanted = 4 * math.prod(shape)
        if size - start != wanted:
            lack = "cut short" if size - start < wanted else "followed by other bytes"
            raise ValueError(
                f"{path}: PFM data from byte {start} are {lack}: {size - start} bytes, but "
                f"{shape[0]}x{shape[1]} pixels need {wanted}"
            )
        file.seek(start)
        data = np.fromfile(file, dtype=f"{order}f4")
    if data.size != math.prod(shape):  # NumPy tells neither of failing disks nor of other writers
        raise ValueError(f"{path}: PFM data from byte {start} changed while being read")
    return np.ascontiguousarray(data.reshape(shape)[::-1], dtype=np.float32)


def write_pfm(path: str | os.PathLike, array: np.ndarray) -> None:
    """Write (H, W) or (H, W, 3) real numbers as a little-endian PFM file, atomically.

    Raises:
        ValueError: the array has another shape or is empty.
    """
    array = np.asarray(array)
    colour = array.ndim == 3 and array.shape[2] == 3
    if not (colour or array.ndim == 2) or array.size == 0 or max(array.shape) > _SIZE_LIMIT:
        raise ValueError(
            f"{path}: a PFM file holds (H, W) or (H, W, 3) values with sides from 1 to "
            f"{_SIZE_LIMIT}, got an array of shape {array.shape}"
        )
    height, width = array.shape[:2]
    header = f"{'PF' if colour else 'Pf'}\n{width} {height}\n-1.0\n"
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(header.encode("ascii"))
        file.write(np.ascontiguousarray(array[::-1], dtype="<f4").tobytes())


def _parse_header(header: bytes, path: Path) -> tuple[tuple[int, ...], str, int]:
    """Return the shape, the byte order (``<`` or ``>``) and the offset of the first value."""
    tokens: list[bytes] = []
    position = 0
    for name in ("magic", "width", "height", "scale"):
        match = _TOKEN.match(header, position)
        if match is None or (name == "magic" and match.start(1) != 0):
            raise ValueError(f"{path}: not a PFM file: no {name} at byte {position}")
        token, position = match[1], match.end()
        if not _valid(name, token):
            shown = token[:24].decode("ascii", "backslashreplace")
            raise ValueError(
                f"{path}: not a PFM file: bad {name} {shown!r} at byte {match.start(1)}"
            )
        tokens.append(token)
    end = _END.match(header, position)
    if end is None:
        raise ValueError(f"{path}: PFM header does not end after byte {position}")
    height, width = int(tokens[2]), int(tokens[1])
    shape = (height, width, 3) if tokens[0] == b"PF" else (height, width)
    return shape, "<" if float(tokens[3]) < 0 else ">", end.end()


def _valid(name: str, token: bytes) -> bool:
    if name == "magic":
        return token in (b"PF", b"Pf")
    if name == "scale":
        return bool(_NUMBER.fullmatch(token)) and 0 < abs(float(token)) < math.inf
    return bool(_WHOLE.fullmatch(token)) and 1 <= int(token) <= _SIZE_LIMIT
