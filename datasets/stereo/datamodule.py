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

from collections.abc import Callable, Sequence

from torch.utils.data import Dataset

from ..datamodule import MixedDataModule
from .transforms import recipe

__all__ = ["StereoDataModule"]


class StereoDataModule(MixedDataModule):
    """Stereo sets for training, validation, test and prediction.

    Training sets are mixed by weights, augmented by a recipe and cropped to one size. Validation,
    test and prediction take the pairs whole, several sets one after the other. The same seed
    gives the same training samples whatever the number of workers; on several GPUs each takes its
    share of every epoch, and of validation and test, where every pair counts once.

    A set is given as a data set, or as a function that makes it, which is what a YAML file comes
    to: the sets are then made, and their files checked, when ``fit``, ``test``, ... begins, and
    only those that it uses.

    Args:
        train: training sets.
        val: validation sets; without any, ``val_share`` of every training set is held out.
        test: test sets.
        predict: sets to predict; they need no ground truth.
        weights: shares of the training sets in an epoch; by default in proportion to their sizes.
        samples_per_epoch: length of an epoch; by default the number of training pairs.
        val_share: share of the training pairs held out for validation where ``val`` is empty,
            chosen by the seed; 0 for no validation.
        augmentation: ``fadnet``, ``kitti``, ``strong``, ``crop`` or ``none`` (see
            ``vizoo.datasets.stereo.transforms.recipe``).
        crop_height: of a training sample, pixels; not used with ``none``.
        crop_width: of a training sample, pixels; not used with ``none``.
        batch_size: training pairs a process and step.
        eval_batch_size: pairs a step elsewhere; more than 1 needs pairs of one size.
        workers: processes that load data, for each loader.
        seed: of the mixture, the augmentation and the held-out share.

    Raises:
        ValueError: the settings do not fit together; in ``setup`` also where a set to learn or
            measure on has no ground truth.
    """

    def __init__(
        self,
        train: Sequence[Callable[[], Dataset]] = (),
        val: Sequence[Callable[[], Dataset]] = (),
        test: Sequence[Callable[[], Dataset]] = (),
        predict: Sequence[Callable[[], Dataset]] = (),
        weights: list[float] | None = None,
        samples_per_epoch: int | None = None,
        val_share: float = 0.0,
        augmentation: str = "fadnet",
        crop_height: int = 384,
        crop_width: int = 768,
        batch_size: int = 4,
        eval_batch_size: int = 1,
        workers: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__(
            {"train": train, "val": val, "test": test, "predict": predict},
            recipe(augmentation, crop_height, crop_width),
            weights,
            samples_per_epoch,
            val_share,
            batch_size,
            eval_batch_size,
            workers,
            seed,
        )
