"""The Lightning data module of stereo: which sets to train, validate, test and predict on.

In a YAML file of ``vizoo fit``::

    data:
      class_path: vizoo.datasets.stereo.StereoDataModule
      init_args:
        train:
          - class_path: vizoo.datasets.stereo.KITTI2015
            init_args: {root: $VIZOO_DATA/kitti2015, split: train}
          - class_path: vizoo.datasets.stereo.KITTI2012
            init_args: {root: $VIZOO_DATA/kitti2012, split: train}
        weights: [2, 1]
        val:
          - class_path: vizoo.datasets.stereo.KITTI2015
            init_args: {root: $VIZOO_DATA/kitti2015, split: val}
        augmentation: kitti
        crop_height: 256
        crop_width: 512
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
