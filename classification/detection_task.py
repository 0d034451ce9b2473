"""Training and evaluation of detectors, as detectors and as classifiers of images."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torchmetrics.aggregation import MeanMetric

from ..common.extras import installs
from ..common.ranks import gathered, rank_and_size
from ..vision.hub.weights import check_state
from ..vision.training import OptimisedTask, reset_metrics
from .detectors import RULES, Detections, ImageDetector, class_scores, load_detector
from .task import check_same_classes, sets_of

__all__ = ["DetectionTask"]


class DetectionTask(OptimisedTask):
    """Trains a detector on boxes; reports mean average precision and the accuracy of images.

    A batch has `image` (B, 3, H, W), `label` (B,), and of each image `boxes` (N, 4) and
    `box_labels` (N,). `val/accuracy` is the share of images whose class the boxes get right, an
    image without a box being wrong; `val/answered` the share with a box; `val/map` and `val/map_50`
    are COCO's (pip install 'vizoo[detection]'), left out where no box is there to be found. Names
    and order of the classes are those of the training set; a set with others is refused.

    Args:
        detector: `fasterrcnn`, `retinanet`, `fcos` or `ssdlite`.
        classes: how many, without the background.
        backbone: see `ImageDetector`.
        size: see there.
        init_weights: `pretrained` for a backbone with ImageNet's weights, or a checkpoint of this
            task to start from; weights only.
        rule: how boxes become the class of an image, see `class_scores`.
        threshold: score below which boxes do not count for that.
        optimizer: any name that `timm.optim` knows.
        lr: learning rate at the start.
        lr_gamma: factor at each milestone.
        **optimisation: see `OptimisedTask`.

    Raises:
        ValueError: a setting is unknown, or out of its range, or the checkpoint is of another
            detector; in `setup` also where classes do not fit or images have no boxes.
    """

    net: ImageDetector

    def __init__(
        self,
        detector: Literal["fasterrcnn", "retinanet", "fcos", "ssdlite"] = "fcos",
        classes: int = 2,
        backbone: str = "resnet50",
        size: int = 512,
        init_weights: str | None = None,
        rule: Literal["best", "sum"] = "best",
        threshold: float = 0.3,
        optimizer: str = "adamw",
        lr: float = 1e-4,
        lr_gamma: float = 0.1,
        **optimisation: Any,
    ) -> None:
        if rule not in RULES or not 0 <= threshold < 1:
            raise ValueError(
                f"rule {rule!r} must be one of {', '.join(RULES)}, threshold {threshold} 0 to 1"
            )
        super().__init__(optimizer=optimizer, lr=lr, lr_gamma=lr_gamma, **optimisation)
        self.net = ImageDetector(detector, classes, backbone, size)
        if init_weights == "pretrained":
            self.net.load_pretrained()
        elif init_weights is not None:
            state = load_detector(init_weights).state_dict()
            check_state(self.net, state, init_weights)
            self.net.load_state_dict(state)
        self.classes: tuple[str, ...] = ()
        self.preset: dict[str, Any] = {}
        self.accuracy, self.answered = MeanMetric(), MeanMetric()
        self.precision = _mean_average_precision()

    def forward(self, image: Tensor) -> list[Detections]:
        """What is found in images (B, 3, H, W) in [0, 1]."""
        return self.net(image)

    def setup(self, stage: str) -> None:
        """Learn from the data what the classes are called and how images are prepared."""
        for role, dataset in sets_of(self.trainer.datamodule, stage):
            where = f"{role} set {type(dataset).__name__}"
            if "boxes" not in dataset[0]:
                raise ValueError(
                    f"{where}: images without boxes: a detector wants them, as CocoImages and "
                    "VocImages have them"
                )
            preset = json.loads(json.dumps(dataclasses.asdict(dataset.preset)))
            self._take(tuple(dataset.classes), preset, where)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The sum of the network's losses, scalar, logged as `train/loss`."""
        parts = self.net.losses(batch["image"], batch["boxes"], batch["box_labels"])
        loss = cast(Tensor, sum(parts.values()))
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["image"]))
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Count what is found in a batch against its boxes."""
        detections = self(batch["image"])
        scores = self._scores(detections)
        silent = scores.isnan().any(1)
        right = (scores.nan_to_num(0).argmax(1) == batch["label"]) & ~silent
        self.accuracy.update(right.float())
        self.answered.update((~silent).float())
        if self.precision is not None:
            truth = [
                {"boxes": boxes, "labels": labels}
                for boxes, labels in zip(batch["boxes"], batch["box_labels"], strict=True)
            ]
            self.precision.update([each._asdict() for each in detections], truth)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log the metrics as `val/…`."""
        self._report("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics as `test/…`."""
        self._report("test")

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """What is found in each image, by its name, with probabilities and names of the classes."""
        detections = self(batch["image"])
        names = self.classes or tuple(map(str, range(self.hparams.classes)))
        return {
            "name": batch["name"],
            "probabilities": self._scores(detections).nan_to_num(1 / len(names)),
            "classes": names,
            "boxes": detections,
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the names of classes and how inputs are prepared."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["classes"], checkpoint["input"] = list(self.classes), self.preset

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the names of classes and how inputs are prepared."""
        self._take(tuple(checkpoint["classes"]), checkpoint["input"], "the checkpoint")

    def _take(self, classes: tuple[str, ...], preset: dict[str, Any], where: str) -> None:
        if len(classes) != self.hparams.classes:
            raise ValueError(
                f"{where} has {len(classes)} classes ({', '.join(classes)}), the detector "
                f"{self.hparams.classes}: set model.classes"
            )
        check_same_classes(classes, self.classes, where)
        self.classes, self.preset = classes, self.preset or preset

    def _scores(self, detections: Sequence[Detections]) -> Tensor:
        settings = (self.hparams.classes, self.hparams.rule, self.hparams.threshold)
        return torch.stack([class_scores(each, *settings) for each in detections])

    def _report(self, stage: str) -> None:
        values = {"accuracy": self.accuracy.compute(), "answered": self.answered.compute()}
        if self.precision is not None:
            _gather(self.precision)
            precision = self.precision.compute()
            # -1 stands for nothing to measure.
            values |= {k: precision[k] for k in ("map", "map_50") if precision[k] >= 0}
            reset_metrics(self.precision)
        elif not self.trainer.sanity_checking:
            rank_zero_warn(f"no mean average precision: {installs('detection')}")
        reset_metrics(self.accuracy, self.answered)
        for name, value in values.items():
            shown = name in ("accuracy", "map")
            # torchmetrics gives the precision on the CPU, where NCCL cannot average it.
            value = value.to(self.device)
            self.log(f"{stage}/{name}", value, prog_bar=shown, sync_dist=True)


def _mean_average_precision() -> Any:
    if importlib.util.find_spec("pycocotools") is None:
        return None
    from torchmetrics.detection import MeanAveragePrecision

    # Its own way to gather wants as many images of every process.
    return MeanAveragePrecision(box_format="xyxy", sync_on_compute=False)


def _gather(metric: Any) -> None:
    """Give a metric the lists of all processes, of which some may have seen more images."""
    if rank_and_size()[1] > 1:
        mine = {name: [t.cpu() for t in tensors] for name, tensors in metric.metric_state.items()}
        parts = gathered(mine)
        for name in mine:
            setattr(metric, name, [tensor for part in parts for tensor in part[name]])
