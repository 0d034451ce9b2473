"""Cameras of generated scenes, the same on every machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..draws import Draws

__all__ = ["Rig", "look_along", "ring_of_cameras"]


@dataclass(frozen=True)
class Rig:
    """Cameras whose matrices are float32 numbers, and the rig's place in the world."""

    intrinsics: np.ndarray  # (V, 3, 3) float64
    extrinsics: np.ndarray  # (V, 4, 4) float64, world to camera
    turn: np.ndarray  # (3, 3), rig to world
    shift: np.ndarray  # (3,)

    def view(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Where a camera stands in the rig's frame, (3,), and what turns its pixels to rays there.

        That is (3, 3), of homogeneous pixels.
        """
        rotation, shift = self.extrinsics[index, :3, :3], self.extrinsics[index, :3, 3]
        origin = _product(self.turn.T, -_product(rotation.T, shift) - self.shift)
        to_rig = _product(self.turn.T, rotation.T)
        return origin, _product(to_rig, _inverse(self.intrinsics[index]))


def ring_of_cameras(
    draws: Draws,
    views: int,
    height: int,
    width: int,
    near: float,
    far: float,
    target: np.ndarray | None = None,
) -> Rig:
    """Place cameras on a ring of radius 0.15 to 0.35 ``near``, the first in its middle.

    Args:
        draws: where the random numbers come from.
        views: number of the photographs.
        height: of each, pixels.
        width: of each, pixels.
        near: depth limit.
        far: depth limit; the cameras look at the harmonic mean of the two.
        target: (3,) where in the world that place is; None: anywhere.
    """
    focal = draws.uniform(1.0, 1.4) * max(width, height)
    middle = 2 / (1 / near + 1 / far)
    turn = draws.rotation()
    shift = np.array([draws.uniform(-1, 1) * middle for _ in range(3)])
    if target is not None:
        shift = target - _product(turn, np.array([0, 0, middle]))
    phase = draws.uniform(0, 2 * math.pi)
    intrinsics, extrinsics = np.zeros((views, 3, 3)), np.zeros((views, 4, 4))
    for index in range(views):
        own = focal * draws.uniform(0.97, 1.03)
        intrinsics[index] = [
            [own, 0, (width - 1) / 2 + draws.uniform(-0.02, 0.02) * width],
            [0, own * draws.uniform(0.995, 1.005), (height - 1) / 2],
            [0, 0, 1],
        ]
        intrinsics[index, 1, 2] += draws.uniform(-0.02, 0.02) * height
        radius = draws.uniform(0.15, 0.35) * near * (index > 0)
        angle = phase + 2 * math.pi * (index + draws.uniform(-0.2, 0.2)) / max(1, views - 1)
        lift = draws.uniform(-0.04, 0.04) * near
        centre = np.array([radius * math.cos(angle), radius * math.sin(angle), lift])
        aim = np.array([draws.uniform(-0.03, 0.03) * middle for _ in range(2)] + [middle])
        looking = look_along(aim - centre, draws.uniform(-0.1, 0.1))
        rotation = _product(looking, turn.T)
        extrinsics[index, :3, :3] = rotation
        extrinsics[index, :3, 3] = -_product(rotation, _product(turn, centre) + shift)
        extrinsics[index, 3, 3] = 1
    return Rig(
        intrinsics.astype(np.float32).astype(float),
        extrinsics.astype(np.float32).astype(float),
        turn,
        shift,
    )


def look_along(direction: np.ndarray, roll: float) -> np.ndarray:
    """Return the rotation from rig to camera of a camera that looks along a direction."""
    forward = direction / math.sqrt(float((direction * direction).sum()))
    right = np.array([forward[2], 0, -forward[0]])
    right = right / math.sqrt(float((right * right).sum()))
    down = np.cross(forward, right)
    cosine, sine = math.cos(roll), math.sin(roll)
    return np.stack([cosine * right + sine * down, cosine * down - sine * right, forward])


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply small matrices in one order of summation everywhere."""
    return sum(a[:, i, None] * b[i] if b.ndim == 2 else a[:, i] * b[i] for i in range(3))


def _inverse(k: np.ndarray) -> np.ndarray:
    """Invert intrinsics without skew."""
    return np.array(
        [
            [1 / k[0, 0], 0, -k[0, 2] / k[0, 0]],
            [0, 1 / k[1, 1], -k[1, 2] / k[1, 1]],
            [0, 0, 1],
        ]
    )
