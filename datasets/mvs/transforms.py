"""Augmentations on multi-view samples, called as those of ``vizoo.datasets.stereo.transforms``."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from ...vision.windows import brightness
from ..stereo.transforms import room_for_crop
from .cameras import crop_intrinsics

__all__ = ["ColourJitter", "PoseError", "RandomCrop"]


class ColourJitter:
    """Change brightness and contrast in random order, each photograph by draws of its own.

    Brightness multiplies by a factor from U(1 - b, 1 + b); contrast blends with the mean grey by
    one from U(1 - c, 1 + c). Results are clipped to [0, 1] after each.

    Args:
        brightness: bound b of the change; 0.5 is what published training code offers (and leaves
            off).
        contrast: bound c of the change.
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
            raise ValueError(f"a crop of {height}x{width} pixels is empty")
        self.height, self.width = height, width

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample cut out of one place in all views, their intrinsics moved with it."""
        height, width = room_for_crop(sample, "images", self.height, self.width)
        y = int(torch.randint(height - self.height + 1, (), generator=generator))
        x = int(torch.randint(width - self.width + 1, (), generator=generator))
        cut = (..., slice(y, y + self.height), slice(x, x + self.width))
        maps = {key: sample[key][cut].contiguous() for key in ("images", "depth", "valid")}
        return {**sample, **maps, "intrinsics": crop_intrinsics(sample["intrinsics"], x, y)}


class PoseError:
    """Put the cameras of sources a little off, as poses found by tracking are.

    A sample's errors are normal draws, times a strength from U(0, 1) that all its sources share.

    Args:
        degrees: deviation of each component by which a camera is turned.
        share: deviation of each component by which it is moved, as a share of its distance from
            the reference.
    """

    def __init__(self, degrees: float, share: float) -> None:
        if not (0 <= degrees <= 10 and 0 <= share <= 1):
            raise ValueError(
                f"pose errors of {degrees:g} degrees and {share:g} of the distance: want 0 to 10 "
                "and 0 to 1"
            )
        self.degrees, self.share = degrees, share

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample with other extrinsics (V, 4, 4); those of the reference, the first, stay."""
        poses = sample["extrinsics"].double()
        strength = float(torch.rand((), generator=generator))
        turns, moves = strength * torch.randn(2, len(poses), 3, 1, generator=generator).double()
        rotation, shift = poses[:, :3, :3], poses[:, :3, 3:]
        centres = -rotation.mT @ shift
        distance = (centres - centres[:1]).norm(dim=1, keepdim=True)
        x, y, z = (math.radians(self.degrees) * turns[..., 0]).unbind(1)
        zero = torch.zeros_like(x)
        cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
        rotation = torch.linalg.matrix_exp(cross) @ rotation
        off = poses.clone()
        off[:, :3, :3] = rotation
        off[:, :3, 3:] = -rotation @ (centres + self.share * distance * moves)
        off[0] = poses[0]
        return {**sample, "extrinsics": off.float()}
