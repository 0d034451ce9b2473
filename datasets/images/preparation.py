"""From a photograph to what a network sees: a region of it, resized.

A region is (top, left, height, width) in whole pixels of the photograph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..files import check_choice

__all__ = ["ImagePreset"]

_RATIO = math.log(4 / 3)  # of random crops: 3:4 to 4:3
_KEPT = 0.3  # share of a box that has to be left in a crop
_USUAL: Any = None  # replaced as soon as a preset is made


@dataclass(frozen=True)
class ImagePreset:
    """How images are prepared; a trained network works with the one it was trained with.

    Mean and deviation are the network's own business: a prepared image is in [0, 1].

    Attributes:
        size: (height, width), pixels; by default the backbone's, or 224x224.
        crop: share of the shorter side that is seen in evaluation, from the middle; by default the
            backbone's, or 0.875.
        fit: ``crop`` keeps the aspect and loses what does not fit; ``stretch`` takes all of it.
        interpolation: ``bicubic`` or ``bilinear``; by default the backbone's, or ``bicubic``.
        scale: share of the area that random crops in training have, smallest and largest; (1, 1)
            takes what evaluation does.
        backbone: a network of timm, as which images are prepared where nothing else is given.
    """

    size: tuple[int, int] = _USUAL
    crop: float = _USUAL
    fit: str = "crop"
    interpolation: str = _USUAL
    scale: tuple[float, float] = (0.5, 1.0)
    backbone: str | None = None

    def __post_init__(self) -> None:
        usual = {"size": (224, 224), "crop": 0.875, "interpolation": "bicubic"}
        absent = [name for name in usual if getattr(self, name) is None]
        if absent and self.backbone is not None:
            from ...vision.timm_networks import timm_input

            usual = timm_input(self.backbone)
        for name in absent:
            object.__setattr__(self, name, usual[name])
        object.__setattr__(self, "size", tuple(self.size))
        object.__setattr__(self, "scale", tuple(self.scale))
        check_choice("fit", self.fit, ("crop", "stretch"))
        check_choice("interpolation", self.interpolation, ("bicubic", "bilinear"))
        if len(self.size) != 2 or min(self.size) < 1:
            raise ValueError(f"size {self.size}: wants (height, width), each at least 1")
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop {self.crop} must be above 0 and at most 1")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"scale {self.scale}: wants the smallest and the largest share, above 0 and up to 1"
            )

    def region(self, height: int, width: int) -> tuple[int, int, int, int]:
        """What of an image of this size is seen in evaluation."""
        if self.fit == "stretch":
            tall, wide = self.crop * height, self.crop * width
        else:
            factor = self.crop * min(height / self.size[0], width / self.size[1])
            tall, wide = factor * self.size[0], factor * self.size[1]
        tall, wide = max(1, round(tall)), max(1, round(wide))
        return (height - tall) // 2, (width - wide) // 2, tall, wide

    def random_region(
        self, height: int, width: int, generator: Generator | None
    ) -> tuple[int, int, int, int]:
        """A random crop of it, as in training."""
        if self.scale == (1, 1):
            return self.region(height, width)
        draws = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        area = (self.scale[0] + (self.scale[1] - self.scale[0]) * draws[0]) * height * width
        aspect = self.size[1] / self.size[0] if self.fit == "crop" else width / height
        aspect *= math.exp(_RATIO * (2 * draws[1] - 1))
        tall = min(height, max(1, round(math.sqrt(area / aspect))))
        wide = min(width, max(1, round(math.sqrt(area * aspect))))
        top, left = int(draws[2] * (height - tall + 1)), int(draws[3] * (width - wide + 1))
        return top, left, tall, wide

    def prepare(self, image: Tensor, region: tuple[int, int, int, int] | None = None) -> Tensor:
        """Cut a region out and resize it.

        Args:
            image: (3, H, W) in [0, 1].
            region: by default that of evaluation.

        Returns:
            `(3, *size)` float32 in [0, 1].
        """
        top, left, tall, wide = region or self.region(*image.shape[1:])
        part = image[None, :, top : top + tall, left : left + wide]
        if part.shape[2:] != self.size:
            part = F.interpolate(part, self.size, mode=self.interpolation, antialias=True)
        return part[0].clamp(0, 1)

    def move(self, boxes: Tensor, region: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
        """Bring boxes of a photograph to the prepared image.

        Args:
            boxes: (N, 4), left, top, right, bottom in pixels of the photograph.
            region: what of it is seen.

        Returns:
            The boxes cut to the prepared image, (N', 4), and which are left, (N,) bool: those of
            which 0.3 are inside.
        """
        top, left, tall, wide = region
        moved = boxes - torch.tensor([left, top, left, top], dtype=boxes.dtype)
        scale = torch.tensor([self.size[1] / wide, self.size[0] / tall] * 2, dtype=boxes.dtype)
        moved = moved * scale
        limits = torch.tensor([self.size[1], self.size[0]] * 2, dtype=boxes.dtype)
        cut = torch.minimum(moved.clamp(min=0), limits)
        inside = (cut[:, 2:] - cut[:, :2]).clamp(min=0).prod(1)
        kept = inside >= _KEPT * (moved[:, 2:] - moved[:, :2]).prod(1)
        return cut[kept], kept
