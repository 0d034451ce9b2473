"""Texture canvases that the generated stereo scenes are painted with.

A scene needs some thirty textures and may cost only a few hundredths of a second, so textures are
not synthesised for each scene: a fixed bank of large canvases is built once per process and
device, and a layer looks at one or two of them through its own random similarity transform, with
its own colours and contrast. The canvases have the statistics of photographs in mind: noise with
a 1/f spectrum (Field, 1987), overlapping leaves whose sizes follow a power law (Lee, Mumford and
Huang, 2001), and man-made patterns (stripes, bricks, checkers, dots, lines of writing).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["SIZE", "WAVELENGTH", "TextureBank", "blur", "texture_bank"]

SIZE = 512
"""Side of a canvas in texels."""
WAVELENGTH = 16.0
"""Wavelength in texels of the band-limited noise that shapes masks."""


class TextureBank(NamedTuple):
    """Canvases of zero mean and unit deviation, clamped to [-2.5, 2.5]."""

    colour: Tensor  #: (N, 3, SIZE, SIZE)
    grey: Tensor  #: (N, 1, SIZE, SIZE), the channel means of ``colour``, rescaled
    #: (M, 1, SIZE, SIZE), noise of one wavelength (`WAVELENGTH`), for masks and shadows
    smooth: Tensor


def blur(images: Tensor, sigma_x: float, sigma_y: float | None = None) -> Tensor:
    """Gaussian blur of (B, C, H, W) images, replicated at the border; sigmas in pixels."""
    for axis, sigma in ((3, sigma_x), (2, sigma_x if sigma_y is None else sigma_y)):
        if sigma < 0.15:
            continue
        radius = max(1, math.ceil(2.5 * sigma))
        taps = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
        pad = (radius, radius, 0, 0) if axis == 3 else (0, 0, radius, radius)
        padded = F.pad(images, pad, mode="replicate")
        # Shifted sums: several times faster on the CPU than a grouped convolution.
        images = torch.zeros_like(images)
        for k, tap in enumerate(taps):
            shifted = padded.narrow(axis, k, images.shape[axis])
            images.add_(shifted, alpha=tap / sum(taps))
    return images


def _frequencies(stretch: float = 1.0, angle: float = 0.0) -> Tensor:
    """Radial frequency (SIZE, SIZE // 2 + 1) in cycles per canvas, stretched along an angle."""
    fy = torch.fft.fftfreq(SIZE).view(-1, 1) * SIZE
    fx = torch.fft.rfftfreq(SIZE).view(1, -1) * SIZE
    u = math.cos(angle) * fx + math.sin(angle) * fy
    v = -math.sin(angle) * fx + math.cos(angle) * fy
    return torch.sqrt(u**2 * stretch + v**2 / stretch)


def _spectral_noise(amplitude: Tensor, channels: int, generator: torch.Generator) -> Tensor:
    """Periodic Gaussian noise (channels, SIZE, SIZE) of unit deviation with a given spectrum."""
    white = torch.randn(channels, SIZE, SIZE, generator=generator)
    noise = torch.fft.irfft2(torch.fft.rfft2(white) * amplitude, s=(SIZE, SIZE))
    return noise / noise.std(dim=(1, 2), keepdim=True)


def _power_noise(generator: torch.Generator, exponent: float, stretch: float = 1.0) -> Tensor:
    angle = 0.0 if stretch == 1.0 else math.pi / 2
    frequency = _frequencies(stretch, angle).clamp_min(4.0)
    luminance, *chroma = _spectral_noise(frequency**-exponent, 4, generator)
    return luminance + 0.35 * torch.stack(chroma)


def _leaves(generator: torch.Generator, smallest: float, norm: int) -> Tensor:
    """Dead leaves: discs (norm 2), diamonds (1) or squares (0), radii with density r^-3."""
    largest = 90.0
    mean_area = 2 * math.pi * math.log(largest / smallest) * smallest**2
    count = int(3.5 * SIZE**2 / mean_area)
    uniform = torch.rand(count, generator=generator)
    radii = (smallest**-2 - uniform * (smallest**-2 - largest**-2)) ** -0.5
    centres = torch.rand(count, 2, generator=generator) * SIZE
    # Not tensors: there are thousands of leaves, most so small that a tensor's overhead is all.
    cover = np.zeros((SIZE, SIZE), np.int64)
    line = np.arange(SIZE, dtype=np.float32)
    for k, ((cx, cy), radius) in enumerate(zip(centres.tolist(), radii.tolist(), strict=True)):
        top, left = max(0, int(cy - radius)), max(0, int(cx - radius))
        bottom, right = min(SIZE, int(cy + radius) + 1), min(SIZE, int(cx + radius) + 1)
        patch = cover[top:bottom, left:right]
        if norm == 0:
            patch[:] = k
            continue
        dy, dx = line[top:bottom, None] - cy, line[None, left:right] - cx
        inside = abs(dx) + abs(dy) < radius if norm == 1 else dx * dx + dy * dy < radius**2
        patch[inside] = k
    owner = torch.from_numpy(cover)
    palette = torch.randn(count, 1, generator=generator)
    palette = palette + 0.4 * torch.randn(count, 3, generator=generator)
    grain = _power_noise(generator, 1.0) * 0.7 * torch.rand(count, generator=generator)[owner]
    return palette[owner].permute(2, 0, 1) + grain


def _patterns(generator: torch.Generator) -> list[Tensor]:
    """Regular man-made patterns, each (3, SIZE, SIZE) and periodic in the canvas."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    wave = 2 * math.pi / SIZE
    row = y // 16
    brick = (x + 16 * (row % 2)) // 32
    tone = torch.randn(SIZE // 16, SIZE // 32 + 1, 3, generator=generator) * 0.35
    joint = ((y % 16) < 2) | (((x + 16 * (row % 2)) % 32) < 2)
    bricks = torch.where(joint, -1.5, tone[row, brick].permute(2, 0, 1))
    checkers = ((x // 16 + y // 16) % 2).float().expand(3, -1, -1)
    corrugated = torch.sin(wave * 32 * x).expand(3, -1, -1)
    stripes = ((x % 32) < 12).float() + 0.7 * ((x % 64) < 8).float()
    tiles = torch.where(((x % 32) < 2) | ((y % 32) < 2), -1.0, 0.6).expand(3, -1, -1)
    dots = ((x % 24 - 12) ** 2 + (y % 24 - 12) ** 2 < 40).float().expand(3, -1, -1)
    widths = torch.randint(0, 2, (SIZE // 16, SIZE // 3 + 1), generator=generator).float()
    writing = widths[y // 16, x // 3] * ((y % 16) > 5) * ((y // 2 + x // 5) % 3 > 0)
    boards = torch.rand(SIZE // 16, 3, generator=generator)[x // 16].permute(2, 0, 1)
    boards = boards - 1.5 * ((x % 16) < 2)
    grain = _power_noise(generator, 0.9)
    plain = [checkers, corrugated, tiles, dots, stripes.expand(3, -1, -1)]
    return [
        *(pattern * 2.0 + 0.15 * grain for pattern in plain),
        bricks + 0.25 * grain,
        boards * 1.5 + 0.3 * _power_noise(generator, 0.9, 8.0),
        -2.0 * writing.expand(3, -1, -1) + 0.1 * grain,
    ]


def _normalise(canvases: list[Tensor]) -> Tensor:
    stack = torch.stack([canvas.float() for canvas in canvases])
    stack = stack - stack.mean(dim=(1, 2, 3), keepdim=True)
    return (stack / stack.std(dim=(1, 2, 3), keepdim=True)).clamp(-2.5, 2.5)


@lru_cache(maxsize=4)
def texture_bank(device: str = "cpu") -> TextureBank:
    """Builds (about a second, once per process) and keeps the bank on a device."""
    generator = torch.Generator().manual_seed(20200320)
    noises = [_power_noise(generator, exponent) for exponent in (0.6, 0.9, 1.1, 1.3, 1.6)]
    noises += [_power_noise(generator, 1.0, stretch) for stretch in (6.0, 25.0)]
    threshold = _spectral_noise(_frequencies().clamp_min(6.0) ** -1.5, 3, generator)
    camouflage = torch.tanh(6 * threshold) + 0.3 * noises[1]
    ridges = 1.0 - (threshold[:1] * 1.5).abs() + 0.3 * noises[2]
    leaves = [_leaves(generator, r, n) for r, n in ((2.5, 2), (3.0, 0), (4.0, 2), (4.0, 1))]
    leaves += [_leaves(generator, r, n) for r, n in ((6.0, 0), (8.0, 2), (12.0, 2))]
    colour = _normalise([*noises, camouflage, ridges, *leaves, *_patterns(generator)])
    # Canvases are seen at up to 1.4 texels a pixel: without this the two views alias differently.
    colour = blur(colour, 0.7)
    grey = _normalise(list(colour.mean(dim=1, keepdim=True)))
    band = torch.exp(-0.5 * ((_frequencies() - SIZE / WAVELENGTH) / 8.0) ** 2)
    smooth = _spectral_noise(band, 4, generator)[:, None]
    return TextureBank(*(part.to(device).contiguous() for part in (colour, grey, smooth)))
