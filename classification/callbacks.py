"""Writing what `vizoo predict` finds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from ..common.ranks import gathered
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
        batches = [(b["name"], b["probabilities"].tolist()) for b in predictions]
        samples = [sample for batch in batches for sample in zip(*batch, strict=True)]
        turns = itertools.zip_longest(*gathered(samples))  # dealt out to processes in turn
        samples = [sample for turn in turns for sample in turn if sample is not None]
        if trainer.is_global_zero:
            names, rows = zip(*samples, strict=True)
            write_predictions(self.path, predictions[0]["classes"], names, rows)
            rank_zero_info(f"classes and probabilities: {self.path.absolute()}")
