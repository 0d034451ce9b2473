"""Stereo pairs of generated worlds, made on the fly: nothing to download."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..cache import SampleCache
from ..draws import Draws
from ..stereo.scene_camera import photograph
from ..stereo.scene_textures import blur
from .cameras import Pinhole, View, frame, largest_share, render
from .layouts import LAYOUTS, WORLD_VERSION, build_place
from .stock import stock
from .world import World

__all__ = ["WorldStereo"]

_TRIES = 4
_FULL = 0.55  # of the picture; where one thing takes more, there is little to see
_NEAREST = 0.02  # share of pixels that may be nearer than what the baseline is chosen by


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
        textures, meshes, panoramas: folders that worlds take photographs of surfaces, things and
            surroundings from; None: drawn ones alone (see `stock`).
        floating: how many things float in each world; None: none or 10 to 30, half each.
        vertical_offset: largest vertical misalignment of the right view in pixels, and as much
            again by its rotation at the left and the right edge.
        photometric: whether the views differ photometrically and have the faults of photographs.
        cache: folder that keeps the pairs, so that later epochs read what the first one made.

    Raises:
        ValueError: a number is out of range, or there is no such layout.
        FileNotFoundError: no such folder of textures, meshes or panoramas.
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
        meshes: str | None = None,
        panoramas: str | None = None,
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
        self.folders = {"textures": textures, "meshes": meshes, "panoramas": panoramas}
        for name, folder in self.folders.items():
            if folder is not None:
                self.folders[name] = folder = os.path.expandvars(os.path.expanduser(folder))
                if not os.path.isdir(folder):
                    raise FileNotFoundError(f"world: {name}: {folder}: no such folder")
        self.length, self.height, self.width, self.seed = length, height, width, seed
        self.max_disparity, self.layouts = max_disparity, tuple(layouts)
        self.floating = floating
        self.vertical_offset, self.photometric = vertical_offset, photometric
        kind = f"{max_disparity:g}-{'.'.join(layouts)}-{vertical_offset:g}-{int(photometric)}"
        # Two folders of one name hold other pictures.
        paths = [os.path.abspath(path) if path else "" for path in self.folders.values()]
        looks = f"{Draws(*paths).bits():016x}" if any(paths) else "drawn"
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
        layout = self.layouts[index % len(self.layouts)]
        for _ in range(_TRIES):
            place = build_place(layout, draws, stock(**self.folders), self.floating)
            focal = self.width * draws.uniform(0.6, 1.1)
            axes = frame(place.gaze, draws.uniform(-0.05, 0.05))
            camera = Pinhole.centred(place.eye, axes, self.height, self.width, focal)
            if largest_share(place.world, camera) < _FULL:
                break
        left = render(place.world, camera)
        depth = left.distance * camera.ahead()
        known = depth[depth.isfinite()]
        if not len(known):
            return self._make(index + self.length)  # nothing but sky
        # Baselines of 4 to 40 % of the nearest depth; the very nearest must stay in range.
        baseline = draws.uniform(0.04, 0.4) * float(known.quantile(_NEAREST))
        baseline = min(baseline, self.max_disparity * float(known.min()) / focal)
        tilt = self.vertical_offset * draws.uniform(-1, 1) / focal
        roll = self.vertical_offset * draws.uniform(-1, 1) / (self.width / 2)
        other = replace(camera, eye=place.eye + baseline * axes[0], axes=_tilted(axes, tilt, roll))
        right = render(place.world, other)
        disparity = focal * baseline / depth
        hidden = _occluded(place.world, left, camera, other.eye, disparity)
        views = [_picture(view.colour, left.colour) for view in (left, right)]
        if self.photometric:
            if draws.uniform() < 0.3:
                near = 1 / known
                at = float(near.quantile(draws.uniform(0.2, 0.9)))
                spread = draws.uniform(0.3, 1.0) * float(near.std()) + 1e-6
                views = [
                    _focused(view, 1 / seen.distance, at * draws.uniform(0.95, 1.05), spread)
                    for view, seen in zip(views, (left, right), strict=True)
                ]
            generator = torch.Generator().manual_seed(draws.bits() >> 1)
            views = photograph(*views, generator)
        else:
            views = [view.clamp(0, 1) for view in views]
        return {
            "left": views[0],
            "right": views[1],
            "disparity": disparity[None],
            "valid": disparity[None] > 0,
            "occluded": hidden[None],
        }


def _tilted(axes: np.ndarray, tilt: float, roll: float) -> np.ndarray:
    """Axes turned by small angles about the first and the last: a misalignment."""
    cos, sin = np.cos(tilt), np.sin(tilt)
    axes = np.array([[1, 0, 0], [0, cos, sin], [0, -sin, cos]]) @ axes
    cos, sin = np.cos(roll), np.sin(roll)
    return np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]]) @ axes


def _focused(picture: Tensor, nearness: Tensor, at: float, spread: float) -> Tensor:
    """A picture that is blurred where things are nearer or farther than what is in focus.

    Args:
        picture: (3, H, W).
        nearness: (H, W), inverse distances.
        at: that is in focus.
        spread: of nearness within which it is.
    """
    blurred = blur(picture[None], 1.5)[0]
    share = ((nearness - at).abs() / spread - 1).clamp(0, 1)
    return torch.lerp(picture, blurred, share)


def _occluded(
    world: World, left: View, camera: Pinhole, other: np.ndarray, disparity: Tensor
) -> Tensor:
    """Pixels that a camera beside this one does not see, (H, W) bool."""
    hidden = torch.arange(camera.width) - disparity < 0
    seen = (left.distance.isfinite() & ~hidden).flatten().nonzero()[:, 0]
    y, x = seen // camera.width, seen % camera.width
    distance = left.distance.flatten()[seen]
    # A thousandth of the way back, so that a surface does not hide itself.
    back = 1e-3 * distance * left.normal.flatten(1)[:, seen]
    origin, end = (torch.from_numpy(np.float32(eye))[:, None] for eye in (camera.eye, other))
    points = origin + distance * camera.rays(x, y) + back
    hidden.view(-1)[seen] |= world.blocked(points, end - points)
    return hidden


def _picture(colour: Tensor, exposed_by: Tensor) -> Tensor:
    """Radiance as a camera's display shows it: exposed by one view, gamma 2.2, (3, H, W)."""
    bright = max(float(np.percentile(exposed_by.numpy(), 95)), 0.05)
    return (0.85 / bright * colour).clamp(0, 1.5) ** (1 / 2.2)
