"""A data set of generated rooms, made on the fly: nothing to download."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache import MadeDataset, SampleCache
from ..draws import Draws
from .rooms import ROOMS_VERSION, Room, furnished_room

__all__ = ["GeneratedRooms"]


class GeneratedRooms(MadeDataset):
    """Map-style data set; item i depends on ``seed`` and i alone, in any order and any worker.

    A different seed gives different rooms, so training, validation and test sets of one seed each
    never meet. Samples are as ``vizoo.datasets.panorama.base`` says; all depth is known.

    Args:
        length: number of rooms.
        height: of the panoramas, pixels; they are twice as wide.
        seed: names the series of rooms.
        supersample: rays along each side of a pixel whose colours are averaged.
        cache: folder that keeps the samples (8 bytes a pixel), so that later epochs read what the
            first one made. None: every sample is made anew.

    Raises:
        ValueError: a number is below 1.
    """

    has_truth = True

    def __init__(
        self,
        length: int,
        height: int = 128,
        seed: int = 0,
        supersample: int = 2,
        cache: str | None = None,
    ) -> None:
        if min(length, height, supersample) < 1:
            raise ValueError(
                f"generated rooms: length {length}, height {height} and supersample {supersample} "
                "must be at least 1"
            )
        self.length, self.height, self.seed, self.supersample = length, height, seed, supersample
        name = f"rooms{ROOMS_VERSION}-{seed}-{height}-{supersample}"
        self.cache = SampleCache(cache, name, ["image"])

    def room(self, index: int) -> Room:
        """The room of a sample, to cast other rays into."""
        return furnished_room(Draws("item", self.seed, index).bits())

    def _make(self, index: int) -> dict[str, Tensor]:
        picture, depth = self.room(index).panorama(self.height, 2 * self.height, self.supersample)
        return {
            "image": torch.from_numpy(picture).permute(2, 0, 1).float() / 255,
            "depth": torch.from_numpy(depth)[None],
            "valid": torch.ones(1, *depth.shape, dtype=torch.bool),
        }

    def __repr__(self) -> str:
        size = f"{self.height}x{2 * self.height}"
        return f"GeneratedRooms({self.length} of {size}, seed {self.seed})"
