"""Augmentation of panoramas, called as ``vizoo.datasets.stereo.transforms``.

The sphere is turned and mirrored, colours and light are changed.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import functional as F

__all__ = ["SphereAugmentation"]


class SphereAugmentation:
    """Turn the sphere by any angle; mirror it half of the time, and change its colours as often.

    Colours change as in UniFuse (Jiang et al., RA-L 2021): brightness, contrast and saturation by
    factors of 0.8 to 1.2, hue by up to 0.1 of the circle. Distances from the camera stay as they
    are, and nothing is turned here: the sample gets a ``rotation``, by which the network's
    directions are turned before it looks.

    Args:
        tilt: the largest angle in degrees by which the vertical axis is tilted.
        strong: change light and colours much more instead, and always: for generated pictures,
            whose light a network is not to learn.
    """

    def __init__(self, tilt: float = 0.0, strong: bool = False) -> None:
        if not 0 <= tilt <= 180:
            raise ValueError(f"tilt {tilt} must be 0 to 180 degrees")
        self.tilt = tilt
        self.strong = strong

    def __call__(self, sample: dict, generator: Generator | None = None) -> dict:
        """The sample in other colours, with a `rotation` (3, 3) of directions."""
        draws = torch.rand(9, generator=generator, dtype=torch.float64).tolist()
        yaw, towards = (2 * math.pi * draw for draw in draws[:2])
        tilt = math.radians(self.tilt) * draws[2]
        rotation = _sphere_rotation(yaw, tilt, towards, draws[3] < 0.5)
        image = sample["image"]
        if self.strong:
            image = _in_other_light(image, generator)
        elif draws[4] < 0.5:
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


def _in_other_light(image: Tensor, generator: Generator | None) -> Tensor:
    """An image (3, H, W) as other lamps and another camera might show it.

    Other colours or none, another gamma, light that comes more from one side, from above or from
    below, a tint, another exposure and contrast, at times less sharp and with noise.
    """
    draws = torch.rand(11, generator=generator, dtype=torch.float64).tolist()
    normal = torch.randn(9, generator=generator, dtype=torch.float64)
    if draws[0] < 0.15:
        image = F.rgb_to_grayscale(image, 3)
    elif draws[0] < 0.65:
        image = F.adjust_saturation(image, 0.3 + 1.3 * draws[1])
        image = F.adjust_hue(image, (draws[2] - 0.5) * (1.0 if draws[3] < 0.5 else 0.1))
    image = image.clamp(1e-4, 1) ** math.exp(0.35 * normal[0])
    tint = (0.12 * normal[6:9]).exp().to(image.dtype)[:, None, None]
    image = image * tint * _light(image.shape[1], image.shape[2], normal[1:6])
    image = image / image.mean().clamp(min=0.02) * (0.25 + 0.4 * draws[4])
    if draws[5] < 0.5:
        image = image.mean() + (image - image.mean()) * (0.5 + draws[6])
    if draws[7] < 0.3:
        image = _blurred(image, 2 if draws[8] < 0.5 else 3)
    if draws[9] < 0.4:
        noise = torch.randn(image.shape, generator=generator, dtype=image.dtype)
        image = image + 0.06 * draws[10] * noise
    return image.clamp(0, 1)


def _blurred(image: Tensor, factor: int) -> Tensor:
    """An image (3, H, W) without detail below so many pixels, around which it closes."""
    height, width = image.shape[1:]
    margin = min(2 * factor, width)
    image = torch.cat((image[..., -margin:], image, image[..., :margin]), -1)[None]
    size = image.shape[2:]
    smaller = [max(1, round(length / factor)) for length in size]
    image = interpolate(image, smaller, mode="bilinear", antialias=True)
    return interpolate(image, size, mode="bilinear")[0, ..., margin : margin + width]


def _light(height: int, width: int, strengths: Tensor) -> Tensor:
    """Factors (H, W) that change smoothly over the sphere, by five standard normal draws."""
    latitude = (0.5 - (torch.arange(height) + 0.5) / height) * math.pi
    longitude = ((torch.arange(width) + 0.5) / width - 0.5) * 2 * math.pi
    x = latitude.cos()[:, None] * longitude.sin()
    y = latitude.sin()[:, None].expand(height, width)
    z = latitude.cos()[:, None] * longitude.cos()
    waves = torch.stack([x, y, z, 2 * x * z, 2 * y**2 - 1])
    deviations = torch.tensor([0.3, 0.6, 0.3, 0.3, 0.3])  # lamps hang above
    return torch.einsum("c,chw->hw", (deviations * strengths).float(), waves).exp()


def _about_vertical(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], dtype=torch.float64)


def _about_right(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[1, 0, 0], [0, c, -s], [0, s, c]], dtype=torch.float64)
