"""Augmentation of panoramas, called as ``vizoo.datasets.stereo.transforms``.

The sphere is turned and mirrored, colours are changed.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torchvision.transforms.v2 import functional as F

__all__ = ["SphereAugmentation"]


class SphereAugmentation:
    """Turn the sphere by any angle; mirror it half of the time, and change its colours as often.

    Colours change as in UniFuse (Jiang et al., RA-L 2021): brightness, contrast and saturation by
    factors of 0.8 to 1.2, hue by up to 0.1 of the circle. Distances from the camera stay as they
    are, and nothing is resampled: the sample gets a ``rotation``, by which the network's directions
    are turned before it looks.

    Args:
        tilt: the largest angle in degrees by which the vertical axis is tilted.
    """

    def __init__(self, tilt: float = 0.0) -> None:
        if not 0 <= tilt <= 180:
            raise ValueError(f"tilt {tilt} must be 0 to 180 degrees")
        self.tilt = tilt

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample in other colours, with a `rotation` (3, 3) of directions."""
        draws = torch.rand(9, generator=generator, dtype=torch.float64).tolist()
        yaw, towards = (2 * math.pi * draw for draw in draws[:2])
        tilt = math.radians(self.tilt) * draws[2]
        rotation = _sphere_rotation(yaw, tilt, towards, draws[3] < 0.5)
        image = sample["image"]
        if draws[4] < 0.5:
            brightness, contrast, saturation = (0.8 + 0.4 * draw for draw in draws[5:8])
            image = F.adjust_contrast(F.adjust_brightness(image, brightness), contrast)
            image = F.adjust_hue(F.adjust_saturation(image, saturation), 0.2 * draws[8] - 0.1)
        return {**sample, "image": image, "rotation": rotation.float()}


def _sphere_rotation(
    yaw: float, tilt: float = 0.0, towards: float = 0.0, mirrored: bool = False
) -> Tensor:
    """An orthogonal matrix (3, 3) float64 of the sphere, x right, y up, z forward.

    The yaw is from forward to the right; the vertical then leans over by the tilt, towards an angle
    as the yaw; mirrored, left and right are exchanged first.
    """
    turned = _about_vertical(towards) @ _about_right(tilt) @ _about_vertical(yaw - towards)
    return turned * torch.tensor([-1.0 if mirrored else 1.0, 1, 1], dtype=torch.float64)


def _about_vertical(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], dtype=torch.float64)


def _about_right(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[1, 0, 0], [0, c, -s], [0, s, c]], dtype=torch.float64)
