"""Training and evaluation of disparity networks; writing what they predict."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor
from torch.utils.data import Subset

from ..common.layers import evaluating
from ..datasets.mixture import Part
from ..nas.supernet import activate, search_space
from ..nas.training.sampling import UniformSampler
from ..vision.hub.create import load_network
from ..vision.io.disparity import PNG_MOST, write_disparity
from ..vision.training import NetworkTask, round_at
from ..vision.viz.colour import comparison_picture
from .guided import Guided
from .losses import fusion_loss, matching_loss, multiscale_loss, upsampled_loss
from .metrics import DisparityMetrics

__all__ = ["DisparityWriter", "FusionTask", "StereoTask"]

_WEIGHTS = {
    "pooled": [0.32, 0.16, 0.08, 0.04, 0.02, 0.01, 0.005],
    "upsampled": [1 / 3, 2 / 3, 1.0],
    "matching": [0.3, 0.4, 0.7, 1.0],
}


class Outputs(NamedTuple):
    """What a network predicts in training."""

    stages: Sequence[Sequence[Tensor]]  #: for each stage disparities, finest first
    #: matching scores as `matching_loss` takes them; none with other losses
    volumes: Sequence[tuple[Tensor, float]] = ()


class _DisparityTask(NetworkTask):
    """Measures, shows and writes the disparity (B, 1, H, W) that a network predicts first."""

    quantity, shown = "disparity", "epe"

    def __init__(
        self,
        model: str,
        model_args: dict[str, Any] | None,
        metric_max_disparity: float | None,
        **training: Any,
    ) -> None:
        super().__init__(model, model_args, **training)
        self.net.to(memory_format=torch.channels_last)  # 1.6 times as fast on a CPU
        self.val_metrics = DisparityMetrics(metric_max_disparity)
        self.test_metrics = DisparityMetrics(metric_max_disparity)

    def picture(self, batch: dict[str, Any], prediction: Tensor) -> np.ndarray:
        """The first sample's view, truth, prediction and error."""
        return comparison_picture(
            batch["left"][0], prediction[0], batch["disparity"][0], batch["valid"][0]
        )


class StereoTask(_DisparityTask):
    """Trains a disparity network on several scales and reports EPE, bad-N and D1.

    Training goes in rounds: each has its own scale weights, and the learning rate starts anew.

    Args:
        model: name of a stereo network, see `vizoo models`.
        model_args: its architecture arguments.
        loss: `pooled` compares each scale with ground truth averaged to its size (FADNet);
            `upsampled` compares every prediction at full size (EASNet); `matching` adds to this
            the cross-entropy of matching scores, of a network with `forward_volumes`.
        scale_weights: for each round the weights of the predictions, finest first if pooled, else
            coarsest first (the last one serves all further ones); by default one round with those
            of FADNet's first, or EASNet's.
        log_weight: weight of log(1 + error) of each stage's finest disparity, which pulls at
            pixels that are nearly right more than at lost ones; not with `pooled`.
        round_epochs: length of each round; the last goes on until training ends.
        lr: learning rate at the start of a round.
        lr_schedule: of a round: `milestones`, `cosine` to zero at its end, or `constant`.
        max_disparity: ground truth from here on is left out of the loss.
        metric_max_disparity: the same for the metrics; None for no bound (KITTI).
        **training: see `NetworkTask`.

    Raises:
        ValueError: a setting is unknown, or two do not fit together.
    """

    kind = "stereo"

    def __init__(
        self,
        model: str = "fadnet_plus_tiny",
        model_args: dict[str, Any] | None = None,
        *,
        loss: Literal["pooled", "upsampled", "matching"] = "pooled",
        scale_weights: list[list[float]] | None = None,
        log_weight: float = 0.0,
        round_epochs: list[int] | None = None,
        lr: float = 1e-4,
        lr_schedule: Literal["milestones", "cosine", "constant"] = "milestones",
        max_disparity: float = 192.0,
        metric_max_disparity: float | None = 192.0,
        **training: Any,
    ) -> None:
        if loss not in _WEIGHTS:
            raise ValueError(f"loss {loss!r} is unknown: choose {', '.join(_WEIGHTS)}")
        if not log_weight >= 0 or (log_weight and loss == "pooled"):
            raise ValueError(
                f"log_weight must be 0 or more, and 0 with loss 'pooled', not {log_weight}"
            )
        weights, epochs = scale_weights or [_WEIGHTS[loss]], round_epochs or [1]
        if len(weights) != len(epochs) or min(epochs) < 1:
            raise ValueError(
                f"{len(weights)} lists of scale_weights and round_epochs {epochs}: give one list "
                "of weights and one positive length a round"
            )
        super().__init__(
            model, model_args, metric_max_disparity, lr=lr, lr_schedule=lr_schedule, **training
        )
        self.scale_weights, self.round_epochs = weights, epochs
        if loss == "matching" and not hasattr(self.net, "forward_volumes"):
            raise ValueError(
                f"loss 'matching' needs a network that gives its matching scores, such as "
                f"easnet_light; {model} does not: choose another loss"
            )

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Disparity (B, 1, H, W) of images (B, 3, H, W) in [0, 1]."""
        return self.net(left, right)

    def round_at(self, epoch: int) -> tuple[int, int]:
        """The round that an epoch belongs to, and the epoch at which that round starts."""
        return round_at(self.round_epochs, epoch)

    def outputs(self, batch: dict[str, Tensor]) -> Outputs:
        """What the network predicts in training."""
        net: Any = self.net
        if self.hparams.loss == "matching":
            return Outputs(*net.forward_volumes(batch["left"], batch["right"]))
        return Outputs(net.forward_stages(batch["left"], batch["right"]))

    def loss(self, outputs: Outputs, batch: dict[str, Tensor]) -> Tensor:
        """The loss of `outputs` against the ground truth."""
        weights = self.scale_weights[self.round_at(self.current_epoch)[0]]
        truth, valid, bound = batch["disparity"], batch["valid"], self.hparams.max_disparity
        if self.hparams.loss == "pooled":
            return multiscale_loss(outputs.stages, truth, valid, weights, bound)
        volumes, log_weight = outputs.volumes, self.hparams.log_weight
        loss = upsampled_loss(outputs.stages, truth, valid, weights, bound, volumes, log_weight)
        return loss + matching_loss(volumes, truth, valid)

    def distillation_loss(
        self, outputs: Outputs, teacher_outputs: Outputs, batch: dict[str, Tensor]
    ) -> Tensor:
        """The loss of `outputs` against a teacher's finest disparity where truth is known."""
        truth, finest = batch["disparity"], teacher_outputs.stages[-1][0].detach().float()
        valid = batch["valid"] & (truth > 0) & (truth < self.hparams.max_disparity)
        return self.loss(outputs, {**batch, "disparity": finest, "valid": valid})

    def predictions(self, batch: dict[str, Any]) -> tuple[Tensor]:
        """Disparity (B, 1, H, W)."""
        return (self(batch["left"], batch["right"]).float(),)


class FusionTask(_DisparityTask):
    """Trains what fuses a network's disparity with that of semi-global matching, see `Guided`.

    One step of three fuses as at half of the size, the others fuse what that gives.

    Args:
        model: name of a fusion network.
        model_args: its architecture arguments.
        stereo: trained weights of the network whose disparity is fused, see `load_network`; they
            stay as they are. Of a supernet steps take the largest subnet and any one by turns, and
            the largest is measured.
        lr: learning rate at the start.
        max_disparity: ground truth from here on is left out of the loss.
        metric_max_disparity: the same for the metrics; None for no bound.
        **training: see `NetworkTask`.

    Raises:
        ValueError: a setting is unknown, or two do not fit together.
    """

    kind = "stereo-fusion"

    def __init__(
        self,
        model: str = "disparity_fusion",
        model_args: dict[str, Any] | None = None,
        *,
        stereo: str = "easnet_scaled",
        lr: float = 3e-3,
        max_disparity: float = 192.0,
        metric_max_disparity: float | None = 192.0,
        **training: Any,
    ) -> None:
        super().__init__(model, model_args, metric_max_disparity, lr=lr, **training)
        # Within a tuple no one finds its parameters: not the optimiser, not a checkpoint.
        self._stereo = (load_network(stereo, "stereo").requires_grad_(False),)
        self._sampler = UniformSampler()

    def outputs(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Disparity and odds, both (B, 1, H, W)."""
        step = self.global_step
        *given, hints = self._guidance(batch, any_subnet=step % 2 == 1, fine=step % 3 > 0)
        if step % 8 < 2:  # there are networks that do not say how sure they are
            hints[:, 0] = 0
        net: Any = self.net
        return net.forward_scored(*given, hints)

    def loss(self, outputs: tuple[Tensor, Tensor], batch: dict[str, Tensor]) -> Tensor:
        """The loss of `outputs` against the ground truth."""
        truth = batch["disparity"], batch["valid"]
        return fusion_loss(*outputs, *truth, self.hparams.max_disparity)

    def predictions(self, batch: dict[str, Any]) -> tuple[Tensor]:
        """Disparity (B, 1, H, W)."""
        return (self.net(*self._guidance(batch)).float(),)

    @torch.no_grad()
    def _guidance(
        self, batch: dict[str, Tensor], any_subnet: bool = False, fine: bool = True
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is fused: at the pair's own size, or, if not `fine`, as at half of the size."""
        left, right = batch["left"].float(), batch["right"].float()
        net = self._stereo[0].to(left.device)
        if len(space := search_space(net)):
            drawn = self._sampler.subnets(space, self.global_step)[0]
            activate(net, drawn if any_subnet else space.largest())
        guided = Guided(net, self.net)
        if not fine:
            return guided.coarse_guidance(left, right)
        with evaluating(self.net):  # with the statistics that it will have in use
            return guided.fine_guidance(left, right)


def _names(dataset: Any) -> list[str]:
    """Of the pairs that a set reads from files; nothing where it does not say."""
    if hasattr(dataset, "datasets"):
        return [name for one in dataset.datasets for name in _names(one)]
    if isinstance(dataset, (Part, Subset)):
        whole = _names(dataset.dataset)
        return [whole[index] for index in dataset.indices] if whole else []
    return [record.name for record in getattr(dataset, "records", ())]


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

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse pairs read from files of which one would take another's place.

        Raises:
            ValueError: two pairs have one name, as in KITTI 2012 and KITTI 2015.
        """
        loaders = trainer.predict_dataloaders
        loaders = loaders if isinstance(loaders, (list, tuple)) else [loaders]
        sets = [getattr(loader, "dataset", None) for loader in loaders]
        counts = Counter(name for one in sets for name in _names(one))
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(
                f"several pairs are called {twice[0]} ({len(twice)} such names), and their "
                "predictions would overwrite each other: predict one set at a time, each into a "
                "folder of its own"
            )

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
            beyond = disparity.isfinite() & (disparity > PNG_MOST)
            if self.suffix == "png" and beyond.any():
                warnings.warn(
                    f"disparities are cut to {PNG_MOST:.0f} px, the most that a PNG holds; the "
                    "suffixes pfm and npy hold more",
                    stacklevel=2,
                )
                disparity = torch.where(beyond, PNG_MOST, disparity)
            write_disparity(path, disparity)
