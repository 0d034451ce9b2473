"""Drawn images of skin with lesions of several kinds, and a data set of them: nothing to download.

Nothing medical: only easy to tell apart.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from ..cache import Series
from ..draws import Draws
from .dataset import LabelledImages
from .preparation import ImagePreset

__all__ = ["GeneratedLesions", "KINDS", "draw_lesions"]

#: What can be drawn.
KINDS = ("mole", "ring", "plaque", "streak", "freckles", "blister")

# The lightest and the darkest skin.
_TONES = np.array([[0.95, 0.80, 0.70], [0.50, 0.34, 0.26]], np.float32)
_COLOURS = {
    "mole": (0.24, 0.14, 0.10),
    "ring": (0.74, 0.24, 0.22),
    "plaque": (0.84, 0.50, 0.48),
    "streak": (0.66, 0.18, 0.18),
    "freckles": (0.46, 0.26, 0.14),
    "blister": (0.96, 0.88, 0.72),
}


def draw_lesions(kind: str, side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw one to three lesions of a kind on skin of any tone, unevenly lit, with some hairs.

    Returns:
        The image, (3, side, side) float32 RGB in [0, 1], and the boxes of the lesions, (N, 4)
        float32: left, top, right, bottom.
    """
    image = _skin(side, rng)
    boxes: list[tuple[int, ...]] = []
    for _ in range(rng.choice([1, 2, 3], p=[0.6, 0.25, 0.15])):
        cover, colour = _lesion(kind, side, boxes, rng)
        rows, columns = (np.flatnonzero((cover > 0.3).any(axis)) for axis in (1, 0))
        boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        image = image * (1 - cover[..., None]) + colour * cover[..., None]
    image = _hairs(image, side, rng)
    image = image * _light(side, rng) + rng.normal(0, 0.012, image.shape)
    planes = np.ascontiguousarray(image.clip(0, 1).transpose(2, 0, 1), np.float32)
    return planes, np.array(boxes, np.float32)


def _skin(side: int, rng: np.random.Generator) -> np.ndarray:
    share = rng.uniform()
    tone = _TONES[0] * (1 - share) + _TONES[1] * share
    blotches = 0.03 * _smooth(side, side / 5, rng) + 0.015 * _smooth(side, 2.0, rng)
    return tone * (1 + blotches[..., None])


def _light(side: int, rng: np.random.Generator) -> np.ndarray:
    across, down = np.meshgrid(*[np.linspace(-1, 1, side, dtype=np.float32)] * 2)
    slope = rng.uniform(-0.15, 0.15, 2)
    return (rng.uniform(0.85, 1.1) + slope[0] * across + slope[1] * down)[..., None]


def _lesion(
    kind: str, side: int, others: list[tuple], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """How much the lesion covers each pixel, (side, side) in [0, 1], and its colours."""
    radius = side * rng.uniform(0.10, 0.2)
    centre = _place(side, radius, others, rng)
    y, x = np.mgrid[:side, :side].astype(np.float32)
    turn = rng.uniform(0, np.pi)
    along = (x - centre[0]) * np.cos(turn) + (y - centre[1]) * np.sin(turn)
    beside = (y - centre[1]) * np.cos(turn) - (x - centre[0]) * np.sin(turn)
    stretch = 4.0 if kind == "streak" else rng.uniform(1.0, 1.3)
    angle = np.arctan2(beside * stretch, along)
    wobble = sum(
        rng.uniform(0, 0.12 if kind == "plaque" else 0.04) * np.sin(n * angle + rng.uniform(0, 6.3))
        for n in (2, 3, 5)
    )
    r = np.hypot(along, beside * stretch) / (radius * (1.3 if kind == "streak" else 1) + 1e-6)
    r = r / (1 + wobble)
    inside = _edge(1 - r, radius / 3)
    colour = _rgb(*_COLOURS[kind]) * rng.uniform(0.85, 1.15)
    shades = 1 + 0.06 * _smooth(side, side / 12, rng)[..., None]
    if kind == "ring":
        return inside * _edge(r - 0.62, radius / 3) * 0.9, colour * shades
    if kind == "plaque":
        scales = (_smooth(side, side / 24, rng) > 0.8)[..., None] * inside[..., None]
        return inside * 0.8, colour * shades * (1 - scales) + scales * _rgb(0.95, 0.92, 0.9)
    if kind == "freckles":
        return _dots(centre, radius, x, y, rng) * 0.85, colour * shades
    if kind == "blister":
        rim = np.exp(-((r - 0.9) ** 2) / 0.02)[..., None]
        shine = np.exp(-((along / radius + 0.3) ** 2 + (beside / radius + 0.3) ** 2) / 0.03)
        red = _rgb(0.78, 0.34, 0.32)
        return inside * 0.9, (colour * shades * (1 - rim) + red * rim) + 0.3 * shine[..., None]
    return inside * (0.95 if kind == "mole" else 0.85), colour * shades


def _place(side: int, radius: float, others: list[tuple], rng: np.random.Generator) -> np.ndarray:
    """A centre that no other lesion's box holds, if one is found soon."""
    for _ in range(20):
        centre = rng.uniform(1.1 * radius, side - 1.1 * radius, 2)
        low, high = centre - 1.2 * radius, centre + 1.2 * radius
        if not any((low <= box[2:]).all() and (high >= box[:2]).all() for box in others):
            break
    return centre


def _dots(
    centre: np.ndarray, radius: float, x: np.ndarray, y: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    cover = np.zeros_like(x)
    for _ in range(rng.integers(7, 12)):
        angle, far = rng.uniform(0, 2 * np.pi), radius * np.sqrt(rng.uniform(0.02, 0.9))
        size = radius * rng.uniform(0.12, 0.2)
        r = np.hypot(x - centre[0] - far * np.cos(angle), y - centre[1] - far * np.sin(angle))
        cover = np.maximum(cover, _edge(1 - r / size, size))
    return cover


def _hairs(image: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    cover = np.zeros((side, side), np.float32)
    for _ in range(rng.integers(0, 4)):
        ends = rng.integers(0, side, 4).tolist()
        cv2.line(cover, ends[:2], ends[2:], 0.6, 1, cv2.LINE_AA)
    return image * (1 - cover[..., None]) + _rgb(0.12, 0.08, 0.06) * cover[..., None]


def _rgb(*colour: float) -> np.ndarray:
    return np.array(colour, np.float32)


def _smooth(side: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Noise of mean 0 and deviation 1 that varies over `scale` pixels."""
    coarse = max(4, round(side / max(scale, 1.0)))
    noise = rng.normal(size=(coarse, coarse)).astype(np.float32)
    noise = np.asarray(cv2.resize(noise, (side, side), interpolation=cv2.INTER_CUBIC))
    return (noise - noise.mean()) / noise.std()


def _edge(distance: np.ndarray, sharpness: float) -> np.ndarray:
    steepness = 4 * max(sharpness, 1.5)
    return np.float32(1) / (1 + np.exp(-(steepness * distance).clip(-30, 30)))


class GeneratedLesions(LabelledImages, Series):
    """Map-style data set; image i depends on ``seed`` and i alone, in any order and any worker.

    The classes take turns; an image has one to three lesions of its class, and their boxes.

    Args:
        length: number of images.
        classes: how many, 2 to 6, of ``lesions.KINDS``.
        preset: how the images are prepared.
        side: of the images before that, pixels.
        seed: names the series of images.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(
        self,
        length: int,
        classes: int = 4,
        preset: ImagePreset = ImagePreset((64, 64), 1.0),  # noqa: B008 (it is frozen)
        side: int = 80,
        seed: int = 0,
    ) -> None:
        if not 2 <= classes <= len(KINDS):
            raise ValueError(f"generated lesions of {classes} classes: choose 2 to {len(KINDS)}")
        if length < 1 or side < 16:
            raise ValueError(
                f"generated lesions: length {length} and side {side} must be at least 1 and 16"
            )
        super().__init__(KINDS[:classes], preset)
        self.length, self.side, self.seed = length, side, seed
        self.what = ", ".join(self.classes)

    @property
    def labels(self) -> list[int]:
        """The class of every image."""
        return [index % len(self.classes) for index in range(self.length)]

    @property
    def groups(self) -> list[str]:
        """Each image is on its own."""
        return [self.name(index) for index in range(self.length)]

    def picture(self, index: int) -> dict[str, Tensor | str]:
        """See `LabelledImages.picture`.

        Raises:
            IndexError: beyond the ends, so that the data set can be iterated.
        """
        index = self._number(index)
        label = index % len(self.classes)
        rng = np.random.default_rng(Draws("lesions", self.seed, index).bits())
        image, boxes = draw_lesions(self.classes[label], self.side, rng)
        return {
            "image": torch.from_numpy(image),
            "label": torch.tensor(label),
            "name": self.name(index),
            "boxes": torch.from_numpy(boxes),
            "box_labels": torch.full((len(boxes),), label),
        }
