"""The Lightning data module of multi-view stereo.

YAML files of ``vizoo fit`` that name it are in ``configs/mvs``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...common.arguments import check_arguments
from ..datamodule import MixedDataModule
from ..files import check_choice
from ..stereo.transforms import Compose
from .transforms import ColourJitter, PoseError, RandomCrop

__all__ = ["MVSDataModule"]


class MVSDataModule(MixedDataModule):
    """Multi-view sets for training, validation, test and prediction.

    Training samples take sources drawn at random from the pair lists; the others take each
    reference's best sources.

    Args:
        augmentation: ``none``, as published, or ``colour`` (brightness and contrast jitter of 0.5
            each, which published code has and leaves off).
        crop_height: rows of a window cut out of training samples; by default they stay whole.
        crop_width: columns of that window.
        pose_error: how far off the poses of training samples' sources are made, as degrees and as
            a share of the distance from the reference (see `PoseError`); None leaves them.
        common: see `MixedDataModule`.

    Raises:
        ValueError: see `MixedDataModule`; or the augmentation is unknown, only one side of the
            crop is given, or the pose error is out of range.
    """

    def __init__(
        self,
        *,
        augmentation: str = "none",
        crop_height: int | None = None,
        crop_width: int | None = None,
        pose_error: tuple[float, float] | None = None,
        **common: Any,
    ) -> None:
        check_arguments("MVSDataModule", MVSDataModule.__init__, {"pose_error": pose_error})
        check_choice("augmentation", augmentation, ("none", "colour"))
        if (crop_height is None) != (crop_width is None):
            raise ValueError(f"a crop of {crop_height}x{crop_width}: give both sides, or neither")
        steps: list[Callable] = []
        if crop_height is not None and crop_width is not None:
            steps.append(RandomCrop(crop_height, crop_width))
        if augmentation == "colour":
            steps.append(ColourJitter())
        if pose_error is not None:
            steps.append(PoseError(*pose_error))
        super().__init__(augment=Compose(steps) if steps else None, **common)
