"""A data set of generated images of skin with lesions: nothing to download."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..draws import Draws
from .dataset import LabelledImages
from .lesions import KINDS, draw_lesions
from .preparation import ImagePreset

__all__ = ["GeneratedLesions"]


class GeneratedLesions(LabelledImages):
    """Map-style data set; image i depends on ``seed`` and i alone, in any order and any worker.

    The classes take turns; an image has one to three lesions of its class, and their boxes.

    Args:
        length: number of images.
        classes: how many, 2 to 6, of ``lesions.KINDS``.
        preset: how the images are prepared.
        side: of the images before that, pixels.
        seed: names the series of images.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(
        self,
        length: int,
        classes: int = 4,
        preset: ImagePreset = ImagePreset((64, 64), 1.0),  # noqa: B008 (it is frozen)
        side: int = 80,
        seed: int = 0,
    ) -> None:
        if not 2 <= classes <= len(KINDS):
            raise ValueError(f"generated lesions of {classes} classes: choose 2 to {len(KINDS)}")
        if length < 1 or side < 16:
            raise ValueError(
                f"generated lesions: length {length} and side {side} must be at least 1 and 16"
            )
        super().__init__(KINDS[:classes], preset)
        self.length, self.side, self.seed = length, side, seed

    @property
    def labels(self) -> list[int]:
        """The class of every image."""
        return [index % len(self.classes) for index in range(self.length)]

    @property
    def groups(self) -> list[str]:
        """Each image is on its own."""
        return [self._name(index) for index in range(self.length)]

    def __len__(self) -> int:
        return self.length

    def picture(self, index: int) -> dict[str, Tensor | str]:
        """See `LabelledImages.picture`.

        Raises:
            IndexError: beyond the ends, so that the data set can be iterated.
        """
        if not -self.length <= index < self.length:
            raise IndexError(f"generated lesions: index {index} of {self.length}")
        index = int(index) % self.length
        label = self.labels[index]
        rng = np.random.default_rng(Draws("lesions", self.seed, index).bits())
        image, boxes = draw_lesions(self.classes[label], self.side, rng)
        return {
            "image": torch.from_numpy(image),
            "label": torch.tensor(label),
            "name": self._name(index),
            "boxes": torch.from_numpy(boxes),
            "box_labels": torch.full((len(boxes),), label),
        }

    def _name(self, index: int) -> str:
        return f"generated-{self.seed}-{index:06d}"

    def __repr__(self) -> str:
        kinds = ", ".join(self.classes)
        return f"GeneratedLesions({self.length} of {kinds}, seed {self.seed})"
