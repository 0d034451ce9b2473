"""The Lightning data module of stereo.

YAML files of ``vizoo fit`` that name it are in ``configs/stereo``.
"""

from __future__ import annotations

from typing import Any

from ..datamodule import MixedDataModule
from .transforms import recipe

__all__ = ["StereoDataModule"]


class StereoDataModule(MixedDataModule):
    """Stereo sets for training, validation, test and prediction.

    Training pairs are augmented by a recipe and cropped to one size; the others are taken whole.

    Args:
        augmentation: ``fadnet``, ``kitti``, ``strong``, ``mild``, ``crop`` or ``none`` (see
            ``vizoo.datasets.stereo.transforms.recipe``).
        crop_height: of a training sample, pixels; not used with ``none``.
        crop_width: of a training sample, pixels; not used with ``none``.
        common: see `MixedDataModule`.

    Raises:
        ValueError: see `MixedDataModule`; or the recipe is unknown.
    """

    def __init__(
        self,
        *,
        augmentation: str = "fadnet",
        crop_height: int = 384,
        crop_width: int = 768,
        **common: Any,
    ) -> None:
        super().__init__(augment=recipe(augmentation, crop_height, crop_width), **common)
