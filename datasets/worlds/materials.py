"""What surfaces look like: procedural and photographic textures with mip maps, in one bank."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..draws import Draws

__all__ = ["SIDE", "Material", "TextureBank", "draw_material", "texture_bank"]

SIDE = 512
"""Of a texture, texels."""
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_LEVELS = 8


@dataclass(frozen=True)
class Material:
    """A surface's look.

    Attributes:
        texture: index into the bank.
        scale: texels a metre.
        turn: of the texture, radians.
        shift: of the texture, texels along each axis.
        base: colour where the texture is grey, (3,) in [0, 1].
        contrast: how much of the texture's deviation is added; 0 is uniform.
        tint: whether the texture's own colours count (1) or its brightness alone (0).
        gloss: share of light that a highlight reflects, 0 for none.
        mirror: share of the surroundings that it reflects.
        shine: exponent of the highlight.
    """

    texture: int
    scale: float
    turn: float
    shift: tuple[float, float]
    base: tuple[float, float, float]
    contrast: float
    tint: float
    gloss: float = 0.0
    mirror: float = 0.0
    shine: float = 40.0


class TextureBank:
    """Textures of zero mean, each in halved sizes, and how to look one up.

    Attributes:
        count: of textures; the first ``procedural`` are drawn, the others photographs.
        procedural: number of drawn ones.
    """

    def __init__(self, drawn: Tensor, photographs: Tensor) -> None:
        textures = torch.cat([drawn, photographs])
        self.procedural, self.count = len(drawn), len(textures)
        levels = [textures]
        for _ in range(_LEVELS - 1):
            levels.append(torch.nn.functional.avg_pool2d(levels[-1], 2))
        # Texels lie together, so that one look-up brings all three channels.
        self._levels = [level.permute(0, 2, 3, 1).contiguous() for level in levels]

    def look_up(self, index: Tensor, x: Tensor, y: Tensor, footprint: Tensor) -> Tensor:
        """Colours (N, 3) of textures (N,) at places (N,) in texels, averaged over a footprint.

        Args:
            index: which texture.
            x, y: periodic, texels of the largest level.
            footprint: width of what a pixel sees, texels of the largest level.
        """
        level = footprint.clamp_min(1.0).log2().round().clamp_max(_LEVELS - 1).long()
        colours = torch.empty(len(index), 3)
        for number in level.unique().tolist():
            chosen = (level == number).nonzero()[:, 0]
            texels = self._levels[number]
            side = texels.shape[1]
            u, v = (value[chosen] / 2**number - 0.5 for value in (x, y))
            left, top = u.floor(), v.floor()
            share_x, share_y = (u - left)[:, None], (v - top)[:, None]
            columns = [(left.long() + step) % side for step in (0, 1)]
            rows = [(top.long() + step) % side for step in (0, 1)]
            flat = texels.reshape(-1, 3)
            start = index[chosen] * side * side
            a, b, c, d = (flat[start + row * side + column] for row in rows for column in columns)
            upper, lower = torch.lerp(a, b, share_x), torch.lerp(c, d, share_x)
            colours[chosen] = torch.lerp(upper, lower, share_y)
        return colours


@lru_cache(maxsize=4)
def texture_bank(folder: str | None = None) -> TextureBank:
    """The bank of this process.

    Args:
        folder: of photographs, searched at any depth; None: drawn textures alone.

    Raises:
        FileNotFoundError: no such folder, or no picture in it.
    """
    from ..stereo.scene_textures import texture_bank as canvases

    drawn = canvases("cpu").colour
    photographs = torch.zeros(0, 3, SIDE, SIDE)
    if folder is not None:
        photographs = torch.stack([_photograph(path) for path in _pictures(folder)])
    return TextureBank(drawn, photographs)


def draw_material(draws: Draws, bank: TextureBank, kind: str = "any") -> Material:
    """A material.

    Args:
        draws: what is random.
        bank: whose textures it may take.
        kind: ``any``; ``plain`` for little or no texture, as of painted walls; ``rich`` for much;
            ``shiny`` for metal, glass and glaze.
    """
    photographs = bank.count - bank.procedural
    photographic = photographs > 0 and draws.uniform() < 0.6
    first, count = (bank.procedural, photographs) if photographic else (0, bank.procedural)
    texture = first + int(draws.uniform(0, count))
    plain = kind == "plain" or (kind == "any" and draws.uniform() < 0.25)
    contrast = draws.uniform(0.0, 0.04) if plain else draws.uniform(0.1, 0.3)
    if photographic and not plain:
        contrast = draws.uniform(0.7, 1.1) * 0.22
    light = draws.uniform(0.15, 0.9) if kind != "plain" else draws.uniform(0.45, 0.95)
    colourful = draws.uniform() ** 2 * 0.7
    hue = np.array([draws.uniform() for _ in range(3)])
    base = light * ((1 - colourful) + colourful * hue / max(hue.max(), 1e-6))
    shiny = kind == "shiny" or draws.uniform() < 0.12
    return Material(
        texture,
        SIDE / 2 ** draws.uniform(-1.5, 1.8),
        draws.uniform(0, 6.2832) if draws.uniform() < 0.3 else 0.0,
        (draws.uniform(0, SIDE), draws.uniform(0, SIDE)),
        tuple(float(value) for value in base),
        contrast,
        1.0 if photographic else draws.uniform() ** 2,
        draws.uniform(0.2, 0.7) if shiny else draws.uniform(0.0, 0.08),
        draws.uniform(0.1, 0.35) if shiny else 0.0,
        2 ** draws.uniform(3, 7),
    )


def _pictures(folder: str) -> list[Path]:
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"textures: {folder}: no such folder")
    found = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in _SUFFIXES)
    if not found:
        raise FileNotFoundError(f"textures: {folder}: no picture in it (.jpg, .png, .webp)")
    return found


def _photograph(path: Path) -> Tensor:
    """The middle square of a picture, mirrored to tile, of zero mean, in deviations of 0.22."""
    from PIL import Image

    half = SIDE // 2
    with Image.open(path) as image:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.convert("RGB").crop((left, top, left + side, top + side))
        pixels = np.asarray(square.resize((half, half), Image.Resampling.LANCZOS), np.float32) / 255
    pixels -= pixels.mean(axis=(0, 1))
    pixels /= max(float(pixels.std()), 0.02)
    tile = np.concatenate([pixels, pixels[:, ::-1]], axis=1)
    tile = np.concatenate([tile, tile[::-1]], axis=0).clip(-3, 3)
    return torch.from_numpy(np.ascontiguousarray(tile.transpose(2, 0, 1)))
