"""Writing what `vizoo predict` finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from .reports import write_predictions

__all__ = ["PredictionTable"]


class PredictionTable(BasePredictionWriter):
    """Writes one CSV table, `predictions.csv`: name, class, probability of every class.

    Args:
        folder: made if it is missing.
    """

    def __init__(self, folder: str = "predictions") -> None:
        super().__init__(write_interval="epoch")
        self.path = Path(folder) / "predictions.csv"

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[dict[str, Any]],
        batch_indices: Any,
    ) -> None:
        """Write the table, of all processes."""
        names = [name for batch in predictions for name in batch["name"]]
        rows = [row for batch in predictions for row in batch["probabilities"].tolist()]
        if trainer.world_size > 1:
            parts: list[Any] = [None] * trainer.world_size
            torch.distributed.all_gather_object(parts, (names, rows))
            names, rows = ([entry for part in parts for entry in part[i]] for i in (0, 1))
        if trainer.is_global_zero:
            classes = predictions[0]["classes"]
            write_predictions(self.path, classes, names, rows)
