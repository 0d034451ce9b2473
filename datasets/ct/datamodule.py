"""The Lightning data module of CT scans.

In a YAML file of ``vizoo fit``::

    data:
      class_path: vizoo.datasets.ct.CTDataModule
      init_args:
        train:
          - class_path: vizoo.datasets.ct.CCCCII
            init_args: {root: $VIZOO_DATA/cc-ccii, list_file: train.json}
        val:
          - class_path: vizoo.datasets.ct.CCCCII
            init_args: {root: $VIZOO_DATA/cc-ccii, list_file: val.json}
        test:
          - class_path: vizoo.datasets.ct.CCCCII
            init_args: {root: $VIZOO_DATA/cc-ccii, list_file: test.json}
        batch_size: 32
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.utils.data import Dataset

from ..datamodule import MixedDataModule
from .lists import check_disjoint
from .transforms import augmentation as make_augmentation

__all__ = ["CTDataModule"]


class CTDataModule(MixedDataModule):
    """CT sets for training, validation, test and prediction.

    A fit demands sets for all of training, validation and test, and no patient may be in two of
    them: a network or an architecture chosen on test scans has no test score. Where a published
    set has no validation list, ``val_share`` of the training patients are held out.

    Training sets are mixed by weights and augmented, their slices random. The others are taken as
    they are, several sets one after the other. The same seed gives the same training samples
    whatever the number of workers; on several GPUs each takes its share of every epoch, and of
    validation and test, where every sample counts once.

    A set is given as a data set, or as a function that makes it, which is what a YAML file comes
    to: the sets are then made, and their files checked, when ``fit``, ``test``, ... begins.

    Args:
        train: training sets.
        val: validation sets; without any, ``val_share`` of every training set is held out.
        test: test sets; a fit compares their patients with the others'.
        predict: sets to predict.
        weights: shares of the training sets in an epoch; by default in proportion to their sizes.
        samples_per_epoch: length of an epoch; by default the number of training samples.
        val_share: share of the training patients held out for validation where ``val`` is empty,
            chosen by the seed.
        augmentation: ``none``, ``flips`` or ``full``, see `VolumeAugmentation`.
        batch_size: training samples a process and step.
        eval_batch_size: samples a step elsewhere.
        workers: processes that load data, for each loader.
        seed: of the mixture, the slices, the augmentation and the held-out share.

    Raises:
        ValueError: the settings do not fit together; in ``setup`` also where a fit has no
            validation or test scans, or a patient two roles.
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
        augmentation: str = "flips",
        batch_size: int = 32,
        eval_batch_size: int = 1,
        workers: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__(
            {"train": train, "val": val, "test": test, "predict": predict},
            make_augmentation(augmentation),
            weights,
            samples_per_epoch,
            val_share,
            batch_size,
            eval_batch_size,
            workers,
            seed,
        )

    def setup(self, stage: str) -> None:
        """Make the sets of a stage; for a fit also those of the test, and compare their patients.

        Raises:
            FileNotFoundError: files are missing; the message counts and names them.
            ValueError: see the class.
        """
        super().setup(stage)
        if stage != "fit":
            return
        roles = {role: self.sets(role) for role in ("train", "val", "test")}
        if not roles["val"] or not roles["test"]:
            absent = "val" if not roles["val"] else "test"
            raise ValueError(
                f"no {absent} data: a fit wants three disjoint sets, train, val and test, so that "
                "nothing is chosen on test scans"
                + ("; val_share holds patients of train out" if absent == "val" else "")
            )
        check_disjoint(roles)
