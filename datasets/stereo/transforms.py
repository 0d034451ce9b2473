"""Augmentations of the published stereo recipes, on sample dictionaries of tensors.

A transform is called as ``transform(sample, generator=None)`` and returns a new dictionary; the
tensors it was given stay as they are. Randomness comes from the generator alone (without one, from
PyTorch's global state), so the same generator seed gives the same sample. Every entry of three
dimensions is an image or a map and is cropped, flipped and resized with the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...vision.windows import brightness
from ..files import check_choice

__all__ = [
    "ColourJitter",
    "Compose",
    "RandomCrop",
    "RandomErase",
    "RandomScale",
    "RandomVerticalFlip",
    "recipe",
    "resize",
    "room_for_crop",
]

# Principal components of the colours of ImageNet (Krizhevsky et al., 2012).
_EIGENVALUES = torch.tensor([0.2175, 0.0188, 0.0045])
_EIGENVECTORS = torch.tensor(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)


class Compose:
    """Transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable]) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample after all transforms, in order."""
        for transform in self.transforms:
            sample = transform(sample, generator)
        return sample


@dataclass(eq=False)
class RandomCrop:
    """Cut a window of fixed size at a random place.

    Args:
        height: of the window, pixels.
        width: of the window, pixels.
        top: the window's top edge lies at least this share of the image's height down (as far as
            the window's height lets it). 0.25 is the KITTI recipe, whose upper rows have no truth.

    Raises:
        ValueError: the image is smaller than the window.
    """

    height: int
    width: int
    top: float = 0.0

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample cut out of one place in both images."""
        height, width = room_for_crop(sample, "left", self.height, self.width)
        last = height - self.height
        first = min(int(height * self.top), last)
        y = _integer(first, last, generator)
        x = _integer(0, width - self.width, generator)
        return _map(sample, lambda image: image[:, y : y + self.height, x : x + self.width])


@dataclass(eq=False)
class RandomVerticalFlip:
    """Turn both images and the maps upside down; disparities keep their values.

    Args:
        probability: of a flip.
    """

    probability: float = 0.5

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample upside down, or as it is."""
        if _uniform(0, 1, generator) >= self.probability:
            return sample
        return _map(sample, lambda image: image.flip(1))


@dataclass(eq=False)
class ColourJitter:
    """Lower brightness, contrast and saturation in random order, then add PCA lighting noise.

    Each of the three blends the image by a share drawn from U(0, its argument): with black, with
    its mean grey, with its own grey version. Lighting adds the principal colour directions of
    ImageNet, times their eigenvalues, times normal draws. Results are clipped to [0, 1].

    Args:
        brightness: the largest share of black.
        contrast: the largest share of the mean grey.
        saturation: the largest share of the grey version.
        lighting: standard deviation of the draws.
        asymmetric: probability that left and right get draws of their own, else they share one.
            1 is the published FADNet recipe.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    lighting: float = 0.1
    asymmetric: float = 1.0

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample with other colours; the two images' differ at times."""
        apart = _uniform(0, 1, generator) < self.asymmetric
        left = self._draw(generator)
        right = self._draw(generator) if apart else left
        return {
            **sample,
            "left": self._apply(sample["left"], *left),
            "right": self._apply(sample["right"], *right),
        }

    def _draw(self, generator: Generator | None) -> tuple[list[int], list[float], Tensor]:
        order = torch.randperm(3, generator=generator).tolist()
        largest = (self.brightness, self.contrast, self.saturation)
        shares = [_uniform(0, most, generator) for most in largest]
        return order, shares, torch.randn(3, generator=generator) * self.lighting

    @staticmethod
    def _apply(image: Tensor, order: list[int], shares: list[float], draws: Tensor) -> Tensor:
        for kind in order:
            if kind == 0:
                image = image * (1 - shares[0])
                continue
            grey = brightness(image)
            target = grey.mean() if kind == 1 else grey
            image = image + shares[kind] * (target - image)
        light = _EIGENVECTORS @ (draws * _EIGENVALUES)
        return (image + light.view(3, 1, 1)).clamp(0, 1)


@dataclass(eq=False)
class RandomErase:
    """Fill one or two rectangles of the right image with its mean colour, as if hidden there.

    Args:
        probability: of erasing at all.
        smallest: least side, pixels.
        largest: greatest side, pixels. The part outside the image is cut off.
    """

    probability: float = 0.5
    smallest: int = 50
    largest: int = 100

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample, at times with rectangles of the right image in its mean colour."""
        if _uniform(0, 1, generator) >= self.probability:
            return sample
        right = sample["right"].clone()
        colour = right.mean(dim=(1, 2)).view(3, 1, 1)
        for _ in range(_integer(1, 2, generator)):
            y = _integer(0, right.shape[1] - 1, generator)
            x = _integer(0, right.shape[2] - 1, generator)
            height = _integer(self.smallest, self.largest, generator)
            width = _integer(self.smallest, self.largest, generator)
            right[:, y : y + height, x : x + width] = colour
        return {**sample, "right": right}


@dataclass(eq=False)
class RandomScale:
    """Resize by a random factor 2^u, disparities with it.

    Args:
        low: least value of u.
        high: greatest value of u.
        stretch: width and height also get factors 2^U(-stretch, stretch) of their own.
        probability: of resizing at all.
        height: the result has at least these rows, so that a crop fits.
        width: the result has at least these columns.
    """

    low: float = -0.2
    high: float = 0.5
    stretch: float = 0.0
    probability: float = 1.0
    height: int = 1
    width: int = 1

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"the least scale 2^{self.low} is above the greatest 2^{self.high}")

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample enlarged or reduced at random, disparities with it."""
        height, width = sample["left"].shape[1:]
        least_y, least_x = self.height / height, self.width / width
        if _uniform(0, 1, generator) < self.probability:
            scale = 2 ** _uniform(self.low, self.high, generator)
            scale_y = scale * 2 ** _uniform(-self.stretch, self.stretch, generator)
            scale_x = scale * 2 ** _uniform(-self.stretch, self.stretch, generator)
        else:
            scale_y = scale_x = 1.0
        grow = max(1.0, least_y / scale_y, least_x / scale_x)
        scale_y, scale_x = scale_y * grow, scale_x * grow
        return resize(
            sample,
            max(self.height, math.floor(height * scale_y + 0.5)),
            max(self.width, math.floor(width * scale_x + 0.5)),
        )


def resize(sample: dict, height: int, width: int) -> dict:
    """Resize a sample.

    Images are resized bilinearly (with a low-pass filter where they shrink). A disparity is
    interpolated where its neighbours are valid and agree, and taken from the nearest pixel
    elsewhere, so that no value arises between a foreground and its background.

    Args:
        sample: a stereo sample.
        height: rows of the result.
        width: columns of the result; disparities are multiplied by its ratio to the old width.

    Returns:
        The resized sample.
    """
    old_height, old_width = sample["left"].shape[1:]
    if (old_height, old_width) == (height, width):
        return sample
    size = (height, width)
    out = dict(sample)
    for key, value in sample.items():
        if key in ("left", "right"):
            resized = F.interpolate(value[None], size, mode="bilinear", antialias=True)
            out[key] = resized[0].clamp(0, 1)
        elif _is_map(value):
            resized = F.interpolate(value[None].float(), size, mode="nearest-exact")
            out[key] = resized[0].to(value.dtype)
    if "disparity" in sample:
        near = out["disparity"]
        smooth = F.interpolate(sample["disparity"][None], size, mode="bilinear")[0]
        known = F.interpolate(sample["valid"][None].float(), size, mode="bilinear")[0] > 0.999
        agree = known & ((smooth - near).abs() < 0.5)
        out["disparity"] = torch.where(agree, smooth, near) * (width / old_width)
    return out


def _strong(height: int, width: int, apart: float = 0.5, erased: float = 0.5) -> Compose:
    scale = RandomScale(-0.2, 0.4, stretch=0.1, probability=0.8, height=height, width=width)
    erase = RandomErase(erased, smallest=max(1, width // 14), largest=max(1, width // 7))
    crop, flip = RandomCrop(height, width), RandomVerticalFlip()
    return Compose([scale, crop, flip, ColourJitter(asymmetric=apart), erase])


#: Recipes by name: each makes the augmentation of a crop of (height, width).
_RECIPES: dict[str, Callable[[int, int], Callable]] = {
    "crop": RandomCrop,
    "fadnet": lambda height, width: Compose([ColourJitter(), RandomCrop(height, width)]),
    "kitti": lambda height, width: RandomCrop(height, width, top=0.25),
    "mild": lambda height, width: _strong(height, width, apart=0.15, erased=0.1),
    "strong": _strong,
}


def recipe(name: str, height: int, width: int) -> Callable | None:
    """Return the augmentation of a published recipe.

    Args:
        name: ``crop`` (a random crop and nothing else), ``fadnet`` (Scene Flow, Middlebury, ETH3D:
            colours drawn apart for left and right, then a crop), ``kitti`` (a crop from the lower
            three quarters, no colour change), ``strong`` (scale, crop, vertical flip, colour,
            erasing on the right image), ``mild`` (the same with fewer faults between the views) or
            ``none``.
        height: of the crop.
        width: of the crop.

    Raises:
        ValueError: there is no recipe of that name, or the crop is empty.
    """
    check_choice("augmentation", name, (*_RECIPES, "none"))
    if name == "none":
        return None
    if height < 1 or width < 1:
        raise ValueError(f"a crop of {height}x{width} pixels is empty")
    return _RECIPES[name](height, width)


def room_for_crop(sample: dict, key: str, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of a sample's image, by its key, which holds such a crop.

    Raises:
        ValueError: it is smaller.
    """
    rows, columns = sample[key].shape[-2:]
    if rows < height or columns < width:
        raise ValueError(
            f"{sample.get('name', 'sample')}: {rows}x{columns} pixels are too few for a crop of "
            f"{height}x{width} (height x width); make the crop smaller"
        )
    return rows, columns


def _is_map(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3


def _map(sample: dict, function: Callable[[Tensor], Tensor]) -> dict:
    return {
        key: function(value).contiguous() if _is_map(value) else value
        for key, value in sample.items()
    }


def _uniform(low: float, high: float, generator: Generator | None) -> float:
    return low + (high - low) * torch.rand((), generator=generator).item()


def _integer(low: int, high: int, generator: Generator | None) -> int:
    """Draw from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))
