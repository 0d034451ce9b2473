"""A data set of samples out of scenes: every view in turn is the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

from ..shelf import Shelf
from .scene import Scene

__all__ = ["MVSDataset"]


class MVSDataset(Dataset):
    """Samples (see ``vizoo.datasets.mvs.scene``): one for each view of each scene as reference.

    Sample i takes the best sources of its pair list. In training, the mixture calls ``draw``, which
    takes them at random from the list, as the published training does.

    Args:
        scenes: scenes, in order.
        views: photographs in a sample, the reference included.
        size: (height, width) to resize photographs and depth to; None leaves them.
        skip: whether a view with too few sources is left out, and one whose depth map turns out
            empty is replaced by the next (with a warning); else both are errors.
        random_sources: whether ``draw`` chooses sources at random.
        transform: called with each sample, returns the sample to use.

    Raises:
        ValueError: a view has fewer than ``views - 1`` sources, or none is left; the message names
            the pair file.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        views: int = 5,
        size: tuple[int, int] | None = None,
        skip: bool = False,
        random_sources: bool = True,
        transform: Callable[[dict], dict] | None = None,
    ) -> None:
        if views < 2:
            raise ValueError(f"{views} view: multi-view stereo needs two at least")
        self.scenes, self.views, self.size = list(scenes), views, size
        self.skip, self.random_sources, self.transform = skip, random_sources, transform
        self.items: list[tuple[int, int]] = []
        for number, scene in enumerate(self.scenes):
            for index, sources in enumerate(scene.pairs):
                if len(sources) >= views - 1:
                    self.items.append((number, index))
                elif not skip:
                    raise ValueError(
                        f"{scene.pair_file or scene.name}: view {scene.views[index].name} has "
                        f"{len(sources)} sources, samples of {views} views need {views - 1}"
                    )
        if not self.items:
            raise ValueError(
                f"no view of {len(self.scenes)} scenes has {views - 1} sources; take fewer views"
            )

    def keep_on(self, shelf: Shelf) -> None:
        """Keep photographs there as they are read; sources differ from sample to sample."""
        for scene in self.scenes:
            scene.keep_on(shelf)

    @property
    def has_truth(self) -> bool:
        """Whether any scene has true depth."""
        return any(scene.has_truth for scene in self.scenes)

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Which thing every sample shows, and which view is its reference."""
        things = self._things
        return [
            (str(things[number]), self.scenes[number].views[index].name)
            for number, index in self.items
        ]

    @property
    def _things(self) -> Sequence[int]:
        """What each scene shows."""
        return range(len(self.scenes))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Read a sample with the reference's best sources.

        Raises:
            FileNotFoundError: a file has gone since the data set was made.
            ValueError: a file is damaged or empty, or the sizes differ; the message names it.
        """
        return self.draw(index, None)

    def draw(self, index: int, generator: Generator | None) -> dict[str, Tensor | str]:
        """Read a sample with sources drawn at random from the reference's list."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        for step in range(len(self)):
            number, reference = self.items[(index + step) % len(self)]
            scene = self.scenes[number]
            sources = scene.sources(reference)
            if generator is not None and self.random_sources:
                order = torch.randperm(len(sources), generator=generator).tolist()
                sources = [sources[place] for place in order]
            sources = sources[: self.views - 1]
            sample = scene.sample(reference, sources, self.size, empty_truth=self.skip)
            if not self.skip or not scene.views[reference].truth or sample["valid"].any():
                return sample if self.transform is None else self.transform(sample)
            warnings.warn(f"{sample['name']}: empty depth map, the next is taken", stacklevel=3)
        raise ValueError(f"all {len(self)} depth maps are empty")
