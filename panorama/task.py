"""Training and evaluation of panorama depth networks.

The recipe of SphereDepth is not published: the losses are those of SphereFusion (Yan et al., 3DV
2025, by the same authors) and UniFuse (Jiang et al., RA-L 2021), and one of relative errors, ours;
that it may leave the scale free is from Eigen et al., NeurIPS 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..datasets.files import check_choice
from ..vision.training import NetworkTask
from ..vision.viz.colour import depth_panels
from .losses import multiscale_loss, shifted
from .mesh import level_of
from .metrics import PanoramaMetrics
from .sampling import face_labels

if TYPE_CHECKING:
    from .spheredepth import SphereDepthNet

__all__ = ["PanoramaTask", "depth_comparison"]

_NEAREST = 0.01  # metres, added before logarithms are taken: a depth of 0 has a gradient, too


class PanoramaTask(NetworkTask):
    """Trains a depth network on the faces of its mesh; reports errors of the depth's image.

    Validation and test report each error twice: over pixels, as publications do (`val/mre`), and
    by how much of the sphere they cover (`val/mre_sphere`).

    Args:
        model: name of a panorama network, see `vizoo models`.
        model_args: its architecture arguments.
        loss: BerHu of depths, with a threshold that is `fixed` in metres or `adaptive`, a share of
            the largest error in the batch; or of the depths' logarithms, `log`, so that errors
            count relative to the depth.
        loss_threshold: that threshold or share; of logarithms 0.2 is an error of 22 %.
        scale_free: share of the loss, 0 to 1, for which each picture's scale is set to the truth's,
            since a picture hardly shows it; with `log` alone.
        loss_weight: `face` counts all faces alike, `solid_angle` by their size on the sphere.
        scale_weights: of the outputs, finest first; a weight of 0 leaves one out.
        optimizer: any name that `timm.optim` knows.
        metric_max_depth: of the metrics, in metres: truth beyond does not count, predictions are
            clipped to it.
        **training: see `NetworkTask`.

    Raises:
        ValueError: a setting is unknown, or out of its range.
    """

    quantity, shown = "depth", "mre"
    net: SphereDepthNet

    def __init__(
        self,
        model: str = "spheredepth_tiny",
        model_args: dict[str, Any] | None = None,
        *,
        loss: Literal["fixed", "adaptive", "log"] = "fixed",
        loss_threshold: float = 0.2,
        scale_free: float = 0.0,
        loss_weight: Literal["face", "solid_angle"] = "face",
        scale_weights: list[float] | None = None,
        optimizer: str = "adamw",
        metric_max_depth: float = 10.0,
        **training: Any,
    ) -> None:
        check_choice("loss", loss, ("fixed", "adaptive", "log"))
        check_choice("loss_weight", loss_weight, ("face", "solid_angle"))
        if loss_threshold <= 0:
            raise ValueError(f"loss_threshold must be above 0, not {loss_threshold}")
        if not 0 <= scale_free <= (1 if loss == "log" else 0):
            raise ValueError(
                f"scale_free must be 0 to 1, and 0 unless loss is log, not {scale_free}"
            )
        super().__init__(model, model_args, optimizer=optimizer, **training)
        self.scale_weights = scale_weights or [1, 1 / 2, 1 / 4, 1 / 8]
        self.val_metrics = PanoramaMetrics(max_depth=metric_max_depth)
        self.test_metrics = PanoramaMetrics(max_depth=metric_max_depth)

    def forward(self, image: Tensor) -> Tensor:
        """Depth (B, 1, H, W) in metres of images (B, 3, H, W) in [0, 1]."""
        return self.net(image)

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

    def predictions(self, batch: dict[str, Any]) -> tuple[Tensor]:
        """Depth (B, 1, H, W) in metres."""
        return (self(batch["image"]).float(),)

    def _labels(self, outputs: Sequence[Tensor], batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        level = level_of(outputs[0].shape[1])
        return face_labels(batch["depth"], batch["valid"], level, rotation=batch.get("rotation"))

    def _loss(self, outputs: Sequence[Tensor], depth: Tensor, valid: Tensor) -> Tensor:
        if self.hparams.loss == "log":
            outputs = [(output.float() + _NEAREST).log() for output in outputs]
            depth = torch.where(valid, depth + _NEAREST, 1).log()
        loss = partial(
            multiscale_loss,
            depth=depth,
            valid=valid,
            scale_weights=self.scale_weights,
            threshold=self.hparams.loss_threshold,
            adaptive=self.hparams.loss == "adaptive",
            weight=self.hparams.loss_weight,
        )
        if not (free := self.hparams.scale_free):
            return loss(outputs)
        return (1 - free) * loss(outputs) + free * loss(shifted(outputs, depth, valid))

    def picture(self, batch: dict[str, Any], depth: Tensor) -> np.ndarray:
        """The first sample's `depth_comparison`."""
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
    return np.vstack(depth_panels(image, depth, truth, None, 0.3))
