"""Views of generated worlds for multi-view stereo, made on the fly: nothing to download."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draws import Draws
from ..mvs.pairs import pair_by_poses
from ..mvs.scene import Scene, View
from .base import WorldDataset, quantile, reachable
from .cameras import Pinhole, frame, render
from .layouts import Place

__all__ = ["WorldViews"]


class WorldViews(WorldDataset):
    """Views by a ring of cameras or by a hand-held one (see ``vizoo.datasets.mvs.scene``).

    Every view has focal lengths and a principal point of its own; the unit is the metre.

    Args:
        length: number of scenes.
        height: of a picture, pixels.
        width: of a picture, pixels.
        views: in a sample, the reference included, 2 at least.
        wander: (least, greatest) distance of the outermost cameras from the reference, in depths
            of the nearest things.
        common: see `WorldDataset`.

    Raises:
        ValueError: see `WorldDataset`; or a number of these is out of range.
    """

    def __init__(
        self,
        length: int,
        height: int,
        width: int,
        views: int = 5,
        *,
        wander: tuple[float, float] = (0.1, 0.4),
        **common: Any,
    ) -> None:
        if views < 2:
            raise ValueError(f"world: views {views} (want 2 or more)")
        if not 0 < wander[0] <= wander[1]:
            raise ValueError(
                f"world: wander {wander[0]:g} to {wander[1]:g} (want more than 0, the least first)"
            )
        kind = f"views-{views}-{wander[0]:g}-{wander[1]:g}"
        super().__init__(kind, ("images",), length, (height, width), **common)
        self.views, self.wander = views, tuple(wander)

    def scene(self, index: int) -> Scene:
        """All views of a sample, each with its true depth, as a scene."""
        return self._scene(index)[0]

    def _scene(self, index: int) -> tuple[Scene, dict[str, Tensor]]:
        """The scene, and what samples hold of the reference's surfaces."""
        draws = self._draws(index)

        def look(place: Place) -> Pinhole:
            focal = self.width * draws.uniform(0.6, 1.2)
            axes = frame(place.gaze, draws.uniform(-0.1, 0.1))
            return self._camera(place.eye, axes, focal, draws)

        place, first = self._view(index, draws, look)
        axes, focal = first.axes, float(first.intrinsics[0, 0])
        reference = render(place.world, first)
        depth = reference.distance * first.ahead()
        known = depth[depth.isfinite()]
        near, middle = quantile(known, 0.02), quantile(known, 0.5)
        reach = draws.uniform(*self.wander) * near
        path = _ring if draws.uniform() < 0.5 else _hand_held
        cameras, rendered = [first], [reference]
        for offset in path(draws, self.views - 1):
            eye = place.eye + reachable(place, reach * offset @ axes)
            aim = place.eye + middle * (axes[2] + 0.03 * (draws.uniforms(3) - 0.5)) - eye
            # Most are held nearly upright; one in seven is turned by more than 45 degrees.
            turned = frame(aim, math.pi * draws.uniform(-1, 1) ** 9)
            cameras.append(self._camera(eye, turned, focal, draws))
            rendered.append(render(place.world, cameras[-1]))
        pictures = self._pictures([view.colour for view in rendered], draws)
        views = []
        for number, (camera, seen) in enumerate(zip(cameras, rendered, strict=True)):
            depth = seen.distance * camera.ahead()
            finite = depth.isfinite()
            span = depth[finite] if finite.any() else known
            views.append(
                View(
                    f"{number:08d}",
                    pictures[number],
                    torch.from_numpy(np.float32(camera.intrinsics)),
                    torch.from_numpy(np.float32(camera.extrinsics)),
                    (0.98 * float(span.min()), 1.02 * float(span.max())),
                    partial(_truth, torch.where(finite, depth, 0)[None]),
                )
            )
        scene = pair_by_poses(Scene(self.name(index), views, [[] for _ in views], "generated"))
        return scene, self._surfaces(reference, axes)

    def _make(self, index: int) -> dict[str, Tensor]:
        scene, surfaces = self._scene(index)
        sample = scene.sample(0, list(range(1, self.views)), empty_truth=True)
        del sample["name"]
        return {**sample, **surfaces}

    def _camera(self, eye: np.ndarray, axes: np.ndarray, focal: float, draws: Draws) -> Pinhole:
        """A camera whose numbers are those of float32, as the sample holds them."""
        own = focal * draws.uniform(0.97, 1.03)
        x = (self.width - 1) / 2 + draws.uniform(-0.02, 0.02) * self.width
        y = (self.height - 1) / 2 + draws.uniform(-0.02, 0.02) * self.height
        intrinsics = np.array([[own, 0, x], [0, own * draws.uniform(0.995, 1.005), y], [0, 0, 1]])
        return Pinhole(eye, axes, self.height, self.width, np.float32(intrinsics).astype(float))


def _truth(depth: Tensor) -> tuple[Tensor, Tensor]:
    """A depth map in memory, and where it is known, as a view of a scene gives them."""
    return depth, depth > 0


def _ring(draws: Draws, count: int) -> list[np.ndarray]:
    """Places (3,) round the reference, in its frame, about 1 from it at most."""
    phase = draws.uniform(0, 2 * math.pi)
    places = []
    for number in range(count):
        angle = phase + 2 * math.pi * (number + draws.uniform(-0.2, 0.2)) / count
        radius = draws.uniform(0.6, 1.0)
        lift = draws.uniform(-0.15, 0.15)
        places.append(np.array([radius * math.cos(angle), radius * math.sin(angle), lift]))
    return places


def _hand_held(draws: Draws, count: int) -> list[np.ndarray]:
    """Places (3,) along a path through the reference, in its frame, about 1 from it at most."""
    heading = draws.uniform(0, 2 * math.pi)
    along = np.array([math.cos(heading), 0.3 * math.sin(heading), 0.4 * draws.uniform(-1, 1)])
    bend = 0.3 * (draws.uniforms(3) - 0.5)
    before = count // 2
    steps = [step / max(1, count - before) for step in range(-before, count - before + 1) if step]
    return [
        0.9 * step * along + step * step * bend + 0.1 * (draws.uniforms(3) - 0.5) for step in steps
    ]
