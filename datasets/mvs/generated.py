"""A data set of generated scenes, made on the fly: nothing to download."""

from __future__ import annotations

from torch import Tensor

from ..cache import MadeDataset, SampleCache
from ..draws import Draws
from .generator import GENERATOR_VERSION, generate_scene

__all__ = ["GeneratedMVS"]


class GeneratedMVS(MadeDataset):
    """Map-style data set; item i depends on ``seed`` and i alone, in any order and any worker.

    A different seed gives different scenes, so training, validation and test sets of one seed
    each never meet. Samples are as ``vizoo.datasets.mvs.scene`` says.

    Args:
        length: number of scenes, each of which gives one sample.
        height: photographs' height in pixels.
        width: photographs' width in pixels.
        views: photographs in a sample, the reference included.
        seed: names the series of scenes.
        wide_range: whether scenes spread over a depth ratio of 10 rather than 2.2.
        untextured: whether a scene has a plate of one colour.
        supersample: see `generate_scene`; 1 is the fastest.
        cache: folder that keeps the samples (3 bytes a pixel and view), so that later epochs read
            what the first one made. None: every sample is made anew.

    Raises:
        ValueError: if ``length`` is not positive (other values: see `generate_scene`).
    """

    has_truth = True

    def __init__(
        self,
        length: int,
        height: int,
        width: int,
        views: int = 5,
        seed: int = 0,
        wide_range: bool = False,
        untextured: bool = False,
        supersample: int = 2,
        cache: str | None = None,
    ) -> None:
        if length < 1:
            raise ValueError(f"generated scenes: length {length}: want at least 1")
        self.length, self.height, self.width = length, height, width
        self.views, self.seed = views, seed
        self.wide_range, self.untextured = wide_range, untextured
        self.supersample = supersample
        kind = f"{views}-{supersample}-{int(wide_range)}-{int(untextured)}"
        name = f"mvs{GENERATOR_VERSION}-{seed}-{height}x{width}-{kind}"
        self.cache = SampleCache(cache, name, ["images"])

    def _make(self, index: int) -> dict[str, Tensor]:
        scene = generate_scene(
            self.views,
            self.height,
            self.width,
            seed=Draws("item", self.seed, index).bits(),
            wide_range=self.wide_range,
            untextured=self.untextured,
            supersample=self.supersample,
        )
        sample = scene.sample(0, list(range(1, self.views)))
        del sample["name"]
        return sample

    def __repr__(self) -> str:
        return (
            f"GeneratedMVS({self.length} of {self.views}x{self.height}x{self.width}, "
            f"seed {self.seed})"
        )
