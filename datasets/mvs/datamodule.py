"""The Lightning data module of multi-view stereo.

YAML files of ``vizoo fit`` that name it are in ``configs/mvs``.
"""

from __future__ import annotations

from typing import Any

from ..datamodule import MixedDataModule
from .transforms import augmentation as make_augmentation

__all__ = ["MVSDataModule"]


class MVSDataModule(MixedDataModule):
    """Multi-view sets for training, validation, test and prediction.

    Training samples take sources drawn at random from the pair lists; the others take each
    reference's best sources.

    Args:
        augmentation: ``none``, as published, or ``colour`` (brightness and contrast jitter, which
            published code has and leaves off).
        crop_height: rows of a window cut out of training samples; by default they stay whole.
        crop_width: columns of that window.
        common: see `MixedDataModule`.

    Raises:
        ValueError: see `MixedDataModule`; or the augmentation is unknown.
    """

    def __init__(
        self,
        *,
        augmentation: str = "none",
        crop_height: int | None = None,
        crop_width: int | None = None,
        **common: Any,
    ) -> None:
        augment = make_augmentation(augmentation, crop_height, crop_width)
        super().__init__(augment=augment, **common)
