"""A stereo rig that moves through a generated world: what video is measured on."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draws import Draws
from .base import WorldDataset, quantile
from .cameras import Pinhole, coarse_hits, frame, grid, render
from .layouts import Place
from .stereo import occluded, pair_truth
from .world import World, column

__all__ = ["WorldSequence"]

_FAR = 0.4  # how far the rig goes, in depths of the nearest things
_TURN = 0.1  # radians to both sides


class WorldSequence(WorldDataset):
    """Frames of one rig in one world, which stands still; item i is frame i.

    The rig swings to and fro, nearer and farther, looking about, and is back at its start after
    ``period`` frames. A sample holds what `WorldStereo`'s does, and ``earlier`` (2, H, W): where
    the left picture of the frame before shows the same point (x, y in pixels), or NaN.

    Args:
        length: number of frames.
        height: of a picture, pixels.
        width: of a picture, pixels.
        max_disparity: about the largest, pixels.
        period: frames of one swing.
        noise: of the pictures, standard deviation of a grey level, of 1.
        common: see `WorldDataset`; exposure stays the first frame's, and ``photometric`` decides
            about noise alone.

    Raises:
        ValueError: see `WorldDataset`; or a number of these is out of range.
    """

    def __init__(
        self,
        length: int,
        height: int,
        width: int,
        *,
        max_disparity: float = 48.0,
        period: int = 120,
        noise: float = 0.015,
        **common: Any,
    ) -> None:
        if not max_disparity > 4 or period < 4 or noise < 0:
            raise ValueError(
                f"world: max_disparity {max_disparity:g} (want more than 4), period {period} (want "
                f"4 or more), noise {noise:g} (want 0 or more)"
            )
        kind = f"sequence-{max_disparity:g}-{period}-{noise:g}"
        super().__init__(kind, ("left", "right"), length, (height, width), **common)
        self.max_disparity, self.period, self.noise = max_disparity, period, noise

    def _make(self, index: int) -> dict[str, Tensor]:
        world, baseline, exposure = self._rig
        camera = self._camera(index)
        left = render(world, camera)
        other = replace(camera, eye=camera.eye + baseline * camera.axes[0])
        generator = torch.Generator().manual_seed(Draws("frame", self.seed, index).bits() >> 1)
        pictures = [
            self._picture(colour, exposure, generator)
            for colour in (left.colour, render(world, other).colour)
        ]
        before = self._camera(index - 1)
        seen = ~occluded(world, left, camera, before.eye, torch.zeros_like(left.distance))
        return {
            "left": pictures[0],
            "right": pictures[1],
            **pair_truth(world, left, camera, baseline),
            "earlier": _seen_by(before, camera, left.distance, seen),
            **self._surfaces(left, camera.axes),
        }

    @cached_property
    def _start(self) -> tuple[Place, Pinhole, float]:
        """Where the rig swings about, and how far it goes."""
        draws = self._draws(0)

        def look(place: Place) -> Pinhole:
            focal = self.width * draws.uniform(0.7, 0.9)
            return Pinhole.centred(place.eye, frame(place.gaze), self.height, self.width, focal)

        place, camera = self._view(0, draws, look)
        distance = coarse_hits(place.world, camera).distance
        near = quantile(distance[distance.isfinite()], 0.05)
        places = np.stack([_swing(k / 64) @ camera.axes for k in range(1, 64)], axis=1)
        ways = torch.from_numpy(np.float32(_FAR * near * places))
        clear = place.world.cast(column(place.eye).expand_as(ways), ways).distance.min()
        return place, camera, _FAR * near * min(1.0, 0.5 * float(clear))

    @cached_property
    def _rig(self) -> tuple[World, float, float]:
        """The world, the rig's baseline, and its exposure."""
        place, camera, _ = self._start
        view = render(place.world, camera)
        depth = view.distance * camera.ahead()
        nearest = quantile(depth[depth.isfinite()], 0.01)
        # Nearer things come when the rig moves: a quarter is kept for them.
        baseline = 0.75 * self.max_disparity * nearest / float(camera.intrinsics[0, 0])
        return place.world, baseline, 0.85 / max(quantile(view.colour.flatten(), 0.95), 0.05)

    def _camera(self, index: int) -> Pinhole:
        place, camera, far = self._start
        eye = place.eye + far * _swing(index / self.period) @ camera.axes
        turn = 2 * math.pi * index / self.period
        aside = np.array([_TURN * math.sin(turn + 1), 0.3 * _TURN * math.sin(2 * turn), 1])
        return replace(camera, eye=eye, axes=frame(aside @ camera.axes))

    def _picture(self, colour: Tensor, exposure: float, generator: torch.Generator) -> Tensor:
        picture = (exposure * colour).clamp(0, 1) ** (1 / 2.2)
        if self.photometric:
            picture = picture + self.noise * torch.randn(picture.shape, generator=generator)
        return picture.clamp(0, 1).mul(255).round() / 255


def _swing(turns: float) -> np.ndarray:
    """A place (3,) on a closed path, about 1 from its start at most, in a camera's frame."""
    angle = 2 * math.pi * turns
    return np.array([math.sin(angle), 0.2 * math.sin(2 * angle), 0.3 * (1 - math.cos(angle))])


def _seen_by(before: Pinhole, camera: Pinhole, distance: Tensor, seen: Tensor) -> Tensor:
    """Where another camera sees each pixel's point, (2, H, W); NaN where it does not."""
    rays = camera.rays(*grid(camera.height, camera.width))
    points = column(camera.eye) + distance.flatten() * rays
    right, down, ahead = torch.from_numpy(np.float32(before.axes)) @ (points - column(before.eye))
    k = before.intrinsics
    place = torch.stack([k[0, 0] * right / ahead + k[0, 2], k[1, 1] * down / ahead + k[1, 2]])
    place = place.view(2, *distance.shape).float()
    limits = torch.tensor([before.width - 1.0, before.height - 1.0])[:, None, None]
    inside = ((place >= 0) & (place <= limits)).all(dim=0) & (ahead.view_as(seen) > 0)
    return torch.where(inside & seen, place, torch.nan)
