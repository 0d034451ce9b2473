"""Trained classifiers of images as members of an ensemble, detectors among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..common.devices import choose_device, choose_dtype
from ..datasets.images import ImagePreset
from ..nas.supernet import architecture_of
from ..vision.hub.create import load_network
from ..vision.inference import check_prediction, evaluating, standalone
from ..vision.runtimes import prepared
from ._trained import classes_and_preset
from .cam import ActivationMap, explain
from .detectors import Detections, ImageDetector, class_scores, is_detector, load_detector

__all__ = ["ImageMember"]

_FLIPS = ((), (3,), (2,), (2, 3))  # axes of (B, 3, H, W)
_FLOOR = 1e-6


class ImageMember:
    """A network that says which class an image is of, with all that it takes to ask it.

    Args:
        model: a network (copied) that has `classes` and `input`, or trained weights, see
            `ImagePredictor`; also a checkpoint of `DetectionTask`.
        temperature: that its logits are divided by.
        device: see `StereoPredictor`.
        dtype: see there, of classifiers.
        runtime: see there, of classifiers; maps are PyTorch's.

    Attributes:
        name: of the network.
        classes: names, in the order of its outputs.
        preset: how it wants images prepared.

    Raises:
        FileNotFoundError: there is no such weight file.
        ValueError: no classifier of images, one that does not say its classes, or a device or
            dtype that cannot be used.
    """

    def __init__(
        self,
        model: str | os.PathLike | nn.Module,
        temperature: float = 1.0,
        device: str = "auto",
        dtype: str = "float32",
        runtime: str = "torch",
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature {temperature} must be above 0")
        self.temperature = temperature
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        if isinstance(model, nn.Module) or not is_detector(model):
            net = load_network(model, "classification")
        else:
            net = load_detector(model)
        self.name = _name(net)
        source = self.name if isinstance(model, nn.Module) else os.fspath(model)
        self.classes, self.preset = classes_and_preset(net, ImagePreset, "images", source)
        self.detects = isinstance(net, ImageDetector)
        net = net if self.detects else standalone(net)
        self.net = net.eval().requires_grad_(False).to(self.device)
        if self.detects and runtime not in ("torch", "auto"):
            raise ValueError(f"{source}: detectors run in torch, not in {runtime}")
        self.fast = self.net
        if not self.detects:
            self.fast = prepared(self.net, runtime, self.dtype, self.device)

    @torch.no_grad()
    def __call__(self, images: Tensor, flips: bool = False) -> Tensor:
        """Log-probabilities of prepared images (B, 3, *preset.size) in [0, 1].

        With `flips` the probabilities are means over the image and its three mirror images.

        Returns:
            (B, C) float32 on the CPU; NaN where a detector finds no box.

        Raises:
            ValueError: the network's output is not finite.
        """
        images = images.to(self.device)
        logs = [self._ask(images.flip(axes)) for axes in (_FLIPS if flips else _FLIPS[:1])]
        mean = torch.stack(logs).exp().nanmean(0).clamp(min=_FLOOR).log() if flips else logs[0]
        return (mean / self.temperature).log_softmax(1).cpu()

    def explain(
        self, images: Tensor, classes: Sequence[str], method: str = "auto", layer: str | None = None
    ) -> tuple[Tensor, str]:
        """Where the network looked that says of each image its class; see `cam.explain`.

        Returns:
            Maps (B, H, W) in [0, 1] on the CPU, and how they were made, in words.

        Raises:
            ValueError: the network has no such maps, as transformers have none.
        """
        images = images.to(self.device)
        numbers = torch.tensor([self.classes.index(name) for name in classes])
        if self.detects:
            detections = zip(self.net(images), numbers.tolist(), strict=True)
            maps = [_boxes_of(each, number, images.shape[2:]) for each, number in detections]
            return torch.stack(maps).cpu(), "boxes by their score"
        self._check_maps(images[:1])
        where: ActivationMap = explain(self.net, images, numbers, method, layer)
        return where.values.detach().cpu(), where.method

    def _ask(self, images: Tensor) -> Tensor:
        if not isinstance(self.net, ImageDetector):
            logits = self.fast(images)
            check_prediction(logits, dtype=self.dtype)
            return logits.float().log_softmax(1)
        scores = [class_scores(f, len(self.classes), **self.net.rule) for f in self.net(images)]
        return torch.stack(scores).clamp(min=_FLOOR).log()

    @torch.no_grad()
    def _check_maps(self, image: Tensor) -> None:
        width = getattr(getattr(self.net, "body", None), "num_features", None)
        if width is None:
            return
        forward_features = cast("Callable[[Tensor], Tensor]", self.net.forward_features)
        with evaluating(self.net):
            shape = tuple(forward_features(image).shape)
        if len(shape) != 4 or shape[1] != width:
            raise ValueError(
                f"no map of {self.name}: its features {shape} have not the shape of an image; "
                "networks of convolutions have maps"
            )


def _name(net: nn.Module) -> str:
    name = getattr(net, "detector", "") or architecture_of(net).get("name", "")
    return f"{name} {getattr(net, 'backbone', '')}".strip() or type(net).__name__


def _boxes_of(detections: Detections, number: int, size: Sequence[int]) -> Tensor:
    """The highest score of a class's boxes at each pixel."""
    heat = detections.scores.new_zeros(tuple(size))
    for box, score, label in zip(*detections, strict=True):
        if label == number:
            left, top, right, bottom = box.round().long().tolist()
            heat[top:bottom, left:right].clamp_(min=float(score))
    return heat
