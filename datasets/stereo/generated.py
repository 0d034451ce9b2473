"""A data set of generated stereo scenes, made on the fly: nothing to download."""

from typing import Any

from torch import Tensor

from ..cache import MadeDataset, SampleCache
from .scenes import SCENES_VERSION, generate_scenes

__all__ = ["GeneratedStereo"]


class GeneratedStereo(MadeDataset):
    """Map-style data set; item i depends on ``seed`` and i alone, in any order and any worker.

    A different seed gives different scenes, so training, validation and test sets of one seed
    each never meet. Workers of one thread each scale best; each builds the texture bank once (or
    inherits it, when the parent has generated an item before forking).

    Samples have left and right (3, H, W), disparity, valid and occluded (1, H, W), and a name.

    Args:
        length: number of scenes.
        height: image height in pixels.
        width: image width in pixels.
        seed: names the series of scenes.
        max_disparity: upper limit in pixels, see `generate_scenes`.
        vertical_offset: largest vertical misalignment of the right view in pixels.
        photometric: whether the views differ photometrically.
        clutter: how crowded the scenes are, 0 to 1, see `generate_scenes`.
        cache: folder that keeps the scenes (12 bytes a pixel), so that later epochs read what the
            first one made. None: every scene is made anew.

    Raises:
        ValueError: if ``length`` is not positive (other values: see `generate_scenes`).
    """

    def __init__(
        self,
        length: int,
        height: int,
        width: int,
        seed: int = 0,
        max_disparity: float = 192.0,
        vertical_offset: float = 0.0,
        photometric: bool = True,
        clutter: float = 1.0,
        cache: str | None = None,
    ) -> None:
        if length < 1:
            raise ValueError(f"generated scenes: length {length}: want at least 1")
        self.length, self.height, self.width, self.seed = length, height, width, seed
        self._look: dict[str, Any] = {
            "max_disparity": max_disparity,
            "vertical_offset": vertical_offset,
            "photometric": photometric,
            "clutter": clutter,
        }
        limits = f"{max_disparity:g}-{vertical_offset:g}-{int(photometric)}-{clutter:g}"
        name = f"v{SCENES_VERSION}-{seed}-{height}x{width}-{limits}"
        # Pictures with photometric changes come in steps of 1/255: a byte loses nothing.
        self.cache = SampleCache(cache, name, ["left", "right"] if photometric else [])

    def _make(self, index: int) -> dict[str, Tensor]:
        scene = generate_scenes(
            1, self.height, self.width, seed=self.seed, first=index, **self._look
        )
        return {name: value[0] for name, value in scene.items()}

    def __repr__(self) -> str:
        return f"GeneratedStereo({self.length} of {self.height}x{self.width}, seed {self.seed})"
