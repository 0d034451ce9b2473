"""The Lightning data module of images with labels.

YAML files of ``vizoo fit`` that name it are in ``configs/classification``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..datamodule import MixedDataModule
from ..files import check_choice
from ..mixture import LabelledSamples, Mixture, Part, Samples, collate
from .transforms import NAMES, ImageAugmentation

__all__ = ["ImageDataModule", "collate_images"]


def collate_images(samples: Sequence[dict]) -> dict:
    """As `collate`; boxes, whose number differs, become lists of tensors."""
    names = ("boxes", "box_labels")
    plain = collate([{k: v for k, v in sample.items() if k not in names} for sample in samples])
    shared = [name for name in names if all(name in sample for sample in samples)]
    return {**plain, **{name: [sample[name] for sample in samples] for name in shared}}


class ImageDataModule(MixedDataModule):
    """Image sets for training, validation, test and prediction; training crops are random.

    Args:
        balanced: every class has the same share of an epoch, however many images it has, instead
            of `weights`.
        augmentation: ``none``, ``mirror``, ``flips``, ``colour``, ``randaugment`` or
            ``trivialaugment``, see `ImageAugmentation`.
        batch_size: training samples a process and step.
        eval_batch_size: samples a step elsewhere.
        common: see `MixedDataModule`.

    Raises:
        ValueError: see `MixedDataModule`; the augmentation is unknown, or classes are balanced and
            sets have weights; in ``setup`` also where images of one source have two roles.
    """

    kept_apart = "sources of images"
    collate = staticmethod(collate_images)

    def __init__(
        self,
        *,
        balanced: bool = False,
        augmentation: str = "colour",
        batch_size: int = 32,
        eval_batch_size: int = 32,
        **common: Any,
    ) -> None:
        check_choice("augmentation", augmentation, ("none", *NAMES))
        super().__init__(
            augment=None if augmentation == "none" else ImageAugmentation(augmentation),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            **common,
        )
        if balanced and self.weights is not None:
            raise ValueError("give weights of the sets or balanced classes, not both")
        self.balanced = balanced

    def mixture(self, sets: Sequence[Samples], length: int | None) -> Mixture:
        """The training samples of an epoch."""
        if not self.balanced:
            return super().mixture(sets, length)
        length = length or sum(map(len, sets))
        labelled = cast("Sequence[LabelledSamples]", sets)
        parts, shares = [], []
        for number in sorted({label for samples in labelled for label in samples.labels}):
            places = [[i for i, n in enumerate(s.labels) if n == number] for s in labelled]
            total = sum(map(len, places))
            for samples, indices in zip(labelled, places, strict=True):
                if indices:
                    parts.append(Part(samples, indices))
                    shares.append(len(indices) / total)
        return Mixture(parts, shares, length, self.augment, self.seed)
