"""Training and evaluation of disparity networks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import accumulate
from math import ceil, cos, pi
from typing import Any, Literal

import torch
from lightning import LightningModule
from timm.optim import create_optimizer_v2, list_optimizers
from torch import Tensor

from ..vision.hub.registry import create_model
from ..vision.viz.colour import comparison_picture
from .losses import multiscale_loss, upsampled_loss
from .metrics import DisparityMetrics

__all__ = ["StereoTask"]

_LOSSES = {
    "pooled": (multiscale_loss, [0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005]),
    "upsampled": (upsampled_loss, [1 / 3, 2 / 3, 1.0]),
}


class StereoTask(LightningModule):
    """Trains a disparity network on several scales and reports EPE, bad-N and D1.

    Training goes in rounds: each has its own scale weights, and the learning rate starts anew.

    Args:
        model: name of a stereo network, see `vizoo models`.
        model_args: its architecture arguments.
        init_weights: file to start from (safetensors or a Lightning checkpoint); weights only.
            To go on with an interrupted run use `--ckpt_path` instead.
        loss: `pooled` compares each scale with ground truth averaged to its size (FADNet);
            `upsampled` compares every prediction at full size (EASNet).
        scale_weights: for each round the weights of the predictions, finest first if pooled, else
            coarsest first (the last one serves all further ones); by default one round with those
            of FADNet's first, or EASNet's.
        round_epochs: length of each round; the last goes on until training ends.
        optimizer: any name that `timm.optim` knows, such as `adam`, `adamw` or `lamb`.
        optimizer_args: its further arguments.
        lr: learning rate at the start of a round.
        lr_schedule: `milestones` multiplies by `lr_gamma` at epochs of the round; `cosine` falls
            to zero at the end of the round; `constant` stays.
        lr_milestones: epochs counted from the start of the round.
        lr_gamma: factor at each milestone.
        warmup_steps: steps of linear warm-up at the start of each round.
        max_disparity: ground truth from here on is left out of the loss.
        metric_max_disparity: the same for the metrics; None for no bound (KITTI).

    Raises:
        ValueError: a setting is unknown, or two do not fit together.
    """

    def __init__(
        self,
        model: str = "fadnet_plus_tiny",
        model_args: dict[str, Any] | None = None,
        init_weights: str | None = None,
        loss: Literal["pooled", "upsampled"] = "pooled",
        scale_weights: list[list[float]] | None = None,
        round_epochs: list[int] | None = None,
        optimizer: str = "adam",
        optimizer_args: dict[str, Any] | None = None,
        lr: float = 1e-4,
        lr_schedule: Literal["milestones", "cosine", "constant"] = "milestones",
        lr_milestones: list[int] | None = None,
        lr_gamma: float = 0.5,
        warmup_steps: int = 0,
        max_disparity: float = 192.0,
        metric_max_disparity: float | None = 192.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if loss not in _LOSSES:
            raise ValueError(f"loss {loss!r} is unknown: choose {' or '.join(_LOSSES)}")
        self.stage_loss, published = _LOSSES[loss]
        self.scale_weights = scale_weights or [published]
        self.round_epochs = round_epochs or [1]
        if len(self.scale_weights) != len(self.round_epochs) or min(self.round_epochs) < 1:
            raise ValueError(
                f"{len(self.scale_weights)} lists of scale_weights and round_epochs "
                f"{self.round_epochs}: give one list of weights and one positive length a round"
            )
        if lr_schedule not in ("milestones", "cosine", "constant"):
            raise ValueError(
                f"lr_schedule {lr_schedule!r} is unknown: choose milestones, cosine or constant"
            )
        known = list_optimizers()
        if optimizer.lower().rpartition("_")[2] not in known:  # `lookahead_adam` is one too
            near = get_close_matches(optimizer, known) or known
            raise ValueError(
                f"timm has no optimizer {optimizer!r}; did you mean {', '.join(near)}?"
            )
        if model.startswith(("hf-hub:", "local-dir:")):
            raise ValueError(f"model {model!r}: name the model, and give this as init_weights")
        self.net = create_model(model, weights=init_weights, **(model_args or {}))
        self.net.to(memory_format=torch.channels_last)  # 1.6 times as fast on a CPU
        self.val_metrics = DisparityMetrics(metric_max_disparity)
        self.test_metrics = DisparityMetrics(metric_max_disparity)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Disparity (B, 1, H, W) of images (B, 3, H, W) in [0, 1]."""
        return self.net(left, right)

    def round_at(self, epoch: int) -> tuple[int, int]:
        """The round that an epoch belongs to, and the epoch at which that round starts."""
        starts = [0, *accumulate(self.round_epochs[:-1])]
        index = bisect_right(starts, epoch) - 1
        return index, starts[index]

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(self.outputs(batch), batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["left"]))
        return loss

    def outputs(self, batch: dict[str, Tensor]) -> Sequence[Sequence[Tensor]]:
        """What the network predicts in training: for each stage disparities, finest first."""
        return self.net.forward_stages(batch["left"], batch["right"])

    def loss(self, outputs: Sequence[Sequence[Tensor]], batch: dict[str, Tensor]) -> Tensor:
        """The loss of `outputs` against the ground truth."""
        weights = self.scale_weights[self.round_at(self.current_epoch)[0]]
        truth, valid = batch["disparity"], batch["valid"]
        return self.stage_loss(outputs, truth, valid, weights, self.hparams.max_disparity)

    def distillation_loss(
        self,
        outputs: Sequence[Sequence[Tensor]],
        teacher_outputs: Sequence[Sequence[Tensor]],
        batch: dict[str, Tensor],
    ) -> Tensor:
        """The loss of `outputs` against a teacher's finest disparity where truth is known."""
        truth, finest = batch["disparity"], teacher_outputs[-1][0].detach().float()
        valid = batch["valid"] & (truth > 0) & (truth < self.hparams.max_disparity)
        return self.loss(outputs, {**batch, "disparity": finest, "valid": valid})

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        prediction = self(batch["left"], batch["right"]).float()
        self.val_metrics.update(prediction, batch["disparity"], batch["valid"])
        if batch_idx == 0:
            self._log_picture(batch, prediction)

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val", self.val_metrics)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        prediction = self(batch["left"], batch["right"]).float()
        self.test_metrics.update(prediction, batch["disparity"], batch["valid"])

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test", self.test_metrics)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        disparity = self(batch["left"], batch["right"]).float()
        return {"name": batch["name"], "disparity": disparity}

    def configure_optimizers(self) -> dict[str, Any]:
        hparams = self.hparams
        try:
            optimizer = create_optimizer_v2(
                self.net,
                opt=hparams.optimizer,
                lr=hparams.lr,
                **{"weight_decay": 0.0, **(hparams.optimizer_args or {})},
            )
        except TypeError as error:
            raise ValueError(f"optimizer_args of {hparams.optimizer}: {error}") from error
        total = self.trainer.estimated_stepping_batches
        if hparams.lr_schedule == "cosine" and total == float("inf"):
            raise ValueError("a cosine schedule needs an end: set trainer.max_epochs or max_steps")
        per_epoch = max(
            1, ceil(self.trainer.num_training_batches / self.trainer.accumulate_grad_batches)
        )

        def factor(step: int) -> float:
            epoch = step // per_epoch
            index, start = self.round_at(epoch)
            done = step - start * per_epoch
            warm = min(1.0, (done + 1) / (hparams.warmup_steps + 1))
            if hparams.lr_schedule == "milestones":
                return warm * hparams.lr_gamma ** bisect_right(
                    hparams.lr_milestones or [], epoch - start
                )
            if hparams.lr_schedule == "cosine":
                last = index == len(self.round_epochs) - 1
                length = self.round_epochs[index] * per_epoch
                length = max(1, total - start * per_epoch) if last else length
                return warm * 0.5 * (1 + cos(pi * min(1.0, done / length)))
            return warm

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _log_metrics(self, stage: str, metrics: DisparityMetrics) -> None:
        values = {f"{stage}/{name}": value for name, value in metrics.compute().items()}
        epe = values.pop(f"{stage}/epe")
        # Equal on all processes already; Lightning cannot know and would warn.
        self.log_dict(values, sync_dist=True)
        self.log(f"{stage}/epe", epe, prog_bar=True, sync_dist=True)
        metrics.reset()

    def _log_picture(self, batch: dict[str, Any], prediction: Tensor) -> None:
        experiments: Sequence[Any] = [logger.experiment for logger in self.loggers]
        writers = [e for e in experiments if hasattr(e, "add_image")]
        if not writers or not self.trainer.is_global_zero:
            return
        picture = comparison_picture(
            batch["left"][0], prediction[0], batch["disparity"][0], batch["valid"][0]
        )
        for writer in writers:
            writer.add_image("val/disparity", picture, self.global_step, dataformats="HWC")
