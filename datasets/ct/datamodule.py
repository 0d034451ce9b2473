"""The Lightning data module of CT scans.

YAML files of ``vizoo fit`` that name it are in ``configs/classification``.
"""

from __future__ import annotations

from typing import Any

from ..datamodule import MixedDataModule
from ..files import check_choice
from .transforms import VolumeAugmentation

__all__ = ["CTDataModule"]


class CTDataModule(MixedDataModule):
    """CT sets for training, validation, test and prediction.

    A fit demands sets for all of training, validation and test, and no patient may be in two of
    them: a network or an architecture chosen on test scans has no test score. Where a published
    set has no validation list, ``val_share`` of the training patients are held out. Training scans
    are augmented, their slices random.

    Args:
        augmentation: ``none``; ``flips``, as published; or ``full``, see `VolumeAugmentation`.
        batch_size: training samples a process and step.
        common: see `MixedDataModule`.

    Raises:
        ImportError: ``full`` without MONAI.
        ValueError: see `MixedDataModule`; or the augmentation is unknown; in ``setup`` also where a
            fit has no validation or test scans, or a patient two roles.
    """

    kept_apart = "patients"

    def __init__(self, *, augmentation: str = "flips", batch_size: int = 32, **common: Any) -> None:
        check_choice("augmentation", augmentation, ("none", "flips", "full"))
        augment = None if augmentation == "none" else VolumeAugmentation(augmentation == "full")
        super().__init__(augment=augment, batch_size=batch_size, **common)

    def setup(self, stage: str) -> None:
        """Make the sets of a stage, for a fit also those of the test.

        Raises:
            FileNotFoundError: files are missing; the message counts and names them.
            ValueError: see the class.
        """
        super().setup(stage)
        for role, remedy in (("val", "; val_share holds patients of train out"), ("test", "")):
            if stage == "fit" and not self.sets(role):
                raise ValueError(
                    f"no {role} data: a fit wants three disjoint sets, train, val and test, so "
                    f"that nothing is chosen on test scans{remedy}"
                )
