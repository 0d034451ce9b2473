"""The Lightning data module of panorama depth.

YAML files of ``vizoo fit`` that name it are in ``configs/panorama``.
"""

from __future__ import annotations

from typing import Any

from ..datamodule import MixedDataModule
from .transforms import augmentation as make_augmentation

__all__ = ["PanoramaDataModule"]


class PanoramaDataModule(MixedDataModule):
    """Panorama sets for training, validation, test and prediction.

    Args:
        augmentation: ``none``, or ``sphere``: any turn about the vertical, mirrored half of the
            time, other colours half of the time.
        tilt: the largest angle in degrees by which ``sphere`` also tilts the vertical.
        common: see `MixedDataModule`.

    Raises:
        ValueError: see `MixedDataModule`; or the augmentation is unknown.
    """

    def __init__(self, *, augmentation: str = "sphere", tilt: float = 0.0, **common: Any) -> None:
        super().__init__(augment=make_augmentation(augmentation, tilt), **common)
