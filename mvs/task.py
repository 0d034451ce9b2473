"""Training and evaluation of multi-view depth networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..vision.training import NetworkTask
from ..vision.viz.colour import colourise, depth_panels
from .confidence import depth_confidence
from .losses import sequence_loss
from .metrics import DepthMetrics

if TYPE_CHECKING:
    from .dispmvs import DispMVS

__all__ = ["MVSTask", "depth_comparison"]

Outputs = tuple[Sequence[Tensor], Sequence[Tensor]]


class MVSTask(NetworkTask):
    """Trains a depth network on every iteration of both stages; reports depth errors.

    Args:
        model: name of a multi-view-stereo network, see `vizoo models`.
        model_args: its architecture arguments.
        loss_gamma: weight of an iteration's loss relative to the one before.
        lr: learning rate at the start.
        lr_schedule: `milestones`, `cosine` to zero at the end, or `constant`.
        checkpointing: compute iterations again in the backward pass instead of keeping them:
            much less memory, about a third more time.
        vary_sources: train each batch on some of its sources, one at least, how many and which
            drawn at random, so that the network gets used to few and many.
        thresholds: absolute errors in the scene's unit whose inlier shares are reported.
        relative_thresholds: the same relative to the true depth, in per cent.
        range_factor: validate and test with depth ranges wider by this factor at both ends, to
            see how little the network depends on them.
        **training: see `NetworkTask`.

    Raises:
        ValueError: a setting is unknown, or out of its range.
    """

    quantity, shown = "depth", "rel_median"
    net: DispMVS

    def __init__(
        self,
        model: str = "dispmvs",
        model_args: dict[str, Any] | None = None,
        *,
        loss_gamma: float = 0.9,
        lr: float = 2e-4,
        lr_schedule: Literal["milestones", "cosine", "constant"] = "milestones",
        checkpointing: bool = False,
        vary_sources: bool = False,
        thresholds: list[float] | None = None,
        relative_thresholds: list[float] | None = None,
        range_factor: float = 1.0,
        **training: Any,
    ) -> None:
        if not range_factor >= 1:
            raise ValueError(f"range_factor must be at least 1, not {range_factor}")
        super().__init__(model, model_args, lr=lr, lr_schedule=lr_schedule, **training)
        self.net.checkpointing = checkpointing
        if relative_thresholds is None:
            relative_thresholds = [1.0, 2.0, 5.0]
        self.val_metrics = DepthMetrics(thresholds or (), relative_thresholds)
        self.test_metrics = DepthMetrics(thresholds or (), relative_thresholds)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Depth (B, 1, H, W) of the reference views of a batch."""
        return self.net(*self._inputs(batch))

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        return super().training_step(self.mixed(batch), batch_idx)

    def mixed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch as it is trained on, with fewer sources where they vary."""
        if not self.hparams.vary_sources:
            return batch
        sources = batch["images"].shape[1] - 1
        count = int(torch.randint(1, sources + 1, ()))
        chosen = [0, *sorted(1 + torch.randperm(sources)[:count])]
        names = "images", "intrinsics", "extrinsics"
        return {**batch, **{name: batch[name][:, chosen] for name in names}}

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

    def predictions(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Depth and confidence (B, 1, H, W) of the reference views."""
        images, intrinsics, extrinsics, limits = self._inputs(batch, self.hparams.range_factor)
        depth = self.net(images, intrinsics, extrinsics, limits).float()
        samples = zip(images, intrinsics, extrinsics, depth[:, 0], strict=True)
        with torch.autocast(depth.device.type, enabled=False):
            confidence = [depth_confidence(*sample) for sample in samples]
        return depth, torch.stack(confidence)[:, None]

    def _inputs(self, batch: dict[str, Any], factor: float = 1.0) -> tuple[Tensor, ...]:
        depth_range = batch["depth_range"]
        if factor != 1:
            depth_range = depth_range * depth_range.new_tensor([1 / factor, factor])
        return batch["images"], batch["intrinsics"], batch["extrinsics"], depth_range

    def picture(self, batch: dict[str, Any], depth: Tensor, confidence: Tensor) -> np.ndarray:
        """The first sample's `depth_comparison`."""
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
    panels = depth_panels(image, depth, truth, valid, 0.05)
    return np.hstack([*panels, colourise(confidence, low=0.0, high=1.0, palette="viridis")])
