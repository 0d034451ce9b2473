"""What surfaces look like: procedural and photographic textures with mip maps, in one bank."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ...vision.io.pairing import files_below
from ..draws import Draws
from ..stereo.scene_textures import texture_bank as canvases

__all__ = ["Material", "TextureBank", "draw_material", "files_of", "texture_bank"]

_SIDE = 512
"""Of a texture, texels."""
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")
_MESHES = (".glb", ".gltf", ".obj", ".ply", ".stl")
_LEVELS = 8
_PAGES = 6
_LARGEST = 4.0  # deviation that a texture keeps
_LIGHT = {"plain": (0.45, 0.95), "paint": (0.03, 0.9), "glass": (0.02, 0.15)}  # brightness


@dataclass(frozen=True)
class Material:
    """A surface's look."""

    texture: int  #: index into the bank
    scale: float  #: texels a metre
    turn: float  #: of the texture, radians
    shift: tuple[float, float]  #: of the texture, texels along each axis
    base: tuple[float, float, float]  #: colour where the texture is grey, (3,) in [0, 1]
    contrast: float  #: how much of the texture's deviation is added; 0 is uniform
    tint: float  #: whether the texture's own colours count (1) or its brightness alone (0)
    gloss: float = 0.0  #: share of light that a highlight reflects, 0 for none
    mirror: float = 0.0  #: share of its surroundings that it reflects, seen from the front
    shine: float = 40.0  #: exponent of the highlight
    #: share of the light from behind that is seen in front, as of cloth and leaves
    through: float = 0.0


class TextureBank:
    """Textures of zero mean, each in halved sizes, and how to look one up.

    Three channels of ten bits lie in one whole number, so that one read brings a texel.

    Attributes:
        count: of textures; the first ``procedural`` are drawn, the others photographs.
        procedural: number of drawn ones.
    """

    def __init__(self, drawn: Sequence[Tensor], photographs: Iterable[Tensor], count: int) -> None:
        """Take drawn textures and ``count`` photographs, (3, side, side) each, one at a time."""
        self.procedural, self.count = len(drawn), len(drawn) + count
        sizes = torch.tensor([self.count * (_SIDE >> level) ** 2 for level in range(_LEVELS)])
        self._starts = sizes.cumsum(0) - sizes
        self._texels = torch.empty(int(sizes.sum()), dtype=torch.int32)
        for number, texture in enumerate(itertools.chain(drawn, photographs)):
            for level, start in enumerate(self._starts.tolist()):
                size = (_SIDE >> level) ** 2
                first = start + number * size
                self._texels[first : first + size] = _packed(texture).flatten()
                texture = torch.nn.functional.avg_pool2d(texture, 2)

    def look_up(self, index: Tensor, x: Tensor, y: Tensor, footprint: Tensor) -> Tensor:
        """Colours (3, N) of textures (N,) at periodic places (N,), averaged over footprints (N,).

        Places and footprints, the widths of what pixels see, are texels of the largest level.
        """
        level = footprint.clamp(1.0, 2.0 ** (_LEVELS - 1)).log2().round()
        smaller = torch.exp2(-level)
        u, v = x * smaller - 0.5, y * smaller - 0.5
        left, top = u.floor(), v.floor()
        share_x, share_y = u - left, v - top
        level = level.long()
        side = _SIDE >> level
        last = side - 1  # sides are powers of two
        columns = [(left.long() + step) & last for step in (0, 1)]
        start = self._starts[level] + index * side * side
        rows = [start + ((top.long() + step) & last) * side for step in (0, 1)]
        total = torch.zeros(3, len(x))
        for row, share_row in zip(rows, (1 - share_y, share_y), strict=True):
            for column, share in zip(columns, (1 - share_x, share_x), strict=True):
                texel = self._texels[row + column]
                weight = share_row * share
                for channel in range(3):
                    total[channel].addcmul_(((texel >> 10 * channel) & 1023).float(), weight)
        return total.mul_(2 * _LARGEST / 1023).sub_(_LARGEST)


def _packed(texture: Tensor) -> Tensor:
    """Whole numbers (H, W) of a texture (3, H, W)."""
    steps = ((texture / _LARGEST + 1) * (1023 / 2)).round().clamp(0, 1023).int()
    return steps[0] | steps[1] << 10 | steps[2] << 20


@lru_cache(maxsize=4)
def texture_bank(folder: str | None = None) -> TextureBank:
    """The bank of this process: drawn textures, and photographs of a folder at any depth.

    Raises:
        FileNotFoundError: no such folder, or no picture in it.
    """
    drawn = [*(_page(number) for number in range(_PAGES)), *canvases().colour]
    files = files_of("textures", folder)
    return TextureBank(drawn, map(_photograph, files), len(files))


def draw_material(draws: Draws, bank: TextureBank, kind: str = "any") -> Material:
    """A material with a texture of a bank.

    Its kind is ``any``; ``plain`` for little or no texture, as of painted walls; ``rich`` for much;
    ``print`` for pages and pictures; ``shiny`` for metal and glaze; ``paint`` for bodies of cars;
    ``glass`` for panes with dark behind them; ``thin`` for leaves and cloth, which light shines
    through.
    """
    photographs = bank.count - bank.procedural
    photographic = photographs > 0 and draws.uniform() < 0.6
    first, count = _PAGES, bank.procedural - _PAGES
    if photographic:
        first, count = bank.procedural, photographs
    elif kind == "print":
        first, count = 0, _PAGES
    texture = first + int(draws.uniform(0, count))
    plain = kind in ("plain", "paint", "glass") or (kind == "any" and draws.uniform() < 0.25)
    contrast = draws.uniform(0.0, 0.04) if plain else draws.uniform(0.1, 0.3)
    if photographic and not plain:
        contrast = draws.uniform(0.7, 1.1) * 0.22
    light = draws.uniform(*_LIGHT.get(kind, (0.15, 0.9)))
    colourful = draws.uniform() ** 2 * 0.7
    hue = np.array([draws.uniform() for _ in range(3)])
    red, green, blue = (light * ((1 - colourful) + colourful * hue / max(hue.max(), 1e-6))).tolist()
    shiny = kind in ("shiny", "paint", "glass") or draws.uniform() < 0.12
    turn = draws.uniform(0, 2 * math.pi) if draws.uniform() < 0.3 else 0.0
    return Material(
        texture,
        _SIDE / 2 ** draws.uniform(-1.5, 1.8),
        turn if kind != "print" else math.pi,  # upright on the front of what stands or hangs
        (draws.uniform(0, _SIDE), draws.uniform(0, _SIDE)),
        (red, green, blue),
        contrast,
        1.0 if photographic else draws.uniform() ** 2,
        draws.uniform(0.2, 0.7) if shiny else draws.uniform(0.0, 0.08),
        draws.uniform(0.1, 0.35) if shiny else 0.0,
        2 ** draws.uniform(3, 7),
        draws.uniform(0.2, 0.6) if kind == "thin" else 0.0,
    )


def files_of(kind: str, folder: str | None) -> list[Path]:
    """All ``meshes``, or pictures, below a folder, in order; none where there is no folder.

    Raises:
        FileNotFoundError: no such folder, or no such file in it; the message begins with the kind.
    """
    what, suffixes = ("mesh", _MESHES) if kind == "meshes" else ("picture", _PICTURES)
    if folder is None:
        return []
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{kind}: {folder}: no such folder")
    files = files_below(folder, suffixes)
    if not files:
        raise FileNotFoundError(f"{kind}: {folder}: no {what} in it ({', '.join(suffixes)})")
    return files


def _page(number: int) -> Tensor:
    """A page of letters that say nothing, dark on light or light on dark."""
    draws = Draws("page", number)
    sheet = Image.new("L", (_SIDE, _SIDE), 255)
    pen, line = ImageDraw.Draw(sheet), 8
    size = draws.uniform(12, 60)
    while line < _SIDE:
        if draws.uniform() < 0.15:
            size = draws.uniform(12, 60)
        count = int(draws.uniform(0.3, 1.0) * _SIDE / (0.55 * size))
        letters = "".join(chr(97 + int(draws.uniform(0, 26))) for _ in range(count))
        words = " ".join(letters[i : i + 6] for i in range(0, count, 6)).capitalize()
        pen.text((10, line), words, fill=0, font=ImageFont.load_default(size))
        line += int(1.3 * size)
    page = np.asarray(sheet, np.float32)
    ink = np.array([draws.uniform(0.3, 1) for _ in range(3)], np.float32)
    page = (page - page.mean()) / page.std() * (1 if number % 3 else -1)
    return torch.from_numpy(page).expand(3, -1, -1) * torch.from_numpy(ink)[:, None, None]


def _photograph(path: Path) -> Tensor:
    """The middle square of a picture, mirrored to tile, of zero mean, in deviations of 0.22."""
    half = _SIDE // 2
    try:
        with Image.open(path) as image:
            image.draft("RGB", (_SIDE, _SIDE))  # of a large JPEG only what is needed is decoded
            if image.mode.startswith("I"):  # of 16 bits; Pillow makes white of all above 255
                bright = np.asarray(image).clip(0, 65535) // 256
                picture = Image.fromarray(bright.astype(np.uint8)).convert("RGB")
            else:
                picture = image.convert("RGB")
    except Exception as error:  # a decoder meets damage in many ways
        raise ValueError(f"textures: {path}: cannot be read as an image: {error}") from error
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    pixels = np.asarray(square.resize((half, half), Image.Resampling.LANCZOS), np.float32) / 255
    pixels -= pixels.mean(axis=(0, 1))
    pixels /= max(float(pixels.std()), 0.02)
    tile = np.concatenate([pixels, pixels[:, ::-1]], axis=1)
    tile = np.concatenate([tile, tile[::-1]], axis=0).clip(-3, 3)
    return torch.from_numpy(np.ascontiguousarray(tile.transpose(2, 0, 1)))
