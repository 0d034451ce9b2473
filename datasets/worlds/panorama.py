"""Panoramas of generated worlds, made on the fly: nothing to download."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draws import Draws
from .base import WorldDataset
from .cameras import Panorama, grid, render
from .layouts import Place
from .world import column

__all__ = ["WorldPanoramas"]

_TRIES = 12
_ROOM = 0.3  # metres that the camera keeps from things


class WorldPanoramas(WorldDataset):
    """Equirectangular pictures with the distance of all that is seen (``vizoo.datasets.panorama``).

    Args:
        length: number of panoramas.
        height: of each, pixels; it is twice as wide.
        layouts: of `LAYOUTS`, which take turns.
        floating: how many things float in each world; None: none or 10 to 30, half each.
        common: see `WorldDataset`.

    Raises:
        ValueError: see `WorldDataset`.
    """

    def __init__(
        self,
        length: int,
        height: int = 256,
        *,
        layouts: Sequence[str] = ("room",),
        floating: int | None = 0,
        **common: Any,
    ) -> None:
        super().__init__(
            "panorama",
            ("image",),
            length,
            (height, 2 * height),
            layouts=layouts,
            floating=floating,
            **common,
        )

    def _make(self, index: int) -> dict[str, Tensor]:
        draws = self._draws(index)
        place = self._place(index, draws)
        eye = _standing(place, draws)
        camera = Panorama(eye, draws.uniform(0, 2 * math.pi), self.height)
        seen = render(place.world, camera)
        known = seen.distance.isfinite()
        return {
            "image": self._pictures([seen.colour], draws, lens=False)[0],
            "depth": torch.where(known, seen.distance, 0)[None],
            "valid": known[None],
            **self._surfaces(seen, camera.axes),
        }


def _standing(place: Place, draws: Draws) -> np.ndarray:
    """Where nothing is near: the best of some places."""
    best, widest = place.eye, -1.0
    for _ in range(_TRIES):
        eye = place.room[0] + draws.uniforms(3) * (place.room[1] - place.room[0])
        rays = Panorama(eye, 0.0, 8).rays(*grid(8, 16))
        clear = float(place.world.cast(column(eye), rays).distance.min())
        if clear > widest:
            best, widest = eye, clear
        if clear > _ROOM:
            break
    return best
