"""Augmentations on multi-view samples, called as those of ``vizoo.datasets.stereo.transforms``."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...vision.windows import brightness
from ..stereo.transforms import room_for_crop
from .cameras import crop_intrinsics

__all__ = ["ColourJitter", "RandomCrop"]


class ColourJitter:
    """Change brightness and contrast in random order, each photograph by draws of its own.

    Brightness multiplies by a factor from U(1 - b, 1 + b); contrast blends with the mean grey by
    one from U(1 - c, 1 + c). Results are clipped to [0, 1] after each.

    Args:
        brightness: b; 0.5 is what published training code offers (and leaves off).
        contrast: c.
    """

    def __init__(self, brightness: float = 0.5, contrast: float = 0.5) -> None:
        if not (0 <= brightness <= 1 and 0 <= contrast <= 1):
            raise ValueError(f"brightness {brightness} and contrast {contrast}: want 0 to 1")
        self.brightness, self.contrast = brightness, contrast

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample with the colours of each of its images (V, 3, H, W) changed on their own."""
        images = [self._apply(image, generator) for image in sample["images"]]
        return {**sample, "images": torch.stack(images)}

    def _apply(self, image: Tensor, generator: Generator | None) -> Tensor:
        draws = torch.rand(3, generator=generator).tolist()
        factor = 1 + self.brightness * (2 * draws[0] - 1)
        contrast = 1 + self.contrast * (2 * draws[1] - 1)
        for kind in "bc" if draws[2] < 0.5 else "cb":
            if kind == "b":
                image = image * factor
            else:
                grey = brightness(image).mean()
                image = grey + contrast * (image - grey)
            image = image.clamp(0, 1)
        return image


class RandomCrop:
    """Cut one window out of all photographs and the depth; the intrinsics follow.

    Args:
        height: of the window, pixels.
        width: of the window, pixels.
    """

    def __init__(self, height: int, width: int) -> None:
        if height < 1 or width < 1:
            raise ValueError(f"a crop of {width}x{height} pixels is empty")
        self.height, self.width = height, width

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample cut out of one place in all views, their intrinsics moved with it."""
        height, width = room_for_crop(sample, "images", self.height, self.width)
        y = int(torch.randint(height - self.height + 1, (), generator=generator))
        x = int(torch.randint(width - self.width + 1, (), generator=generator))
        cut = (..., slice(y, y + self.height), slice(x, x + self.width))
        maps = {key: sample[key][cut].contiguous() for key in ("images", "depth", "valid")}
        return {**sample, **maps, "intrinsics": crop_intrinsics(sample["intrinsics"], x, y)}
