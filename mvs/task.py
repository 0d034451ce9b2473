"""Training and evaluation of multi-view depth networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..vision.hub.create import load_network
from ..vision.training import NetworkTask
from ..vision.viz.colour import colourise, depth_panels
from .classical import PlaneSweep
from .confidence import depth_confidence
from .dispmvs import start_from
from .guided import Guided, rough_depth
from .losses import fusion_loss, sequence_loss
from .metrics import DepthMetrics

if TYPE_CHECKING:
    from .depth_fusion import DepthFusion
    from .dispmvs import DispMVS

__all__ = ["FusionTask", "MVSTask", "depth_comparison"]

Outputs = tuple[Sequence[Tensor], Sequence[Tensor]]


class _DepthTask(NetworkTask):
    """What tasks that measure depth share.

    Args:
        model: see `NetworkTask`.
        model_args: likewise.
        vary_sources: train each batch on some of its sources, one at least, how many and which
            drawn at random, so that the network gets used to few and many.
        thresholds: absolute errors in the scene's unit whose inlier shares are reported.
        relative_thresholds: the same relative to the true depth, in per cent.
        **training: see `NetworkTask`.
    """

    quantity, shown = "depth", "rel_median"

    def __init__(
        self,
        model: str,
        model_args: dict[str, Any] | None = None,
        *,
        vary_sources: bool = False,
        thresholds: list[float] | None = None,
        relative_thresholds: list[float] | None = None,
        **training: Any,
    ) -> None:
        super().__init__(model, model_args, **training)
        self._vary_sources = vary_sources
        if relative_thresholds is None:
            relative_thresholds = [1.0, 2.0, 5.0]
        self.val_metrics = DepthMetrics(thresholds or (), relative_thresholds)
        self.test_metrics = DepthMetrics(thresholds or (), relative_thresholds)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        return super().training_step(self.mixed(batch), batch_idx)

    def mixed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch as it is trained on, with fewer sources where they vary."""
        if not self._vary_sources:
            return batch
        sources = batch["images"].shape[1] - 1
        count = int(torch.randint(1, sources + 1, ()))
        chosen = [0, *sorted(1 + torch.randperm(sources)[:count])]
        names = "images", "intrinsics", "extrinsics"
        return {**batch, **{name: batch[name][:, chosen] for name in names}}

    def picture(self, batch: dict[str, Any], depth: Tensor, confidence: Tensor) -> np.ndarray:
        """The first sample's `depth_comparison`."""
        return depth_comparison(
            batch["images"][0, 0], depth[0], batch["depth"][0], batch["valid"][0], confidence[0]
        )


def _inputs(batch: dict[str, Any], factor: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What networks take, with ranges wider by a factor at both ends.

    Raises:
        ValueError: cameras were rounded to a half type.
    """
    kind = batch["intrinsics"].dtype
    if kind.itemsize < 4:
        raise ValueError(
            f"cameras in {str(kind).removeprefix('torch.')} are off by pixels: set "
            "trainer.precision to bf16-mixed or 16-mixed, which leave them as they are"
        )
    depth_range = batch["depth_range"]
    if factor != 1:
        depth_range = depth_range * depth_range.new_tensor([1 / factor, factor])
    return batch["images"], batch["intrinsics"], batch["extrinsics"], depth_range


class MVSTask(_DepthTask):
    """Trains a depth network on every iteration of both stages; reports depth errors.

    Args:
        model: name of a multi-view-stereo network, see `vizoo models`.
        model_args: its architecture arguments.
        loss_gamma: weight of an iteration's loss relative to the one before.
        lr: learning rate at the start.
        lr_schedule: `milestones`, `cosine` to zero at the end, or `constant`.
        checkpointing: compute iterations again in the backward pass instead of keeping them:
            much less memory, about a third more time.
        range_factor: validate and test with depth ranges wider by this factor at both ends, to
            see how little the network depends on them.
        guided: share of the batches that are trained on as `Guided` gives them to the network:
            with refined poses, from the depth of a plane sweep.
        **training: `vary_sources`, `thresholds` and `relative_thresholds`, and those of
            `NetworkTask`.

    Raises:
        ValueError: a setting is unknown, or out of its range.
    """

    kind = "mvs"
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
        range_factor: float = 1.0,
        guided: float = 0.0,
        **training: Any,
    ) -> None:
        if not range_factor >= 1:
            raise ValueError(f"range_factor must be at least 1, not {range_factor}")
        if not 0 <= guided <= 1:
            raise ValueError(f"guided must be 0 to 1, not {guided}")
        super().__init__(model, model_args, lr=lr, lr_schedule=lr_schedule, **training)
        self.net.checkpointing = checkpointing
        self._loss_gamma, self._range_factor, self._share = loss_gamma, range_factor, guided

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """Depth (B, 1, H, W) of the reference views of a batch."""
        return self.net(*_inputs(batch))

    def outputs(self, batch: dict[str, Any]) -> Outputs:
        """What the network predicts in training: depth after each iteration, coarse and fine."""
        return self.net.forward_stages(*_inputs(batch), batch.get("start"))

    def mixed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch as it is trained on, with fewer sources where they vary, some of them guided."""
        batch = super().mixed(batch)
        if not self._share or float(torch.rand(())) >= self._share:
            return batch
        with torch.autocast(batch["images"].device.type, enabled=False):
            given = [part.float() for part in _inputs(batch)]
            extrinsics, depth = rough_depth(PlaneSweep(), *given)
        return {**batch, "extrinsics": extrinsics, "start": start_from(depth)}

    def loss(self, outputs: Outputs, batch: dict[str, Any]) -> Tensor:
        """The loss of `outputs` against the ground truth."""
        truth = batch["depth"], batch["valid"], batch["depth_range"]
        return sequence_loss(*outputs, *truth, self._loss_gamma)

    def distillation_loss(
        self, outputs: Outputs, teacher_outputs: Outputs, batch: dict[str, Any]
    ) -> Tensor:
        """The loss of `outputs` against a teacher's last depth where truth is known."""
        return self.loss(outputs, {**batch, "depth": teacher_outputs[1][-1].detach().float()})

    def predictions(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Depth and confidence (B, 1, H, W) of the reference views."""
        images, intrinsics, extrinsics, limits = _inputs(batch, self._range_factor)
        depth = self.net(images, intrinsics, extrinsics, limits).float()
        samples = zip(images, intrinsics, extrinsics, depth[:, 0], strict=True)
        with torch.autocast(depth.device.type, enabled=False):
            confidence = [depth_confidence(*sample) for sample in samples]
        return depth, torch.stack(confidence)[:, None]


class FusionTask(_DepthTask):
    """Trains what fuses a network's depth with that of a plane sweep, see `Guided`.

    Args:
        model: name of a fusion network.
        model_args: its architecture arguments.
        mvs: trained weights of the network whose depth is fused, see `load_network`; they stay as
            they are.
        lr: learning rate at the start.
        **training: see `MVSTask`.

    Raises:
        ValueError: a setting is unknown, or two do not fit together.
    """

    kind = "mvs-fusion"
    net: DepthFusion

    def __init__(
        self,
        model: str = "depth_fusion",
        model_args: dict[str, Any] | None = None,
        *,
        mvs: str = "dispmvs_tiny",
        lr: float = 2e-3,
        **training: Any,
    ) -> None:
        super().__init__(model, model_args, lr=lr, **training)
        # Within a tuple no one finds its parameters: not the optimiser, not a checkpoint.
        self._guided = (Guided(load_network(mvs, "mvs").requires_grad_(False).eval(), self.net),)

    def outputs(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Depth and odds, both (B, 1, H, W)."""
        return self.net.forward_scored(*self._guidance(batch))

    def loss(self, outputs: tuple[Tensor, Tensor], batch: dict[str, Any]) -> Tensor:
        """The loss of `outputs` against the ground truth."""
        return fusion_loss(*outputs, batch["depth"], batch["valid"])

    def predictions(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Depth, and the chance that it is right, both (B, 1, H, W)."""
        return self.net.predict(*self._guidance(batch))

    @torch.no_grad()
    def _guidance(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        guided = self._guided[0]
        guided.net.to(batch["images"].device)
        with torch.autocast(batch["images"].device.type, enabled=False):
            return guided.guidance(*(part.float() for part in _inputs(batch)))


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
