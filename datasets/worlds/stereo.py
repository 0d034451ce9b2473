"""Stereo pairs of generated worlds, made on the fly: nothing to download."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..cache import SampleCache
from ..draws import Draws
from ..stereo.scene_camera import photograph
from .cameras import View, frame, pinhole_rays, render
from .layouts import LAYOUTS, WORLD_VERSION, build_place
from .materials import texture_bank
from .world import World

__all__ = ["WorldStereo"]

_NEAREST = 2.0  # per cent of pixels that may be nearer than what the baseline is chosen by


class WorldStereo(Dataset):
    """Map-style data set; item i depends on its arguments and i alone, in any order and worker.

    A different seed gives different worlds, so training, validation and test sets of one seed each
    never meet.

    Args:
        length: number of pairs.
        height: image height in pixels.
        width: image width in pixels.
        seed: names the series.
        max_disparity: upper limit in pixels; no pixel is beyond it.
        layouts: of `LAYOUTS`, which take turns.
        textures: folder of photographs for surfaces; None: drawn textures alone.
        floating: how many things float in each world; None: none or 10 to 30, half each.
        vertical_offset: largest vertical misalignment of the right view in pixels.
        photometric: whether the views differ photometrically and have the faults of photographs.
        cache: folder that keeps the pairs, so that later epochs read what the first one made.

    Raises:
        ValueError: a number is out of range, or there is no such layout.
        FileNotFoundError: no such folder of textures.
    """

    def __init__(
        self,
        length: int,
        height: int,
        width: int,
        seed: int = 0,
        max_disparity: float = 256.0,
        layouts: Sequence[str] = ("room", "room", "table", "street"),
        textures: str | None = None,
        floating: int | None = None,
        vertical_offset: float = 0.0,
        photometric: bool = True,
        cache: str | None = None,
    ) -> None:
        if length < 1 or height < 16 or width < 32:
            raise ValueError(
                f"world: length {length}, size {height}x{width}: want at least 1 pair of 16x32"
            )
        if not max_disparity > 4 or vertical_offset < 0:
            raise ValueError(
                f"world: max_disparity {max_disparity:g} (want more than 4), vertical_offset "
                f"{vertical_offset:g} (want 0 or more)"
            )
        unknown = [layout for layout in layouts if layout not in LAYOUTS]
        if unknown or not layouts:
            raise ValueError(f"world: layouts {unknown}: choose from {', '.join(LAYOUTS)}")
        if textures is not None:
            textures = os.path.expandvars(os.path.expanduser(textures))
            if not os.path.isdir(textures):
                raise FileNotFoundError(f"world: textures: {textures}: no such folder")
        self.length, self.height, self.width, self.seed = length, height, width, seed
        self.max_disparity, self.layouts = max_disparity, tuple(layouts)
        self.textures, self.floating = textures, floating
        self.vertical_offset, self.photometric = vertical_offset, photometric
        kind = f"{max_disparity:g}-{'.'.join(layouts)}-{vertical_offset:g}-{int(photometric)}"
        # Two folders of one name hold other pictures.
        looks = "drawn" if textures is None else f"{Draws(os.path.abspath(textures)).bits():016x}"
        name = f"world{WORLD_VERSION}-{seed}-{height}x{width}-{kind}-{looks}-{floating}"
        self.cache = SampleCache(cache, name, ["left", "right"] if photometric else [])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Sample ``index``: left and right (3, H, W), disparity, valid, occluded (1, H, W), name.

        Raises:
            IndexError: beyond the ends, so that the data set can be iterated.
        """
        if not -self.length <= index < self.length:
            raise IndexError(f"world: index {index} of {self.length}")
        index = int(index) % self.length
        return {**self.cache.recall(index, self._make), "name": f"world-{self.seed}-{index:06d}"}

    def _make(self, index: int) -> dict[str, Tensor]:
        draws = Draws("world", WORLD_VERSION, self.seed, index)
        bank = texture_bank(self.textures)
        layout = self.layouts[index % len(self.layouts)]
        place = build_place(layout, draws, bank, self.floating)
        focal = self.width * draws.uniform(0.6, 1.1)
        axes = frame(place.gaze, draws.uniform(-0.05, 0.05))
        size = (self.height, self.width, focal)
        left = render(place.world, place.eye, axes, *size)
        depth = left.distance * _ahead(*size)
        known = depth[np.isfinite(depth)]
        if not len(known):
            return self._make(index + self.length)  # nothing but sky
        # Baselines of 4 to 40 % of the nearest depth; the very nearest must stay in range.
        baseline = draws.uniform(0.04, 0.4) * np.percentile(known, _NEAREST)
        baseline = min(baseline, self.max_disparity * known.min() / focal)
        eye = place.eye + baseline * axes[0]
        offset = self.vertical_offset * draws.uniform(-1, 1) / focal
        right = render(place.world, eye, _tilted(axes, offset), *size)
        disparity = (focal * baseline / depth).astype(np.float32)
        hidden = _occluded(place.world, left, place.eye, eye, axes, size, disparity)
        views = [_picture(view.colour, left.colour) for view in (left, right)]
        if self.photometric:
            generator = torch.Generator().manual_seed(draws.bits() >> 1)
            views = photograph(*views, generator)
        else:
            views = [view.clamp(0, 1) for view in views]
        return {
            "left": views[0],
            "right": views[1],
            "disparity": torch.from_numpy(disparity)[None],
            "valid": torch.from_numpy(disparity > 0)[None],
            "occluded": torch.from_numpy(hidden)[None],
        }


def _ahead(height: int, width: int, focal: float) -> np.ndarray:
    """Depth over distance of each pixel, (H, W)."""
    x = (np.arange(width) - (width - 1) / 2) / focal
    y = (np.arange(height)[:, None] - (height - 1) / 2) / focal
    return (1 / np.sqrt(1 + x**2 + y**2)).astype(np.float32)


def _tilted(axes: np.ndarray, angle: float) -> np.ndarray:
    """Axes turned about the first by a small angle: a vertical misalignment."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([axes[0], cos * axes[1] + sin * axes[2], cos * axes[2] - sin * axes[1]])


def _occluded(
    world: World,
    left: View,
    eye: np.ndarray,
    other: np.ndarray,
    axes: np.ndarray,
    size: tuple[int, int, float],
    disparity: np.ndarray,
) -> np.ndarray:
    """Left pixels that the right camera does not see, (H, W) bool."""
    height, width, focal = size
    hidden = np.arange(width) - disparity < 0
    seen = np.flatnonzero(np.isfinite(left.distance) & ~hidden)
    rows, columns = np.divmod(seen, width)
    rays = pinhole_rays(height, width, focal, axes, columns, rows)
    distance = left.distance.ravel()[seen, None]
    # A thousandth of the way back, so that a surface does not hide itself.
    points = eye + rays * distance + 1e-3 * distance * left.normal.reshape(-1, 3)[seen]
    blocked = world.blocked(points, np.broadcast_to(other, points.shape))
    hidden.ravel()[seen] |= blocked
    return hidden


def _picture(colour: np.ndarray, exposed_by: np.ndarray) -> Tensor:
    """Radiance as a camera's display shows it: exposed by one view, gamma 2.2, (3, H, W)."""
    bright = max(float(np.percentile(exposed_by, 95)), 0.05)
    shown = np.clip(0.85 * colour / bright, 0, 1.5) ** (1 / 2.2)
    return torch.from_numpy(np.ascontiguousarray(shown.transpose(2, 0, 1), np.float32))
