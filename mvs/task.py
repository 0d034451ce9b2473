"""Training and evaluation of multi-view depth networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from lightning import LightningModule
from torch import Tensor

from ..vision.io.images import to_bytes
from ..vision.training import (
    check_optimisation,
    keep_arguments,
    log_metrics,
    log_picture,
    optimisation,
    starting_network,
)
from ..vision.viz.colour import colour_range, colourise
from .losses import sequence_loss
from .metrics import DepthMetrics

__all__ = ["MVSTask", "depth_comparison"]

Outputs = tuple[Sequence[Tensor], Sequence[Tensor]]


class MVSTask(LightningModule):
    """Trains a depth network on every iteration of both stages; reports depth errors.

    Args:
        model: name of a multi-view-stereo network, see `vizoo models`.
        model_args: its architecture arguments.
        init_weights: file to start from (safetensors or a Lightning checkpoint); weights only.
            To go on with an interrupted run use `--ckpt_path` instead.
        loss_gamma: weight of an iteration's loss relative to the one before.
        optimizer: any name that `timm.optim` knows, such as `adam`, `adamw` or `lamb`.
        optimizer_args: its further arguments.
        lr: learning rate at the start.
        lr_schedule: `milestones` multiplies by `lr_gamma` after epochs; `cosine` falls to zero at
            the end of training; `constant` stays.
        lr_milestones: epochs after which to do so.
        lr_gamma: factor at each milestone.
        warmup_steps: steps of linear warm-up at the start.
        checkpointing: compute iterations again in the backward pass instead of keeping them:
            much less memory, about a third more time.
        thresholds: absolute errors in the scene's unit whose inlier shares are reported.
        relative_thresholds: the same relative to the true depth, in per cent.
        range_factor: validate and test with depth ranges wider by this factor at both ends, to
            see how little the network depends on them.

    Raises:
        ValueError: a setting is unknown, or out of its range.
    """

    def __init__(
        self,
        model: str = "dispmvs",
        model_args: dict[str, Any] | None = None,
        init_weights: str | None = None,
        loss_gamma: float = 0.9,
        optimizer: str = "adam",
        optimizer_args: dict[str, Any] | None = None,
        lr: float = 2e-4,
        lr_schedule: Literal["milestones", "cosine", "constant"] = "milestones",
        lr_milestones: list[int] | None = None,
        lr_gamma: float = 0.5,
        warmup_steps: int = 0,
        checkpointing: bool = False,
        thresholds: list[float] | None = None,
        relative_thresholds: list[float] | None = None,
        range_factor: float = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_optimisation(optimizer, lr_schedule)
        if not range_factor >= 1:
            raise ValueError(f"range_factor must be at least 1, not {range_factor}")
        self.net = starting_network(model, model_args, init_weights)
        keep_arguments(self)
        self.net.checkpointing = checkpointing
        if relative_thresholds is None:
            relative_thresholds = [1.0, 2.0, 5.0]
        self.val_metrics = DepthMetrics(thresholds or (), relative_thresholds)
        self.test_metrics = DepthMetrics(thresholds or (), relative_thresholds)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Depth (B, 1, H, W) of the reference views of a batch."""
        return self.net(*self._inputs(batch))

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of a batch, scalar, logged as `train/loss`."""
        loss = self.loss(self.outputs(batch), batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["images"]))
        return loss

    def outputs(self, batch: dict[str, Any]) -> Outputs:
        """What the network predicts in training: depth after each iteration, coarse and fine."""
        return self.net.forward_stages(*self._inputs(batch))

    def loss(self, outputs: Outputs, batch: dict[str, Any]) -> Tensor:
        """The loss of `outputs` against the ground truth."""
        truth = batch["depth"], batch["valid"], batch["depth_range"]
        return sequence_loss(*outputs, *truth, self.hparams.loss_gamma)

    def distillation_loss(
        self, outputs: Outputs, teacher_outputs: Outputs, batch: dict[str, Any]
    ) -> Tensor:
        """The loss of `outputs` against a teacher's last depth where truth is known."""
        return self.loss(outputs, {**batch, "depth": teacher_outputs[1][-1].detach().float()})

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Count a batch; a picture of the first one goes to the loggers."""
        depth, confidence = self._predict(batch)
        self.val_metrics.update(depth, batch["depth"], batch["valid"])
        if batch_idx == 0:
            log_picture(self, "val/depth", lambda: self._picture(batch, depth, confidence))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics as `val/…`."""
        log_metrics(self, "val", {"": self.val_metrics}, shown="rel_median")

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Count a batch."""
        self.test_metrics.update(self._predict(batch)[0], batch["depth"], batch["valid"])

    def on_test_epoch_end(self) -> None:
        """Log the metrics as `test/…`."""
        log_metrics(self, "test", {"": self.test_metrics}, shown="rel_median")

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """Depth and confidence (B, 1, H, W) with the samples' names."""
        depth, confidence = self._predict(batch)
        return {"name": batch["name"], "depth": depth, "confidence": confidence}

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimiser and schedule that the hyper-parameters name."""
        return optimisation(self, self.net)

    def _inputs(self, batch: dict[str, Any], factor: float = 1.0) -> tuple[Tensor, ...]:
        depth_range = batch["depth_range"]
        if factor != 1:
            depth_range = depth_range * depth_range.new_tensor([1 / factor, factor])
        return batch["images"], batch["intrinsics"], batch["extrinsics"], depth_range

    def _predict(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        inputs = self._inputs(batch, self.hparams.range_factor)
        depth, confidence = self.net.predict(*inputs)
        return depth.float(), confidence.float()

    @staticmethod
    def _picture(batch: dict[str, Any], depth: Tensor, confidence: Tensor) -> np.ndarray:
        return depth_comparison(
            batch["images"][0, 0], depth[0], batch["depth"][0], batch["valid"][0], confidence[0]
        )


def depth_comparison(
    image: Tensor, depth: Tensor, truth: Tensor, valid: Tensor, confidence: Tensor
) -> np.ndarray:
    """Image, true depth, predicted depth, relative error (yellow: 5 %) and confidence in a row.

    Args:
        image: (3, H, W), RGB in [0, 1].
        depth: (1, H, W); drawn in the truth's colours, near red and far blue.
        truth: (1, H, W).
        valid: where it is known, (1, H, W) bool.
        confidence: (1, H, W), 0 to 1.

    Returns:
        (H, 5 W, 3) uint8 RGB; black where nothing is known.
    """
    known = valid[0].cpu().numpy() & (truth[0] > 0).cpu().numpy()
    low, high = colour_range(truth, known)
    colours = {"low": low, "high": high, "palette": "turbo_r", "logarithmic": True}
    error = (depth - truth).abs() / truth.clamp(min=1e-6)
    panels = [
        to_bytes(image),
        colourise(truth, known, **colours),
        colourise(depth, np.ones_like(known), **colours),
        colourise(error.clamp(min=1e-9), known, low=0.0, high=0.05, palette="inferno"),
        colourise(confidence, low=0.0, high=1.0, palette="viridis"),
    ]
    return np.hstack(panels)
