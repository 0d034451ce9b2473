"""The Lightning data module of panorama depth.

YAML files of ``vizoo fit`` that name it are in ``configs/panorama``.
"""

from __future__ import annotations

from typing import Any

from ..datamodule import MixedDataModule
from ..files import check_choice
from .transforms import SphereAugmentation

__all__ = ["PanoramaDataModule"]


class PanoramaDataModule(MixedDataModule):
    """Panorama sets for training, validation, test and prediction.

    Args:
        augmentation: ``none``, or ``sphere``: any turn about the vertical, mirrored half of the
            time, other colours half of the time; or ``strong``: the same in light and colours that
            have little to do with the picture's.
        tilt: the largest angle in degrees by which both also tilt the vertical.
        common: see `MixedDataModule`.

    Raises:
        ValueError: see `MixedDataModule`; or the augmentation is unknown, or the
            tilt out of its range.
    """

    def __init__(self, *, augmentation: str = "sphere", tilt: float = 0.0, **common: Any) -> None:
        check_choice("augmentation", augmentation, ("none", "sphere", "strong"))
        strong = augmentation == "strong"
        augment = None if augmentation == "none" else SphereAugmentation(tilt, strong)
        super().__init__(augment=augment, **common)
