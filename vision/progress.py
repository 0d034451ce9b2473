"""What a run tells: a table of its model, then a bar on a terminal, or lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import timedelta
from time import perf_counter
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelSummary, RichProgressBar
from lightning.pytorch.utilities.model_summary import get_human_readable_count
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from rich.console import Console
from rich.table import Table

__all__ = ["EpochProgressBar", "ParameterTable", "ProgressLines"]


class EpochProgressBar(RichProgressBar):
    """Lightning's bar, which counts epochs from one and shows only where it can be redrawn."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave pipes, files and plain terminals to `ProgressLines`."""
        super().setup(trainer, pl_module, stage)
        if not Console().is_interactive:
            self.disable()

    def _get_train_description(self, current_epoch: int) -> str:
        return _epoch(self.trainer).capitalize().ljust(len(self.validation_description))


class ParameterTable(ModelSummary):
    """Lightning's table of a model's parts without the FLOPs, which it gives as 0."""

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,
    ) -> None:
        """Print the table."""
        columns = {name: cells for name, cells in summary_data if name.strip() and name != "FLOPs"}
        table = Table()
        for name in columns:
            table.add_column(name, justify="right" if name.startswith("Params") else "left")
        for row in zip(*columns.values(), strict=True):
            table.add_row(*row)
        frozen = total_parameters - trainable_parameters
        console = Console()
        console.print(table)
        console.print(
            f"{get_human_readable_count(total_parameters).strip()} params, "
            f"{get_human_readable_count(frozen).strip()} frozen, {model_size:.1f} MB",
            highlight=False,
        )


class ProgressLines(Callback):
    """Prints lines where no progress bar shows: after every epoch, and every half minute.

    A line holds what a task logs with ``prog_bar=True``; it goes where Lightning logs, to stderr.
    A run whose progress bar is switched off prints none.

    Args:
        interval: seconds between lines within an epoch, a validation or a test.
    """

    def __init__(self, interval: float = 30.0) -> None:
        self.interval = interval
        self._said = self._epoch_began = perf_counter()
        self._phase, self._first, self._since = "", 0, 0.0
        self._known, self._measured, self._validated = set[str](), set[str](), False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start the clock of the lines."""
        self._said = perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; an epoch that a resumed run goes on with has no start of its own."""
        self._epoch_began = perf_counter()
        self._validated = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tell how far the epoch is."""
        if self._due(trainer, _epoch(trainer), batch_idx + 1):
            self._say(batch_idx + 1, trainer.num_training_batches, _values(trainer))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take down what is shown already, to know what the validation adds."""
        self._known = set(trainer.progress_bar_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take down what the validation added; Lightning shows it until the next one."""
        if trainer.sanity_checking:  # training has shown nothing yet
            return
        self._measured |= set(trainer.progress_bar_metrics) - self._known
        self._validated = True

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *step: Any
    ) -> None:
        """Tell how far the validation is."""
        checking = trainer.sanity_checking
        totals = trainer.num_sanity_val_batches if checking else trainer.num_val_batches
        self._evaluated(trainer, "sanity check" if checking else "validation", totals, *step)

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *step: Any) -> None:
        """Tell how far the test is."""
        self._evaluated(trainer, "test", trainer.num_test_batches, *step)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *step: Any
    ) -> None:
        """Tell how far the prediction is."""
        self._evaluated(trainer, "prediction", trainer.num_predict_batches, *step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell how the epoch ended; Lightning has validated by now."""
        if _silent(trainer):
            return
        now = perf_counter()
        earlier = () if self._validated else self._measured
        parts = (*_values(trainer, earlier), f"{now - self._epoch_began:.0f} s")
        rank_zero_info(f"{_epoch(trainer)}, step {trainer.global_step}: {', '.join(parts)}")
        self._epoch_began = self._said = now
        self._validated = False

    def _evaluated(
        self,
        trainer: Trainer,
        name: str,
        totals: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        loader: int = 0,
    ) -> None:
        totals = totals if isinstance(totals, list) else [totals]
        phase = name if len(totals) == 1 else f"{name} {loader + 1}/{len(totals)}"
        if self._due(trainer, phase, batch_idx + 1):
            self._say(batch_idx + 1, totals[loader], [])

    def _due(self, trainer: Trainer, phase: str, done: int) -> bool:
        """Whether a line is due; the speed is measured from a phase's first batch on."""
        now = perf_counter()
        if phase != self._phase or done <= self._first:
            self._phase, self._first, self._since = phase, done, now
        if not trainer.is_global_zero or now - self._said < self.interval:
            return False
        self._said = now
        return not _silent(trainer)

    def _say(self, done: int, total: float, parts: list[str]) -> None:
        finite = math.isfinite(total)
        where = f"{self._phase}, batch {done}/{total}" if finite else f"{self._phase}, batch {done}"
        if done > self._first:
            each = (self._said - self._since) / (done - self._first)
            parts.append(f"{each:.2g} s/batch" if each > 1 else f"{1 / each:.3g} batches/s")
            if finite:
                parts.append(f"{timedelta(seconds=round((total - done) * each))} to go")
        rank_zero_info(f"{where}: {', '.join(parts)}" if parts else where)


def _epoch(trainer: Trainer) -> str:
    last = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
    return f"epoch {trainer.current_epoch + 1}{last}"


def _values(trainer: Trainer, left_out: Collection[str] = ()) -> list[str]:
    shown = trainer.progress_bar_metrics.items()
    return [f"{name} {value:.4g}" for name, value in shown if name not in left_out]


def _silent(trainer: Trainer) -> bool:
    """A bar shows, or the user wants none."""
    return trainer.progress_bar_callback is None or Console().is_interactive
