"""A data set of generated CT scans, made on the fly: nothing to download."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ..cache import MadeDataset, SampleCache
from ..draws import Draws
from .chest import CHEST_VERSION, Chest
from .preparation import CTPreset, frames_of, take
from .volume import CTVolume

__all__ = ["CLASSES", "GeneratedCT"]

#: Names of the classes, by their number, as in the published sets.
CLASSES = {2: ("Normal", "NCP"), 3: ("CP", "NCP", "Normal")}

#: What the chest of a class has.
_FINDING_OF = {"Normal": "normal", "NCP": "covid", "CP": "pneumonia"}


class GeneratedCT(MadeDataset):
    """Map-style data set; scan i depends on ``seed`` and i alone, in any order and any worker.

    The classes take turns. A different seed gives different patients, so training, validation and
    test sets of one seed each never meet. Samples are those of ``vizoo.datasets.ct.dataset`` and
    ``lesion``, (1, D, H, W) bool: where the lesions are.

    Args:
        length: number of scans, of one patient each.
        classes: 2: ``Normal`` and ``NCP`` (ground-glass opacities); 3: ``CP`` (a consolidation),
            ``NCP`` and ``Normal``.
        preset: how the scans are prepared.
        depth: slices of a scan, from which the preset's are taken.
        seed: names the series of scans.
        paired: each patient is scanned once with every class, so that nothing but lesions tells the
            classes apart; else each scan has a patient of its own.
        cache: folder that keeps the prepared scans, so that later epochs read what the first one
            made. None: every scan is made anew.

    Raises:
        ValueError: a number is out of its range.
    """

    has_truth = True

    def __init__(
        self,
        length: int,
        classes: int = 2,
        preset: CTPreset = CTPreset((64, 64), 16),  # noqa: B008 (it is frozen)
        depth: int = 24,
        seed: int = 0,
        paired: bool = False,
        cache: str | None = None,
    ) -> None:
        if classes not in CLASSES:
            raise ValueError(f"generated scans of {classes} classes: choose 2 or 3")
        if length < 1 or depth < 2:
            raise ValueError(
                f"generated scans: length {length} and depth {depth} must be at least 1 and 2"
            )
        self.length, self.depth, self.seed, self.preset = length, depth, seed, preset
        self.classes, self.paired = CLASSES[classes], paired
        kind = f"{seed}-{classes}-{depth}" + ("-paired" if paired else "")
        name = f"chests{CHEST_VERSION}-{kind}-{preset}".replace(" ", "")
        self.cache = SampleCache(cache, name, [])

    @property
    def labels(self) -> list[int]:
        """The class of every scan."""
        return [index % len(self.classes) for index in range(self.length)]

    @property
    def groups(self) -> list[str]:
        """The patient of every scan."""
        return [self._patient(index) for index in range(self.length)]

    def __getitem__(self, index: int) -> dict[str, Tensor | str]:
        """Scan ``index``, with the slices of the preset's sampler.

        Raises:
            IndexError: beyond the ends, so that the data set can be iterated.
        """
        return self.draw(index, None)

    def chest(self, index: int) -> Chest:
        """The chest of a scan, to scan it at another resolution."""
        kind = self.classes[index % len(self.classes)]
        number = index // len(self.classes) if self.paired else index
        return Chest(Draws("item", self.seed, number).bits(), _FINDING_OF[kind])

    def draw(self, index: int, generator: Generator | None) -> dict[str, Tensor | str]:
        """The same with random slices; without a generator those of the preset's sampler."""
        if not -self.length <= index < self.length:
            raise IndexError(f"generated scans: index {index} of {self.length}")
        index = int(index) % self.length
        made = self.cache.recall(index, self._make)
        scan = take(made, self.preset, generator)
        lesion = made["lesion"][scan["slices"]][None]
        whose = {"name": self.name(index), "patient": self._patient(index)}
        return {**scan, "label": torch.tensor(self.labels[index]), "lesion": lesion, **whose}

    def _make(self, index: int) -> dict[str, Tensor]:
        height, width = (max(1, round(self.preset.margin * side)) for side in self.preset.size)
        values, mask, affine = self.chest(index).scan((self.depth, height, width))
        source = self.name(index)
        frames = frames_of(CTVolume(values, affine, source=source), self.preset)
        lesion = frames_of(CTVolume(mask, affine, source=source), self.preset, window=False)
        return {**frames, "lesion": lesion["frames"].int() > 32767}

    def _patient(self, index: int) -> str:
        return self.name(index // len(self.classes) * len(self.classes) if self.paired else index)

    def __repr__(self) -> str:
        kinds = ", ".join(self.classes)
        return f"GeneratedCT({self.length} of {kinds}, seed {self.seed})"
