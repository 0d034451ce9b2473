"""Stereo pairs of generated worlds, made on the fly: nothing to download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draws import Draws
from ..stereo.calibration import StereoCalibration
from ..stereo.scene_textures import blur
from .base import WorldDataset, quantile, reachable
from .cameras import Pinhole, View, frame, render
from .layouts import Place
from .world import World, column

__all__ = ["WorldStereo"]

_NEAREST = 0.02  # share of pixels that may be nearer than what the baseline is chosen by
_OFTEN_BLURRED = 0.3


class WorldStereo(WorldDataset):
    """Pairs of a rectified rig: left and right (3, H, W), disparity, valid, occluded (1, H, W).

    The sky's disparity is 0, and not valid. Disparity is that of the rectified rig: where the right
    view is turned by a ``vertical_offset``, matches lie beside it by up to as much, also along x.

    Args:
        length: number of pairs.
        height: of a picture, pixels.
        width: of a picture, pixels.
        max_disparity: upper limit in pixels; no pixel is beyond it.
        vertical_offset: largest vertical misalignment of the right view in pixels, and as much
            again by its rotation at the left and the right edge.
        common: see `WorldDataset`.

    Raises:
        ValueError: see `WorldDataset`; or a number of these is out of range.
    """

    def __init__(
        self,
        length: int,
        height: int,
        width: int,
        *,
        max_disparity: float = 256.0,
        vertical_offset: float = 0.0,
        **common: Any,
    ) -> None:
        if not max_disparity > 4 or vertical_offset < 0:
            raise ValueError(
                f"world: max_disparity {max_disparity:g} (want more than 4), vertical_offset "
                f"{vertical_offset:g} (want 0 or more)"
            )
        kind = f"stereo-{max_disparity:g}-{vertical_offset:g}"
        super().__init__(kind, ("left", "right"), length, (height, width), **common)
        self.max_disparity, self.vertical_offset = max_disparity, vertical_offset

    def _make(self, index: int) -> dict[str, Tensor]:
        return self.pair(index)[0]

    def pair(self, index: int) -> tuple[dict[str, Tensor], StereoCalibration]:
        """A sample without its name, and the rig that took it."""
        draws = self._draws(index)

        def look(place: Place) -> Pinhole:
            focal = self.width * draws.uniform(0.6, 1.1)
            axes = frame(place.gaze, draws.uniform(-0.05, 0.05))
            return Pinhole.centred(place.eye, axes, self.height, self.width, focal)

        place, camera = self._view(index, draws, look)
        axes, focal = camera.axes, float(camera.intrinsics[0, 0])
        left = render(place.world, camera)
        depth = left.distance * camera.ahead()
        known = depth[depth.isfinite()]
        # Baselines of 4 to 40 % of the nearest depth; the very nearest must stay in range.
        baseline = draws.uniform(0.04, 0.4) * quantile(known, _NEAREST)
        baseline = min(baseline, self.max_disparity * float(known.min()) / focal)
        baseline = float(np.linalg.norm(reachable(place, baseline * axes[0])))
        tilt = self.vertical_offset * draws.uniform(-1, 1) / focal
        roll = self.vertical_offset * draws.uniform(-1, 1) / (self.width / 2)
        other = replace(camera, eye=place.eye + baseline * axes[0], axes=_tilted(axes, tilt, roll))
        right = render(place.world, other)
        views, colours = (left, right), [left.colour, right.colour]
        if self.photometric and draws.uniform() < _OFTEN_BLURRED:
            colours = _focused(views, colours, draws)
        pictures = self._pictures(colours, draws)
        sample = {
            "left": pictures[0],
            "right": pictures[1],
            **pair_truth(place.world, left, camera, baseline),
            **self._surfaces(left, axes),
        }
        cx, cy = (self.width - 1) / 2, (self.height - 1) / 2
        rig = StereoCalibration(focal, baseline, cx, cy, width=self.width, height=self.height)
        return sample, rig


def pair_truth(world: World, left: View, camera: Pinhole, baseline: float) -> dict[str, Tensor]:
    """Disparity, valid and occluded (1, H, W) of what the left camera of a rectified rig sees."""
    disparity = float(camera.intrinsics[0, 0]) * baseline / (left.distance * camera.ahead())
    hidden = occluded(world, left, camera, camera.eye + baseline * camera.axes[0], disparity)
    return {
        "disparity": disparity[None],
        "valid": disparity[None] > 0,
        "occluded": hidden[None],
    }


def _focused(views: Sequence[View], colours: Sequence[Tensor], draws: Draws) -> list[Tensor]:
    """Colours (3, H, W) that are blurred before and behind what is in focus, of each view."""
    near = 1 / views[0].distance
    at = quantile(near.flatten(), draws.uniform(0.2, 0.9))
    spread = draws.uniform(0.3, 1.0) * float(near.std()) + 1e-6
    focused = []
    for view, colour in zip(views, colours, strict=True):
        own = at * draws.uniform(0.95, 1.05)
        share = ((1 / view.distance - own).abs() / spread - 1).clamp(0, 1)
        focused.append(torch.lerp(colour, blur(colour[None], 1.5)[0], share))
    return focused


def _tilted(axes: np.ndarray, tilt: float, roll: float) -> np.ndarray:
    """Axes turned by small angles about the first and the last: a misalignment."""
    cos, sin = np.cos(tilt), np.sin(tilt)
    axes = np.array([[1, 0, 0], [0, cos, sin], [0, -sin, cos]]) @ axes
    cos, sin = np.cos(roll), np.sin(roll)
    return np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]]) @ axes


def occluded(
    world: World, left: View, camera: Pinhole, other: np.ndarray, disparity: Tensor
) -> Tensor:
    """Pixels that a camera beside this one does not see, (H, W) bool."""
    hidden = torch.arange(camera.width) - disparity < 0
    seen = (left.distance.isfinite() & ~hidden).flatten().nonzero()[:, 0]
    y, x = seen // camera.width, seen % camera.width
    distance = left.distance.flatten()[seen]
    # A thousandth of the way back, so that a surface does not hide itself.
    back = 1e-3 * distance * left.normal.flatten(1)[:, seen]
    points = column(camera.eye) + distance * camera.rays(x, y) + back
    hidden.view(-1)[seen] |= world.blocked(points, column(other) - points)
    return hidden
