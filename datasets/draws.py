"""Random numbers of generators, the same on every machine."""

from __future__ import annotations

import hashlib
import math
from typing import TypeVar

import numpy as np

__all__ = ["Draws", "rotation_matrix", "splitmix64"]

_STEP = 0x9E3779B97F4A7C15
_BITS = 2**64 - 1
_State = TypeVar("_State", int, np.ndarray)


def splitmix64(state: _State) -> _State:
    """Return 64 bits of a counter's state, mixed so that neighbours have nothing in common.

    Of an array of states (uint64) those of each.
    """
    mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _BITS
    return mixed ^ (mixed >> 31)


def rotation_matrix(w: float, x: float, y: float, z: float) -> np.ndarray:
    """Return the rotation (3, 3) of a quaternion of length 1."""
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


class Draws:
    """A stream of random numbers that depends on a key alone.

    Args:
        key: numbers and words.
    """

    def __init__(self, *key: int | str) -> None:
        # Whole numbers of NumPy's print differently from Python's.
        plain = tuple(part if isinstance(part, str) else int(part) for part in key)
        digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
        self.state = int.from_bytes(digest, "little")

    def bits(self) -> int:
        """Return 64 random bits."""
        self.state = (self.state + _STEP) & _BITS
        return splitmix64(self.state)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number between two others."""
        return low + (high - low) * (self.bits() >> 11) / 2**53

    def uniforms(self, *shape: int) -> np.ndarray:
        """Return numbers in [0, 1): those that as many calls of `uniform` would give."""
        count = math.prod(shape)
        states = np.arange(1, count + 1, dtype=np.uint64) * _STEP + self.state
        self.state = (self.state + count * _STEP) & _BITS
        return ((splitmix64(states) >> 11) / 2.0**53).reshape(shape)

    def rotation(self) -> np.ndarray:
        """Return a rotation, all equally likely, (3, 3)."""
        a, b, c = self.uniform(), 2 * math.pi * self.uniform(), 2 * math.pi * self.uniform()
        near, far = math.sqrt(1 - a), math.sqrt(a)
        x, y = near * math.sin(b), near * math.cos(b)
        return rotation_matrix(far * math.cos(c), x, y, far * math.sin(c))
