"""Solid textures from integer hashes: the same colour at the same place on every machine.

Only additions, multiplications and divisions of single numbers (IEEE 754, exactly rounded) and
whole-number arithmetic are used: no sums in an order of the library's choosing, no sines.
"""

from __future__ import annotations

import numpy as np

__all__ = ["LIGHTS", "relight", "solid_texture"]

#: Gain and offset of each light of the DTU layout; the fourth (number 3) changes nothing.
LIGHTS = (
    (0.55, 0.02),
    (0.70, 0.00),
    (0.85, 0.03),
    (1.00, 0.00),
    (1.10, -0.04),
    (1.20, -0.02),
    (1.30, -0.08),
)

_OCTAVES = ((4.0, 0.4), (2.0, 0.35), (1.0, 0.25))  # period in finest cells, weight
_CHECKER = 6.0  # period in finest cells
_STRIDES = (np.uint32(0x8DA6B343), np.uint32(0xD8163841), np.uint32(0xCB1AB31F))
_SHIFTS = np.array([[0], [10], [20]], np.uint32)
_MASK = np.uint32(1023)


def solid_texture(points: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return value noise of three octaves for each channel, and a checker, at points of space.

    Args:
        points: (3, N) float32, in cells of the finest octave.
        seeds: (N,) uint32, which texture a point is of.

    Returns:
        Noise (3, N) float32 in [0, 1], and the checker (N,) float32, -1 or 1.
    """
    noise = np.zeros(points.shape, np.float32)
    for number, (period, weight) in enumerate(_OCTAVES):
        own = seeds + np.uint32(0x9E3779B9 * (number + 1) & 0xFFFFFFFF)
        noise += _value_noise(points * np.float32(1 / period), own, np.float32(weight / 1023))
    cells = np.floor(points * np.float32(1 / _CHECKER)).astype(np.int32)
    odd = (cells[0] + cells[1] + cells[2]) & 1
    return noise, (2 * odd - 1).astype(np.float32)


def relight(image: np.ndarray, light: int) -> np.ndarray:
    """Return a uint8 image under one of the seven ``LIGHTS``."""
    gain, offset = LIGHTS[light]
    lit = np.floor(image.astype(np.float64) * gain + offset * 255 + 0.5)
    return np.clip(lit, 0, 255).astype(np.uint8)


def _value_noise(points: np.ndarray, seeds: np.ndarray, scale: np.float32) -> np.ndarray:
    """Interpolate hashed values, ten bits a channel, times ``scale``: (3, N)."""
    floors = np.floor(points)
    share = points - floors
    share *= share * (np.float32(3) - np.float32(2) * share)  # flat at the cells' borders
    x, y, z = floors.astype(np.int32).view(np.uint32)
    x0 = x * _STRIDES[0]
    x0 += seeds
    y0, z0 = y * _STRIDES[1], z * _STRIDES[2]
    columns = (x0, x0 + _STRIDES[0])
    slabs = []
    for z_hash in (z0, z0 + _STRIDES[2]):
        rows = []
        for y_hash in (y0, y0 + _STRIDES[1]):
            row = y_hash ^ z_hash
            rows.append(_blend(_values(columns[0] ^ row), _values(columns[1] ^ row), share[0]))
        slabs.append(_blend(*rows, share[1]))
    whole = _blend(*slabs, share[2])
    whole *= scale
    return whole


def _values(hashes: np.ndarray) -> np.ndarray:
    """Finish the hash (in place) and cut it into three channels, (3, N) float32, 0 to 1023."""
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x7FEB352D)
    hashes ^= hashes >> np.uint32(15)
    hashes *= np.uint32(0x846CA68B)
    hashes ^= hashes >> np.uint32(16)
    parts = hashes >> _SHIFTS
    parts &= _MASK
    return parts.view(np.int32).astype(np.float32)


def _blend(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    b -= a
    b *= share
    b += a
    return b
