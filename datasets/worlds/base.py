"""What the data sets of generated worlds share: which worlds, where they lie, how they look."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..cache import MadeDataset, SampleCache
from ..draws import Draws
from ..files import expand_path
from ..stereo.scene_camera import photograph
from .cameras import Pinhole, View, coarse_hits
from .layouts import LAYOUTS, WORLD_VERSION, Place, build_place
from .stock import fingerprint, stock
from .world import column

__all__ = ["WorldDataset", "quantile", "reachable"]

_TRIES = 4
_FULL = 0.55  # of the picture; where one thing takes more, there is little to see


def reachable(place: Place, way: np.ndarray) -> np.ndarray:
    """A way (3,) from the observer, shortened so that it ends before anything that stands there."""
    hits = place.world.cast(column(place.eye), column(way))
    return way * min(1.0, 0.7 * float(hits.distance[0]))


def quantile(values: Tensor, share: float) -> float:
    """The value that a share of values (N,) is below."""
    return float(values.kthvalue(max(1, round(share * len(values)))).values)


class WorldDataset(MadeDataset):
    """Map-style data set; item i depends on its arguments and i alone, in any order and worker.

    A different seed gives different worlds, so training, validation and test sets of one seed each
    never meet. Who derives from it makes one sample in ``_make``.

    Args:
        kind: of the samples, a word, with whatever else than the arguments below changes them.
        pictures: entries of a sample that are pictures in [0, 1].
        length: number of samples.
        size: (height, width) of the pictures, pixels.
        seed: names the series.
        layouts: of `LAYOUTS`, which take turns.
        textures, meshes, panoramas: folders that worlds take photographs of surfaces, things and
            surroundings from; None: drawn ones alone (see `stock`).
        floating: how many things float in each world; None: none or 10 to 30, half each.
        photometric: whether pictures have the faults of photographs, each its own.
        surfaces: whether samples also hold ``normal`` (3, H, W), of length 1, in the frame of the
            (first) camera (x right, y down, z ahead) and towards it, and ``instance`` (1, H, W),
            which thing a pixel is of; 0 both for the sky. Not for augmentation, which knows
            neither.
        cache: folder that keeps the samples, so that later epochs read what the first one made.

    Raises:
        ValueError: a number is out of range, or there is no such layout.
        FileNotFoundError: no such folder of textures, meshes or panoramas, or nothing in it.
    """

    has_truth = True
    series = "world"

    def __init__(
        self,
        kind: str,
        pictures: Sequence[str],
        length: int,
        size: tuple[int, int],
        *,
        seed: int = 0,
        layouts: Sequence[str] = ("room", "room", "table", "street"),
        textures: str | None = None,
        meshes: str | None = None,
        panoramas: str | None = None,
        floating: int | None = None,
        photometric: bool = True,
        surfaces: bool = False,
        cache: str | None = None,
    ) -> None:
        height, width = size
        if length < 1 or height < 16 or width < 32:
            raise ValueError(
                f"world: length {length}, size {height}x{width}: want at least 1 sample of 16x32"
            )
        unknown = [layout for layout in layouts if layout not in LAYOUTS]
        if unknown or not layouts:
            raise ValueError(f"world: layouts {unknown}: choose from {', '.join(LAYOUTS)}")
        given = {"textures": textures, "meshes": meshes, "panoramas": panoramas}
        folders = {
            name: None if folder is None else os.fspath(expand_path(folder))
            for name, folder in given.items()
        }
        if floating is not None and floating < 0:
            raise ValueError(f"world: floating {floating}: want 0 or more")
        self.length, self.height, self.width, self.seed = length, height, width, seed
        self.what = f"{height}x{width}"
        self.layouts, self.folders, self.floating = tuple(layouts), folders, floating
        self.photometric, self.surfaces = photometric, surfaces
        kind = f"{kind}-{'.'.join(layouts)}-{int(photometric)}-{fingerprint(**folders)}-{floating}"
        kind += "-surfaces" * surfaces
        name = f"world{WORLD_VERSION}-{seed}-{self.what}-{kind}"
        self.cache = SampleCache(cache, name, pictures if photometric else ())

    def _draws(self, index: int) -> Draws:
        return Draws("world", self.seed, index)

    def _place(self, index: int, draws: Draws) -> Place:
        layout = self.layouts[index % len(self.layouts)]
        return build_place(layout, draws, stock(**self.folders), self.floating)

    def _view(
        self, index: int, draws: Draws, camera: Callable[[Place], Pinhole]
    ) -> tuple[Place, Pinhole]:
        """A place and a camera in it that sees more than one thing."""
        tries, share = 0, 1.0
        while share > 0.99 or (share > _FULL and tries < _TRIES):
            place = self._place(index, draws)
            chosen = camera(place)
            instance = coarse_hits(place.world, chosen).instance
            share = float(instance.bincount().max()) / len(instance)
            tries += 1
        return place, chosen

    def _surfaces(self, view: View, axes: np.ndarray) -> dict[str, Tensor]:
        """What samples hold of surfaces, in the frame of a camera's axes, if they do."""
        if not self.surfaces:
            return {}
        normal = torch.from_numpy(np.float32(axes)) @ view.normal.flatten(1)
        normal = torch.where(view.distance.isfinite(), normal.view_as(view.normal), 0)
        return {"normal": normal, "instance": view.instance[None]}

    def _pictures(self, colours: Sequence[Tensor], draws: Draws, lens: bool = True) -> list[Tensor]:
        """Pictures (3, H, W) in [0, 1] of radiances, exposed by the first of them.

        Radiances are linear and of that shape. A lens darkens corners and blurs.
        """
        bright = max(quantile(colours[0].flatten(), 0.95), 0.05)
        shown = [(0.85 / bright * colour).clamp(0, 1.5) ** (1 / 2.2) for colour in colours]
        if not self.photometric:
            return [picture.clamp(0, 1) for picture in shown]
        generator = torch.Generator().manual_seed(draws.bits() >> 1)
        return photograph(shown, generator, lens)
