"""Augmentation of images through torchvision, called as ``vizoo.datasets.stereo.transforms``.

Mirrors, RandAugment, TrivialAugment.
"""

from __future__ import annotations

import torch
from torch import Generator
from torchvision import tv_tensors
from torchvision.transforms import v2

from ..files import check_choice

__all__ = ["NAMES", "ImageAugmentation"]

#: What `ImageAugmentation` knows.
NAMES = ("mirror", "flips", "colour", "randaugment", "trivialaugment")

_SEEDS = 1 << 31


class ImageAugmentation:
    """Mirror an image along both axes half of the time each, and more by name; boxes follow.

    Args:
        name: ``mirror`` from left to right alone, for images that have an upper side; ``flips``
            for mirrors alone; ``colour`` also changes brightness, contrast and
            saturation by factors of 0.7 to 1.3 and hue by up to 0.03 of the circle;
            ``randaugment`` adds two operations of RandAugment (Cubuk et al., CVPRW 2020) instead,
            ``trivialaugment`` one of TrivialAugment (Müller and Hutter, ICCV 2021).

    Raises:
        ValueError: an unknown name.
    """

    def __init__(self, name: str = "colour") -> None:
        check_choice("augmentation", name, NAMES)
        more = {
            "colour": v2.ColorJitter(0.3, 0.3, 0.3, 0.03),
            "randaugment": v2.RandAugment(),
            "trivialaugment": v2.TrivialAugmentWide(),
        }
        flips = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
        flips = flips[:1] if name == "mirror" else flips
        self.name, self.flips = name, v2.Compose(flips)
        self.colours = more.get(name, v2.Identity())

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample with its image changed, drawn by `generator`; boxes move with it."""
        if self.name.endswith("augment") and "boxes" in sample:
            raise ValueError(
                f"augmentation {self.name!r} moves what an image shows, and boxes could not "
                "follow: choose flips or colour"
            )
        with torch.random.fork_rng(devices=[], enabled=generator is not None):
            if generator is not None:
                torch.manual_seed(int(torch.randint(_SEEDS, (), generator=generator)))
            moved: dict[str, torch.Tensor] = {"image": tv_tensors.Image(sample["image"])}
            if "boxes" in sample:
                moved["boxes"] = tv_tensors.BoundingBoxes(
                    sample["boxes"], format="XYXY", canvas_size=tuple(sample["image"].shape[1:])
                )
            moved = self.flips(moved)
            image = moved["image"]
            if self.name.endswith("augment"):  # some of their operations are for 8 bits
                image = v2.functional.to_dtype(image, torch.uint8, scale=True)
                image = v2.functional.to_dtype(self.colours(image), torch.float32, scale=True)
            else:
                image = self.colours(image)
            moved["image"] = image.contiguous()
        return {**sample, **{key: value.as_subclass(torch.Tensor) for key, value in moved.items()}}
