"""Object detectors that classify images: torchvision's, by what they find.

Ren et al., "Faster R-CNN", NeurIPS 2015; Lin et al., "Focal Loss for Dense Object Detection", ICCV
2017 (RetinaNet); Tian et al., "FCOS", ICCV 2019; Sandler et al., "MobileNetV2", CVPR 2018 with
Howard et al., "Searching for MobileNetV3", ICCV 2019 (SSDlite).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from ..datasets.files import check_choice
from ..vision.hub.weights import check_state, existing_file, load_pickle
from ..vision.layers import check_images
from .backbones import unreachable

__all__ = ["RULES", "Detections", "ImageDetector", "class_scores", "is_detector", "load_detector"]

#: Kinds of detectors.
_DETECTORS = ("fasterrcnn", "retinanet", "fcos", "ssdlite")

#: How boxes become the class of an image.
RULES = ("best", "sum")

_BACKGROUND = ("fasterrcnn", "ssdlite")  # their class 0; the others have a sigmoid for each class
_BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_SMALLEST_SCORE = 0.05
_USUAL_SIZE, _USUAL_ANCHOR = 800, 32  # pixels, of torchvision's own


class Detections(NamedTuple):
    """What was found in one image, most certain first."""

    boxes: Tensor  #: (N, 4): left, top, right, bottom in pixels
    scores: Tensor  #: (N,) in [0, 1]
    labels: Tensor  #: (N,) int64, classes from 0


class ImageDetector(nn.Module):
    """A detector of torchvision for one's own classes.

    Args:
        detector: one of `_DETECTORS`.
        classes: number of classes, without the background.
        backbone: ``resnet18`` to ``resnet152`` with a feature pyramid; SSDlite has its own.
        size: pixels of the shorter side, to which images are resized; SSDlite has 320x320.

    Raises:
        ValueError: an unknown detector or backbone, or a number out of range.
    """

    classes: tuple[str, ...]  #: names, of a trained one, as `input` and `rule`
    input: dict[str, Any]  #: how its images were prepared
    rule: dict[str, Any]  #: what `class_scores` takes beside boxes and classes

    def __init__(
        self, detector: str, classes: int, backbone: str = "resnet50", size: int = 512
    ) -> None:
        super().__init__()
        check_choice("detector", detector, _DETECTORS)
        if detector != "ssdlite":
            check_choice("backbone", backbone, _BACKBONES)
        if classes < 1 or size < 32:
            raise ValueError(f"classes {classes} and size {size} must be at least 1 and 32")
        self.detector, self.backbone = detector, backbone
        self.first = 1 if detector in _BACKGROUND else 0
        self.net = _build(detector, classes + self.first, backbone, size)

    def forward(self, image: Tensor) -> list[Detections]:
        """What is found in each of images (B, 3, H, W), RGB in [0, 1], in evaluation mode.

        Raises:
            ValueError: images of another shape, or the network is in training mode.
        """
        check_images(image)
        if self.training:
            raise ValueError("a detector in training mode gives losses: call eval() first")
        outputs = self.net(list(image))
        return [Detections(o["boxes"], o["scores"], o["labels"] - self.first) for o in outputs]

    def losses(
        self, image: Tensor, boxes: Sequence[Tensor], labels: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """The parts of the loss, in training mode.

        Of images (B, 3, H, W), RGB in [0, 1], and of each its boxes (N, 4), with an area, and their
        labels (N,), classes from 0.
        """
        check_images(image)
        targets = [
            {"boxes": b, "labels": n + self.first} for b, n in zip(boxes, labels, strict=True)
        ]
        return self.net(list(image), targets)

    def load_pretrained(self) -> None:
        """Take torchvision's ImageNet weights for the backbone; they are fetched once.

        Raises:
            ValueError: this detector's backbone has none that fit.
            OSError: they cannot be had.
        """
        if self.detector == "ssdlite":
            raise ValueError("ssdlite starts from random numbers here: its backbone is reduced")
        try:
            trained = torchvision.models.get_model(self.backbone, weights="DEFAULT").state_dict()
        except OSError as error:
            place = "torchvision's from download.pytorch.org"
            raise unreachable(self.backbone, place, error) from error
        body = self.net.get_submodule("backbone.body")
        body.load_state_dict({name: trained[name] for name in body.state_dict()})


def class_scores(
    detections: Detections, classes: int, rule: str = "best", threshold: float = 0.3
) -> Tensor:
    """Scores of an image's classes by the boxes in it.

    Args:
        detections: boxes of one image, with labels and scores.
        classes: number of classes.
        rule: ``best``: a class has the score of its best box, so that the image is of the class of
            the highest-scoring one; ``sum``: the sum over its boxes.
        threshold: boxes of a lower score do not count.

    Returns:
        (C,), their sum 1; NaN where no box counts, as a member of an ensemble that abstains.

    Raises:
        ValueError: an unknown rule.
    """
    check_choice("rule", rule, RULES)
    scores = detections.scores.new_zeros(classes)
    counts = detections.scores >= threshold
    if not counts.any():
        return scores + torch.nan
    how = "amax" if rule == "best" else "sum"
    scores.scatter_reduce_(0, detections.labels[counts], detections.scores[counts], how)
    return scores / scores.sum()


def is_detector(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a checkpoint of `DetectionTask`."""
    if not os.path.isfile(path) or Path(path).suffix.lower() in (".safetensors", ".json"):
        return False
    content = load_pickle(existing_file(path), mmap=zipfile.is_zipfile(path))
    return isinstance(content, Mapping) and "detector" in (content.get("hyper_parameters") or {})


def load_detector(path: str | os.PathLike[str]) -> ImageDetector:
    """A detector of `DetectionTask`'s checkpoint, evaluating, with `classes`, `input` and `rule`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is no such checkpoint.
    """
    content = load_pickle(existing_file(path))
    given = content.get("hyper_parameters") if isinstance(content, Mapping) else None
    if not given or "detector" not in given or not content.get("classes"):
        raise ValueError(f"{path}: not a checkpoint of a detector that `vizoo fit` trained")
    names: tuple[str, ...] = tuple(content["classes"])
    net = ImageDetector(given["detector"], len(names), given["backbone"], given["size"])
    prefix = "net."
    state = {k[len(prefix) :]: v for k, v in content["state_dict"].items() if k.startswith(prefix)}
    check_state(net, state, os.fspath(path))
    net.load_state_dict(state)
    net.classes, net.input = names, dict(content["input"])
    net.rule = {"rule": given["rule"], "threshold": given["threshold"]}
    return net.eval()


def _build(detector: str, outputs: int, backbone: str, size: int) -> nn.Module:
    kept: dict[str, Any] = {"min_size": size, "max_size": 4 * size}
    if detector == "ssdlite":
        return detection.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=outputs, score_thresh=_SMALLEST_SCORE
        )
    plain = {
        "backbone_name": backbone,
        "weights": None,
        "norm_layer": nn.BatchNorm2d,
        "trainable_layers": 5,
    }
    anchor = _USUAL_ANCHOR * size / _USUAL_SIZE
    if detector == "fasterrcnn":
        anchors = AnchorGenerator(
            tuple((anchor * 2**level,) for level in range(5)), ((0.5, 1.0, 2.0),) * 5
        )
        return detection.FasterRCNN(
            resnet_fpn_backbone(**plain),
            outputs,
            rpn_anchor_generator=anchors,
            box_score_thresh=_SMALLEST_SCORE,
            **kept,
        )
    pyramid = resnet_fpn_backbone(
        **plain, returned_layers=[2, 3, 4], extra_blocks=LastLevelP6P7(256, 256)
    )
    if detector == "fcos":
        return detection.FCOS(pyramid, outputs, score_thresh=_SMALLEST_SCORE, **kept)
    sizes = tuple(
        tuple(anchor * 2 ** (level + third / 3) for third in range(3)) for level in range(5)
    )
    anchors = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5)
    return detection.RetinaNet(
        pyramid, outputs, anchor_generator=anchors, score_thresh=_SMALLEST_SCORE, **kept
    )
