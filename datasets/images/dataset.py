"""Images with labels.

A sample is

==============  ===================================================================
``image``       (3, H, W) float32 in [0, 1], RGB
``label``       () int64: the class
``name``        what the image is called within its data set
``boxes``       (N, 4) float32: left, top, right, bottom in pixels; where there are any
``box_labels``  (N,) int64: the class of each
==============  ===================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

from ...vision.io.images import read_image
from ..cache import Kept, SampleCache, source_name
from .preparation import ImagePreset

__all__ = ["ImageDataset", "ImageRecord", "LabelledImages"]


class LabelledImages(Dataset):
    """What sets of images share: whole in evaluation, random crops in training (`draw`).

    Args:
        classes: names, by number.
        preset: how the images are prepared.
    """

    has_truth = True

    def __init__(self, classes: Sequence[str], preset: ImagePreset) -> None:
        self.classes, self.preset = tuple(classes), preset

    def picture(self, index: int) -> dict[str, Tensor | str]:
        """A sample as it is in the file; ``boxes`` are in its pixels."""
        raise NotImplementedError

    def with_preset(self, preset: ImagePreset) -> LabelledImages:
        """The same images prepared in another way."""
        other = copy.copy(self)
        other.preset = preset
        return other

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Read one image.

        Raises:
            FileNotFoundError: the file has gone since the data set was made.
            ValueError: it cannot be read; the message names it.
        """
        return self._prepared(index, self.preset.region)

    def draw(self, index: int, generator: Generator) -> dict[str, Tensor | str]:
        """The same, cropped at random."""
        return self._prepared(index, partial(self.preset.random_region, generator=generator))

    def _prepared(self, index: int, choose: Callable) -> dict:
        sample: dict = self.picture(index)
        region = choose(*sample["image"].shape[1:])
        sample["image"] = self.preset.prepare(sample["image"], region)
        if "boxes" in sample:
            sample["boxes"], kept = self.preset.move(sample["boxes"], region)
            sample["box_labels"] = sample["box_labels"][kept]
        return sample


class ImageRecord(NamedTuple):
    """One image."""

    name: str  #: what it is called within its data set
    path: str  #: the file
    label: int  #: number of its class
    source: str  #: where it comes from; a split keeps images of one source together
    #: (left, top, right, bottom) in pixels, each
    boxes: tuple[tuple[float, float, float, float], ...] | None = None
    box_labels: tuple[int, ...] = ()  #: the class of each


class ImageDataset(Kept, LabelledImages):
    """Images from files.

    Args:
        records: the images, in order.
        classes: names, by number.
        preset: how the images are prepared.
        title: of the set; a source of two sets with one title is the same.

    Raises:
        ValueError: a label is no class's.
    """

    def __init__(
        self,
        records: Sequence[ImageRecord],
        classes: Sequence[str],
        preset: ImagePreset,
        title: str = "images",
    ) -> None:
        super().__init__(classes, preset)
        self.records, self.title = list(records), title
        self.cache = SampleCache(None, self._source, ["image"])
        for record in self.records:
            if not all(0 <= n < len(self.classes) for n in (record.label, *record.box_labels)):
                raise ValueError(f"{record.path}: a label beyond the {len(self.classes)} classes")

    @property
    def labels(self) -> list[int]:
        """The class of every image."""
        return [record.label for record in self.records]

    @property
    def groups(self) -> list[str]:
        """Where every image comes from: what a split keeps together."""
        return [f"{self.title}, {record.source}" for record in self.records]

    def __len__(self) -> int:
        return len(self.records)

    def picture(self, index: int) -> dict[str, Tensor | str]:
        """See `LabelledImages.picture`."""
        record = self.records[index]
        sample: dict[str, Tensor | str] = {
            **self.cache.recall(index, self._read),
            "label": torch.tensor(record.label),
            "name": record.name,
        }
        if record.boxes is not None:
            sample["boxes"] = torch.tensor(record.boxes, dtype=torch.float32).reshape(-1, 4)
            sample["box_labels"] = torch.tensor(record.box_labels, dtype=torch.int64)
        return sample

    def _source(self, index: int) -> str:
        return source_name([self.records[index].path], "image")

    def _read(self, index: int) -> dict[str, Tensor]:
        return {"image": read_image(self.records[index].path)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} images of {len(self.classes)} classes)"
