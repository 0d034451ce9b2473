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

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from .mixture import EpochSampler, Mixture, collate, split_by_seed
from .transforms import recipe

__all__ = ["StereoDataModule"]


class StereoDataModule(LightningDataModule):
    """Stereo sets for training, validation, test and prediction.

    Training sets are mixed by weights, augmented by a recipe and cropped to one size. Validation,
    test and prediction take the pairs whole, several sets one after the other. The same seed
    gives the same training samples whatever the number of workers; on several GPUs each takes its
    share of every epoch.

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
        ValueError: the settings do not fit together, or a set to learn or measure on has no
            ground truth.
    """

    def __init__(
        self,
        train: list[Dataset] | None = None,
        val: list[Dataset] | None = None,
        test: list[Dataset] | None = None,
        predict: list[Dataset] | None = None,
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
        super().__init__()
        self.sets = {
            "train": list(train or []),
            "val": list(val or []),
            "test": list(test or []),
            "predict": list(predict or []),
        }
        for role in ("train", "val", "test"):
            _check_truth(role, self.sets[role])
        if batch_size < 1 or eval_batch_size < 1 or workers < 0:
            raise ValueError(
                f"batch_size {batch_size}, eval_batch_size {eval_batch_size} and workers {workers} "
                "must be at least 1, 1 and 0"
            )
        if not 0 <= val_share < 1:
            raise ValueError(f"val_share {val_share} must be at least 0 and less than 1")
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.workers = workers
        self.seed = seed
        training = self.sets["train"]
        if training and val_share and not self.sets["val"]:
            halves = [split_by_seed(dataset, val_share, seed) for dataset in training]
            training, self.sets["val"] = (list(part) for part in zip(*halves, strict=True))
        augment = recipe(augmentation, crop_height, crop_width)
        self.mixture = (
            Mixture(training, weights, samples_per_epoch, augment, seed) if training else None
        )

    def train_dataloader(self) -> DataLoader:
        """Batches of ``batch_size`` crops; the last, smaller one of an epoch is left out."""
        if self.mixture is None:
            raise ValueError("no training data: give the data module `train`, a list of data sets")
        processes, rank = 1, 0
        if self.trainer is not None:
            processes, rank = self.trainer.world_size, self.trainer.global_rank
        sampler = EpochSampler(self.mixture, processes, rank, seed=self.seed)
        return self._loader(
            self.mixture,
            self.batch_size,
            sampler=sampler,
            drop_last=len(sampler) >= self.batch_size,
        )

    def val_dataloader(self) -> DataLoader | list:
        """Whole pairs of the validation sets, one set after the other."""
        return self._whole("val") if self.sets["val"] else []

    def test_dataloader(self) -> DataLoader:
        """Whole pairs of the test sets, one set after the other."""
        return self._whole("test")

    def predict_dataloader(self) -> DataLoader:
        """Whole pairs of the sets to predict, one set after the other."""
        return self._whole("predict")

    def _whole(self, role: str) -> DataLoader:
        if not self.sets[role]:
            raise ValueError(f"no {role} data: give the data module `{role}`, a list of data sets")
        return self._loader(ConcatDataset(self.sets[role]), self.eval_batch_size)

    def _loader(self, dataset: Dataset, batch_size: int, **arguments: object) -> DataLoader:
        return DataLoader(
            dataset,
            batch_size=batch_size,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=collate,
            **arguments,
        )


def _check_truth(role: str, datasets: list[Dataset]) -> None:
    for number, dataset in enumerate(datasets):
        if not getattr(dataset, "has_disparity", True):
            raise ValueError(
                f"{role} set {number + 1} ({type(dataset).__name__}) has no ground truth; it can "
                "only be predicted"
            )
