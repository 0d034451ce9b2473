"""Writing what `vizoo predict` finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from ..vision.io.disparity import write_disparity

__all__ = ["DisparityWriter"]


class DisparityWriter(BasePredictionWriter):
    """Writes each predicted disparity to `FOLDER/NAME.SUFFIX`, as soon as it is there.

    Args:
        folder: made if it is missing; names of a data set may add folders of their own.
        suffix: `png` (16 bits, 256 d, as KITTI's server takes it), `pfm` or `npy`.
    """

    def __init__(
        self, folder: str = "predictions", suffix: Literal["png", "pfm", "npy"] = "png"
    ) -> None:
        super().__init__(write_interval="batch")
        self.folder = Path(folder)
        self.suffix = suffix

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: dict[str, Any],
        batch_indices: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the disparities of a batch."""
        for name, disparity in zip(prediction["name"], prediction["disparity"], strict=True):
            path = self.folder / f"{name}.{self.suffix}"
            write_disparity(path, disparity)
