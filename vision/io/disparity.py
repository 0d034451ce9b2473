"""Disparity maps in the encodings of the published data sets.

==================  ==========================================================================
encoding            stored values
==================  ==========================================================================
``pfm``             float32 pixels (Scene Flow, Middlebury 2014, ETH3D)
``npy``             NumPy array of pixels, (H, W)
``npy-bottom-up``   the same with the lowest row first, as in FADNet's published lists (read only)
``kitti``           16-bit grey PNG: 256 d, 0 where unknown
``sintel``          8-bit RGB PNG: d = 4 R + G / 2^6 + B / 2^14
``middlebury:N``    8-bit grey PNG: N d, 0 where unknown (Middlebury 2001 to 2006: N is 1 to 8)
``exr``             one float channel of OpenEXR (read only)
==================  ==========================================================================

Everywhere a value that is not finite or not positive means "unknown".
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...common.files import atomic_write, existing, write_bytes
from .exr import read_exr
from .images import read_pixels
from .pfm import read_pfm, write_pfm

__all__ = ["PNG_MOST", "read_disparity", "write_disparity"]

PNG_MOST = 65535 / 256
"""The largest disparity that ``kitti`` holds, pixels."""

_BY_SUFFIX = {".pfm": "pfm", ".npy": "npy", ".png": "kitti", ".exr": "exr"}


def read_disparity(path: str | os.PathLike, encoding: str | None = None) -> tuple[Tensor, Tensor]:
    """Read a disparity map.

    Args:
        path: the file.
        encoding: one of the module's table; by default ``pfm``, ``npy``, ``kitti`` or ``exr`` as
            the suffix says.

    Returns:
        disparity: (1, H, W) float32, pixels, 0 where unknown.
        valid: (1, H, W) bool.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the encoding is unknown, the file does not hold it, or all disparities in it are
            of the other sign.
    """
    encoding = encoding or _encoding_of(Path(path))
    path = existing(path)
    if encoding == "pfm":
        values = read_pfm(path)
    elif encoding == "npy":
        values = _read_npy(path)
    elif encoding == "npy-bottom-up":
        values = _read_npy(path)[::-1]
    elif encoding == "kitti":
        values = _read_grey(path, np.uint16) / np.float32(256)
    elif encoding == "sintel":
        values = _read_sintel(path)
    elif encoding.startswith("middlebury:"):
        values = _read_grey(path, np.uint8) / np.float32(_scale_of(encoding))
    elif encoding == "exr":
        values = read_exr(path)
    else:
        raise ValueError(
            f"unknown disparity encoding {encoding!r}: pfm, npy, npy-bottom-up, kitti, sintel, exr "
            "or middlebury:N (N the scale, as in middlebury:4)"
        )
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"{path}: a disparity map has one channel, this has shape {values.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(values, dtype=np.float32)
        valid = np.isfinite(values) & (values > 0)
    negative = values[np.isfinite(values) & (values < 0)]
    # One value alone may stand for what is unknown.
    if not valid.any() and len(negative) and negative.min() < negative.max():
        raise ValueError(
            f"{path}: disparities are negative, {negative.min():g} to {negative.max():g}; wanted "
            "are positive ones, where the left pixel x matches the right pixel x - d: negate them"
        )
    disparity = np.where(valid, values, np.float32(0))
    return torch.from_numpy(disparity)[None], torch.from_numpy(valid)[None]


def write_disparity(
    path: str | os.PathLike, disparity: Tensor | np.ndarray, encoding: str | None = None
) -> None:
    """Write a disparity map, atomically.

    Unknown values (not finite or not positive) are stored as the encoding's readers expect:
    infinity in PFM, 0 in the others. The PNG encodings round to the nearest step; a known value
    never rounds to 0.

    Args:
        path: the file to write.
        disparity: (H, W) or (1, H, W), pixels.
        encoding: ``pfm``, ``npy``, ``kitti``, ``sintel``; by default as the suffix says,
            ``kitti`` for ``.png``.

    Raises:
        ValueError: the shape or the encoding is none of those, or a value is too large for it
            (256 px in a KITTI PNG, 1024 px in Sintel's).
    """
    path = Path(path)
    encoding = encoding or _encoding_of(path)
    values = _as_map(path, disparity)
    valid = np.isfinite(values) & (values > 0)
    if encoding == "pfm":
        write_pfm(path, np.where(valid, values, np.float32(np.inf)))
    elif encoding == "npy":
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.where(valid, values, np.float32(0)), allow_pickle=False)
    elif encoding == "kitti":
        steps = _quantise(path, values, valid, 256, 1 << 16)
        _write_png(path, steps.astype(np.uint16))
    elif encoding == "sintel":
        steps = _quantise(path, values, valid, 1 << 14, 1 << 24)
        channels = [(steps >> shift) & 255 for shift in (0, 8, 16)]  # OpenCV's order: B, G, R
        _write_png(path, np.stack(channels, axis=2).astype(np.uint8))
    else:
        raise ValueError(
            f"{path}: disparity can be written as pfm, npy, kitti or sintel, not {encoding!r}"
        )


def _encoding_of(path: Path) -> str:
    if path.suffix.lower() not in _BY_SUFFIX:
        raise ValueError(
            f"{path}: the suffix {path.suffix!r} names no disparity format; use .pfm, .png or .npy"
        )
    return _BY_SUFFIX[path.suffix.lower()]


def _scale_of(encoding: str) -> int:
    scale = encoding.partition(":")[2]
    if not (scale.isascii() and scale.isdigit() and 1 <= int(scale[:4]) <= 256 and len(scale) < 4):
        raise ValueError(f"bad scale in {encoding!r}: write middlebury:4 for a map that stores 4 d")
    return int(scale)


def _read_grey(path: Path, dtype: type) -> np.ndarray:
    pixels = read_pixels(path)
    if pixels.ndim == 3:
        raise ValueError(
            f"{path}: a colour image, not a grey disparity map; Sintel's maps are read with "
            "encoding 'sintel', and a picture of a disparity cannot be read back"
        )
    if pixels.dtype != dtype:
        bits, wanted = 8 * pixels.dtype.itemsize, 8 * np.dtype(dtype).itemsize
        remedy = (
            "a KITTI map has 16; a Middlebury map of scale N is read with encoding 'middlebury:N'"
            if wanted == 16
            else "a Middlebury map has 8; KITTI's are read with encoding 'kitti'"
        )
        raise ValueError(f"{path}: a PNG of {bits} bits, {remedy}")
    return pixels


def _read_sintel(path: Path) -> np.ndarray:
    pixels = read_pixels(path)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"{path}: a Sintel disparity map is an 8-bit RGB PNG, this is not")
    return pixels.astype(np.float32) @ np.array([4, 2**-6, 2**-14], np.float32)


def _read_npy(path: Path) -> np.ndarray:
    """Read a .npy file of real numbers whose size agrees with its header."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            version = np.lib.format.read_magic(file)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, fortran, dtype = read(file)
        except Exception as error:  # the header is Python text: damage shows in many ways
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{path}: not a NumPy array file: {reason}") from error
        if dtype.kind not in "fiu" or dtype.hasobject:
            raise ValueError(f"{path}: an array of {dtype}; a disparity map holds real numbers")
        if len(shape) < 2 or any(side != 1 for side in shape[:-2]) or min(shape) < 1:
            raise ValueError(f"{path}: an array of shape {shape}; a disparity map has (H, W)")
        start, wanted = file.tell(), dtype.itemsize * math.prod(shape)
        if size - start != wanted:
            raise ValueError(
                f"{path}: {size - start} bytes of data from byte {start}, but the shape {shape} "
                f"needs {wanted}"
            )
        values = np.fromfile(file, dtype=dtype)
    return values.reshape(shape, order="F" if fortran else "C").reshape(shape[-2:])


def _as_map(path: Path, disparity: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(disparity, Tensor):
        disparity = disparity.detach().float().cpu().numpy()
    values = np.asarray(disparity, dtype=np.float32)
    values = values[0] if values.ndim == 3 and len(values) == 1 else values
    if values.ndim != 2 or values.size == 0:
        raise ValueError(
            f"{path}: a disparity map has shape (H, W) or (1, H, W), got {values.shape}"
        )
    return values


def _quantise(
    path: Path, values: np.ndarray, valid: np.ndarray, steps: int, limit: int
) -> np.ndarray:
    """Return round(steps * d) as integers from 1 to limit - 1, and 0 where not valid."""
    scaled = np.rint(np.where(valid, values, 0).astype(np.float64) * steps)
    if scaled.max() >= limit:
        raise ValueError(
            f"{path}: a disparity of {values[valid].max():.2f} px does not fit: this PNG encoding "
            f"ends below {limit // steps} px; write .pfm or .npy"
        )
    return np.where(valid, np.maximum(scaled, 1), 0).astype(np.int64)


def _write_png(path: Path, pixels: np.ndarray) -> None:
    import cv2

    write_bytes(path, cv2.imencode(".png", pixels)[1].tobytes())
