"""The camera of the generated stereo scenes: from radiance to the 8-bit picture of each view.

The views of a real scene never agree: exposure, white balance, focus and noise differ, and
highlights stay with the camera instead of the surface. `photograph` applies such differences,
mostly small, now and then large.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .scene_textures import blur

__all__ = ["photograph"]

_JPEG_LUMA = (
    "16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55 14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 "
    "62 18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92 49 64 78 87 103 121 120 101 72 92 95 "
    "98 112 100 103 99"
)


def _block_transform(images: Tensor, quality: float) -> Tensor:
    """Quantises 8x8 cosine blocks of each channel as JPEG does, (C, H, W) in [0, 1]."""
    channels, height, width = images.shape
    index = torch.arange(8.0)
    cosine = torch.cos(math.pi / 8 * (index[None] + 0.5) * index[:, None]) * 0.5
    cosine[0] *= math.sqrt(0.5)
    cosine = cosine.to(images.device)
    scale = (50 / quality if quality < 50 else 2 - quality / 50) / 255
    step = torch.tensor([float(v) for v in _JPEG_LUMA.split()], device=images.device)
    step = (step.view(8, 8) * scale).clamp_min(1 / 255)
    padded = F.pad(images[None], (0, -width % 8, 0, -height % 8), mode="replicate")[0]
    rows, columns = padded.shape[1] // 8, padded.shape[2] // 8
    blocks = padded.view(channels, rows, 8, columns, 8).transpose(2, 3)
    blocks = cosine @ (blocks - 0.5) @ cosine.T
    blocks = cosine.T @ (torch.round(blocks / step) * step) @ cosine + 0.5
    return blocks.transpose(2, 3).reshape(padded.shape)[:, :height, :width]


def photograph(
    images: Sequence[Tensor], generator: torch.Generator, lens: bool = True
) -> list[Tensor]:
    """Takes the pictures of one scene.

    Args:
        images: (3, H, W) radiance each, about [0, 1]; exposure follows the first.
        generator: CPU generator that all differences are drawn from.
        lens: whether they come through one, which blurs, darkens corners and throws back light; no
            panorama is like that.

    Returns:
        The pictures in [0, 1], in steps of 1/255.
    """
    height, width = images[0].shape[1:]
    device = images[0].device

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    differ = uniform(0, 1) ** 2
    gamma = 2 ** uniform(-0.5, 0.5)
    # Automatic exposure: a mean grey level, some clipping included.
    gain = uniform(0.25, 0.65) ** (1 / gamma) / (float(images[0].clamp(0, 1).mean()) + 0.02)
    grey, compressed = uniform(0, 1) < 0.2, uniform(0, 1) < 0.3
    focus, motion = uniform(0.0, 0.8), max(0.0, uniform(-2.0, 1.0))
    vignette, noise = max(0.0, uniform(-0.3, 0.4)), 10 ** uniform(-3.2, -1.6)
    quality, sheen = uniform(45, 95), max(0.0, uniform(-0.1, 0.12))
    coarse = max(0.0, uniform(-0.6, 1.0))
    if not lens:
        focus = motion = vignette = sheen = 0.0
    tint = 1 + 0.15 * (2 * torch.rand(3, 1, 1, generator=generator) - 1)
    y = torch.linspace(-1, 1, height, device=device).view(-1, 1)
    x = torch.linspace(-1, 1, width, device=device)
    radius = (x**2 + y**2) / 2

    pictures = []
    for image in images:
        sigma = focus * (1 + differ * uniform(-0.5, 0.5))
        image = blur(image[None], math.hypot(sigma, motion), sigma)[0]
        own = 1 + 0.12 * differ * (2 * torch.rand(3, 1, 1, generator=generator) - 1)
        exposure = min(gain, 6.0) * 2 ** (differ * uniform(-0.35, 0.35))
        image = image * (tint * own).to(device) * exposure
        falloff = 1 - vignette * (1 + 0.3 * differ * uniform(-1, 1)) * radius
        if sheen > 0:
            spots = torch.randn(1, 1, 4, 6, generator=generator).to(device)
            field = F.interpolate(spots, (height, width), mode="bilinear", align_corners=True)[0]
            falloff = falloff * (1 + sheen * field)
        image = (image * falloff + 0.03 * differ * uniform(-1, 1)).clamp(1e-4, 1.0)
        image = image ** (gamma * 2 ** (differ * uniform(-0.3, 0.3)))
        if grey:
            image = image.mean(dim=0, keepdim=True).expand(3, -1, -1)
        shape = (1 if grey else 3, height, width)
        grain = torch.randn(shape, generator=generator).to(device)
        if coarse > 0:  # what interpolates a sensor's colours and rectifies has spread it
            grain = blur(grain[None], coarse)[0]
            grain = grain / grain.std()
        image = image + noise * torch.sqrt(0.2 + image) * grain
        if compressed:
            image = _block_transform(image.contiguous(), quality)
        pictures.append(image.clamp(0, 1).mul(255).round() / 255)
    return pictures
