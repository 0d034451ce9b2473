"""Training and evaluation of panorama depth networks.

The recipe of SphereDepth is not published: the losses are those of SphereFusion (Yan et al., 3DV
2025, by the same authors) and UniFuse (Jiang et al., RA-L 2021).
"""

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
from .losses import multiscale_loss
from .mesh import level_of
from .metrics import PanoramaMetrics
from .sampling import face_labels

__all__ = ["PanoramaTask", "depth_comparison"]


class PanoramaTask(LightningModule):
    """Trains a depth network on the faces of its mesh; reports errors of the depth's image.

    Validation and test report each error twice: over pixels, as publications do (`val/mre`), and
    by how much of the sphere they cover (`val/mre_sphere`).

    Args:
        model: name of a panorama network, see `vizoo models`.
        model_args: its architecture arguments.
        init_weights: file to start from (safetensors or a Lightning checkpoint); weights only.
            To go on with an interrupted run use `--ckpt_path` instead.
        loss: the threshold of BerHu: `fixed` in metres, or `adaptive`, a share of the largest
            error in the batch.
        loss_threshold: that threshold or share.
        loss_weight: `face` counts all faces alike, `solid_angle` by their size on the sphere.
        scale_weights: of the outputs, finest first; a weight of 0 leaves one out.
        optimizer: any name that `timm.optim` knows, such as `adam`, `adamw` or `lamb`.
        optimizer_args: its further arguments.
        lr: learning rate at the start.
        lr_schedule: `milestones` multiplies by `lr_gamma` after epochs; `cosine` falls to zero at
            the end of training; `constant` stays.
        lr_milestones: epochs after which to do so.
        lr_gamma: factor at each milestone.
        warmup_steps: steps of linear warm-up at the start.
        metric_max_depth: of the metrics, in metres: truth beyond does not count, predictions are
            clipped to it.

    Raises:
        ValueError: a setting is unknown, or out of its range.
    """

    def __init__(
        self,
        model: str = "spheredepth_tiny",
        model_args: dict[str, Any] | None = None,
        init_weights: str | None = None,
        loss: Literal["fixed", "adaptive"] = "fixed",
        loss_threshold: float = 0.2,
        loss_weight: Literal["face", "solid_angle"] = "face",
        scale_weights: list[float] | None = None,
        optimizer: str = "adamw",
        optimizer_args: dict[str, Any] | None = None,
        lr: float = 1e-3,
        lr_schedule: Literal["milestones", "cosine", "constant"] = "cosine",
        lr_milestones: list[int] | None = None,
        lr_gamma: float = 0.5,
        warmup_steps: int = 0,
        metric_max_depth: float = 10.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        for name, value, known in (
            ("loss", loss, ("fixed", "adaptive")),
            ("loss_weight", loss_weight, ("face", "solid_angle")),
        ):
            if value not in known:
                raise ValueError(f"{name} {value!r} is unknown: choose {' or '.join(known)}")
        if loss_threshold <= 0:
            raise ValueError(f"loss_threshold must be above 0, not {loss_threshold}")
        check_optimisation(optimizer, lr_schedule)
        self.net = starting_network(model, model_args, init_weights)
        keep_arguments(self)
        self.scale_weights = scale_weights or [1, 1 / 2, 1 / 4, 1 / 8]
        self.val_metrics, self.val_sphere = self._metrics()
        self.test_metrics, self.test_sphere = self._metrics()

    def forward(self, image: Tensor) -> Tensor:
        """Depth (B, 1, H, W) in metres of images (B, 3, H, W) in [0, 1]."""
        return self.net(image)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of a batch, scalar, logged as `train/loss`."""
        loss = self.loss(self.outputs(batch), batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["image"]))
        return loss

    def outputs(self, batch: dict[str, Any]) -> Sequence[Tensor]:
        """What the network predicts in training: depth on faces, finest level first."""
        return self.net.forward_stages(batch["image"], batch.get("rotation"))

    def loss(self, outputs: Sequence[Tensor], batch: dict[str, Any]) -> Tensor:
        """The loss of `outputs` against the ground truth."""
        return self._loss(outputs, *self._labels(outputs, batch))

    def distillation_loss(
        self, outputs: Sequence[Tensor], teacher_outputs: Sequence[Tensor], batch: dict[str, Any]
    ) -> Tensor:
        """The loss of `outputs` against a teacher's finest depth where truth is known."""
        known = self._labels(teacher_outputs, batch)[1]
        return self._loss(outputs, teacher_outputs[0].detach().float(), known)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Count a batch; a picture of the first one goes to the loggers."""
        depth = self(batch["image"]).float()
        for metrics in (self.val_metrics, self.val_sphere):
            metrics.update(depth, batch["depth"], batch["valid"])
        if batch_idx == 0:
            log_picture(self, "val/depth", lambda: self._picture(batch, depth))

    def on_validation_epoch_end(self) -> None:
        """Log the metrics as `val/…`, those weighted by the sphere's area as `…_sphere`."""
        log_metrics(self, "val", {"": self.val_metrics, "_sphere": self.val_sphere}, shown="mre")

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Count a batch."""
        depth = self(batch["image"]).float()
        for metrics in (self.test_metrics, self.test_sphere):
            metrics.update(depth, batch["depth"], batch["valid"])

    def on_test_epoch_end(self) -> None:
        """Log the metrics as `test/…`, those weighted by the sphere's area as `…_sphere`."""
        log_metrics(self, "test", {"": self.test_metrics, "_sphere": self.test_sphere}, "mre")

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """Depth (B, 1, H, W), metres, with the samples' names."""
        return {"name": batch["name"], "depth": self(batch["image"]).float()}

    def configure_optimizers(self) -> dict[str, Any]:
        """The optimiser and schedule that the hyper-parameters name."""
        return optimisation(self, self.net)

    def _metrics(self) -> tuple[PanoramaMetrics, PanoramaMetrics]:
        bound = self.hparams.metric_max_depth
        return PanoramaMetrics("erp", max_depth=bound), PanoramaMetrics("sphere", max_depth=bound)

    def _labels(self, outputs: Sequence[Tensor], batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        level = level_of(outputs[0].shape[1])
        return face_labels(batch["depth"], batch["valid"], level, rotation=batch.get("rotation"))

    def _loss(self, outputs: Sequence[Tensor], depth: Tensor, valid: Tensor) -> Tensor:
        return multiscale_loss(
            outputs,
            depth,
            valid,
            self.scale_weights,
            threshold=self.hparams.loss_threshold,
            adaptive=self.hparams.loss == "adaptive",
            weight=self.hparams.loss_weight,
        )

    @staticmethod
    def _picture(batch: dict[str, Any], depth: Tensor) -> np.ndarray:
        return depth_comparison(*(x[0] for x in (batch["image"], depth, batch["depth"])))


def depth_comparison(image: Tensor, depth: Tensor, truth: Tensor) -> np.ndarray:
    """Image, true depth, predicted depth and relative error (yellow: 30 %), one above the other.

    Args:
        image: (3, H, W), RGB in [0, 1].
        depth: (1, H, W); drawn in the truth's colours, near red and far blue.
        truth: (1, H, W); not positive where unknown.

    Returns:
        (4 H, W, 3) uint8 RGB; black where nothing is known.
    """
    truth, depth = truth[0].cpu().numpy(), depth[0].detach().float().cpu().numpy()
    known = np.isfinite(truth) & (truth > 0)
    low, high = colour_range(truth, known)
    colours = {"low": low, "high": high, "palette": "turbo_r", "logarithmic": True}
    error = np.abs(depth - truth) / np.where(known, truth, 1)
    panels = [
        to_bytes(image),
        colourise(truth, known, **colours),
        colourise(depth, np.ones_like(known), **colours),
        colourise(np.maximum(error, 1e-9), known, low=0.0, high=0.3, palette="inferno"),
    ]
    return np.vstack(panels)
