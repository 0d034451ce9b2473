"""The Lightning data module of panorama depth.

In a YAML file of ``vizoo fit``::

    data:
      class_path: vizoo.datasets.panorama.PanoramaDataModule
      init_args:
        train:
          - class_path: vizoo.datasets.panorama.Stanford2D3D
            init_args: {root: $VIZOO_DATA/stanford2d3d, list_file: train.txt}
        val:
          - class_path: vizoo.datasets.panorama.Stanford2D3D
            init_args: {root: $VIZOO_DATA/stanford2d3d, list_file: val.txt}
        batch_size: 4
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.utils.data import Dataset

from ..datamodule import MixedDataModule
from .transforms import augmentation as make_augmentation

__all__ = ["PanoramaDataModule"]


class PanoramaDataModule(MixedDataModule):
    """Panorama sets for training, validation, test and prediction.

    Training sets are mixed by weights and augmented. The others are taken as they are, several
    sets one after the other. The same seed gives the same training samples whatever the number of
    workers; on several GPUs each takes its share of every epoch, and of validation and test, where
    every sample counts once.

    A set is given as a data set, or as a function that makes it, which is what a YAML file comes
    to: the sets are then made, and their files checked, when ``fit``, ``test``, ... begins, and
    only those that it uses.

    Args:
        train: training sets.
        val: validation sets; without any, ``val_share`` of every training set is held out.
        test: test sets.
        predict: sets to predict; they need no ground truth.
        weights: shares of the training sets in an epoch; by default in proportion to their sizes.
        samples_per_epoch: length of an epoch; by default the number of training samples.
        val_share: share of the training samples held out for validation where ``val`` is empty,
            chosen by the seed; 0 for no validation.
        augmentation: ``none``, or ``sphere``: any turn about the vertical, mirrored half of the
            time, other colours half of the time.
        tilt: the largest angle in degrees by which ``sphere`` also tilts the vertical.
        batch_size: training samples a process and step.
        eval_batch_size: samples a step elsewhere; more than 1 needs samples of one size.
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
        augmentation: str = "sphere",
        tilt: float = 0.0,
        batch_size: int = 4,
        eval_batch_size: int = 1,
        workers: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__(
            {"train": train, "val": val, "test": test, "predict": predict},
            make_augmentation(augmentation, tilt),
            weights,
            samples_per_epoch,
            val_share,
            batch_size,
            eval_batch_size,
            workers,
            seed,
        )
