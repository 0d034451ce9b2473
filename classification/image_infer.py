"""The class of an image, by one network or several, and where they looked.

Research software, not a medical device: not for diagnosis or treatment.

Example:
    >>> predictor = vizoo.ImagePredictor("last.ckpt")  # or an ensemble.json
    >>> result = predictor("lesion.jpg")
    >>> result.predicted, result.save("out", "lesion")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.arguments import checked
from ..common.files import write_json
from ..vision.io.images import ImageLike, as_image, write_image
from . import NOTICE
from .ensemble import Combination, align, check_classes
from .ensemble_file import is_ensemble, read_ensemble
from .members import ImageMember
from .overlays import overlay_picture

__all__ = ["METHODS", "ImagePredictor", "ImageResult", "PreparedImage"]

#: How maps can be made.
METHODS = ("auto", "cam", "grad-cam")

_LONGEST = 1024  # side of the picture that a result keeps, pixels


@dataclass(frozen=True, eq=False)
class ImageResult:
    """What was found for one image."""

    classes: tuple[str, ...]  #: names of the classes
    probabilities: np.ndarray  #: of the classes, (C,) float32
    #: what each network alone takes for the most probable class, and None where it abstains
    members: tuple[str | None, ...]
    size: tuple[int, int]  #: height and width of the image
    picture: Tensor  #: it, (3, H, W) in [0, 1]; large ones are reduced
    #: where the networks looked, (H, W) in [0, 1], 0 outside of what they saw; None where that was
    #: not asked for
    heat: Tensor | None = None
    method: str = ""  #: how `heat` was made, in words
    explained: str = ""  #: the class that it is for

    @property
    def predicted(self) -> str:
        """The most probable class; says nothing where no member answered."""
        return self.classes[int(self.probabilities.argmax())]

    @property
    def answered(self) -> bool:
        """Whether any member did not abstain, as a detector does that finds no box."""
        return any(self.members)

    def top(self, count: int = 5) -> dict[str, float]:
        """The most probable classes, first the first."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return {self.classes[place]: round(float(self.probabilities[place]), 6) for place in order}

    def summary(self) -> dict[str, Any]:
        """What was found, as JSON values."""
        summary: dict[str, Any] = {
            "class": self.predicted,
            "probabilities": self.top(len(self.classes)),
            "size": list(self.size),
        }
        if len(self.members) > 1 or None in self.members:
            summary["members"] = list(self.members)
        if self.heat is not None:
            summary["map"] = {"method": self.method, "class": self.explained}
        return {**summary, "notice": NOTICE}

    def overlay(self, title: str = "") -> np.ndarray:
        """The picture with the map over it, (H, W, 3) uint8 RGB.

        Raises:
            ValueError: the map was not asked for.
        """
        if self.heat is None:
            raise ValueError("no map: it was not asked for")
        words = f"{self.predicted} {self.probabilities.max():.2f}" if self.answered else "no box"
        return overlay_picture(
            [self.picture],
            [self.heat],
            title=f"{title}: {words}" if title else words,
            note=f"{self.method}. {NOTICE}",
            label=f"speaks for {self.explained}",
        )

    def save(
        self, folder: str | os.PathLike, name: str, facts: Mapping[str, Any] | None = None
    ) -> list[Path]:
        """Write ``<name>.json``, `facts` in it, and ``<name>_overlay.png``, where there is a map.

        Without one, the overlay of an earlier result of this name is deleted.

        Returns:
            The files written, in a folder that is made if it is missing.
        """
        summary = {**self.summary(), **(facts or {})}
        path, overlay = (Path(folder) / f"{name}{end}" for end in (".json", "_overlay.png"))
        if self.heat is None and path.exists():
            overlay.unlink(missing_ok=True)
        files = [write_json(path, summary)]
        if self.heat is not None:
            files.append(overlay)
            write_image(overlay, self.overlay(name))
        return files


class PreparedImage(NamedTuple):
    """An image as the members of a predictor want it."""

    size: tuple[int, int]  #: its height and width
    picture: Tensor  #: it, (3, H, W) in [0, 1]; large ones are reduced
    inputs: tuple[Tensor, ...]  #: for each member (3, H, W)


class ImagePredictor:
    """A classifier of images, or several, ready for images of any size.

    Args:
        model: see `StereoPredictor`; it has `classes` and `input`. Also the Lightning checkpoint of
            a detector, or the ``.json`` of an ensemble.
        device: see there.
        dtype: see there.
        flips: whether the image and its mirror images are asked; None: as the ensemble's file says.
        runtime: see there, of classifiers; maps and detectors are PyTorch's.

    Attributes:
        classes: names, in the order of the probabilities.
        members: the networks.
        name: of the network, or of the networks.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such model, no trained weights for it, or members of other classes.
    """

    @checked("model")
    def __init__(
        self,
        model: str | os.PathLike | nn.Module,
        device: str = "auto",
        dtype: str = "float32",
        flips: bool | None = None,
        runtime: str = "torch",
    ) -> None:
        how = device, dtype, runtime
        if isinstance(model, nn.Module) or not is_ensemble(model):
            self.members = [ImageMember(model, 1.0, *how)]
            self.classes, self.combination = self.members[0].classes, Combination()
            self.flips = bool(flips)
        else:
            ensemble = read_ensemble(model)
            self.classes, self.combination = ensemble.classes, ensemble.combination
            self.flips = ensemble.flips if flips is None else flips
            self.members = []
            for listed in ensemble.members:
                member = ImageMember(listed.source, listed.temperature, *how)
                check_classes(member.classes, self.classes, listed.source)
                self.members.append(member)
        self.name = ", ".join(member.name for member in self.members)
        self.device, self.dtype = self.members[0].device, self.members[0].dtype
        self.runtime = runtime

    def __call__(self, image: ImageLike, **options: Any) -> ImageResult:
        """Classify one image; see `many`."""
        return self.many([image], **options)[0]

    def prepare(self, image: ImageLike) -> PreparedImage:
        """Read an image for `many`, which takes less memory than many whole ones.

        Raises:
            FileNotFoundError: there is no such image.
            ValueError: it cannot be read.
        """
        plane = as_image(image)
        inputs = tuple(member.preset.prepare(plane) for member in self.members)
        height, width = plane.shape[1:]
        return PreparedImage((height, width), _reduced(plane), inputs)

    def many(
        self,
        images: Sequence[ImageLike | PreparedImage],
        *,
        method: str | None = None,
        layer: str | None = None,
        explained: str | None = None,
    ) -> list[ImageResult]:
        """Classify images at once.

        Args:
            images: paths, uint8 or uint16 arrays, (H, W, 3) RGB or (H, W) grey, or (3, H, W)
                tensors in [0, 1], of any sizes; or what `prepare` made of them.
            method: of the maps, one of `METHODS`; None for no maps.
            layer: of Grad-CAM; detectors have none.
            explained: the class that the maps are for; None for the most probable one.

        Raises:
            FileNotFoundError: there is no such image.
            ValueError: one cannot be read; the network's output is not finite; an unknown class or
                method; or no member has such maps.
        """
        if method not in (None, *METHODS):
            raise ValueError(f"method {method!r} is none of {', '.join(METHODS)}")
        if explained is not None and explained not in self.classes:
            raise ValueError(f"class {explained!r} is none of {', '.join(self.classes)}")
        if (layer or method in METHODS[1:]) and all(member.detects for member in self.members):
            raise ValueError(
                f"{self.name}: the map of a detector is its boxes: leave out method and layer"
            )
        images = list(images)  # of one array, too
        if not images:
            return []
        seen = [i if isinstance(i, PreparedImage) else self.prepare(i) for i in images]
        batches = [torch.stack(inputs) for inputs in zip(*(s.inputs for s in seen), strict=True)]
        answers = [
            align(member(batch, self.flips), member.classes, self.classes)
            for member, batch in zip(self.members, batches, strict=True)
        ]
        logs = torch.stack(answers)
        probabilities = self.combination(logs)
        predicted = [self.classes[number] for number in probabilities.argmax(1).tolist()]
        wanted = [explained or name for name in predicted]
        heats, words = None, ""
        if method is not None:
            heats, words = self._maps(batches, seen, wanted, method, layer)
        return [
            ImageResult(
                self.classes,
                probabilities[i].numpy(),
                tuple(
                    None if log.isnan().any() else self.classes[int(log.argmax())]
                    for log in logs[:, i]
                ),
                image.size,
                image.picture,
                None if heats is None else heats[i],
                words,
                wanted[i] if method is not None else "",
            )
            for i, image in enumerate(seen)
        ]

    def _maps(
        self,
        batches: list[Tensor],
        seen: list[PreparedImage],
        wanted: list[str],
        method: str,
        layer: str | None,
    ) -> tuple[list[Tensor], str]:
        """Mean of the members' maps, each on the whole picture, and how they were made."""
        weights = self.combination.weights or [1.0] * len(self.members)
        sums = [torch.zeros(image.picture.shape[1:]) for image in seen]
        words, total = [], 0.0
        refusal: ValueError | None = None
        for member, batch, weight in zip(self.members, batches, weights, strict=True):
            if not weight:
                continue
            try:
                values, how = member.explain(batch, wanted, method, layer)
            except ValueError as error:
                refusal = error
                continue
            words.append(how)
            total += weight
            for place, value in enumerate(values):
                region = member.preset.region(*seen[place].size)
                scale = sums[place].shape[1] / seen[place].size[1]
                sums[place] += weight * _placed(value, region, scale, sums[place].shape)
        if refusal is not None and not words:
            raise refusal
        words = list(dict.fromkeys(words))
        how = words[0] if len(self.members) == 1 else f"mean of {'; '.join(words)}"
        return [heat / total for heat in sums], how


def _reduced(plane: Tensor) -> Tensor:
    """A picture (3, H, W) whose longer side is at most 1024."""
    scale = _LONGEST / max(plane.shape[1:])
    if scale >= 1:
        return plane.clone()  # the caller may write to a tensor that was given
    size = [max(1, round(scale * side)) for side in plane.shape[1:]]
    return F.interpolate(plane[None], size, mode="bilinear", antialias=True)[0]


def _placed(
    heat: Tensor, region: tuple[int, int, int, int], scale: float, shape: Sequence[int]
) -> Tensor:
    """A map of a region of a picture on the whole of it, reduced by `scale`."""
    whole = torch.zeros(tuple(shape))
    top, left, tall, wide = region
    rows, columns = (
        slice(round(scale * start), max(round(scale * start) + 1, round(scale * (start + length))))
        for start, length in ((top, tall), (left, wide))
    )
    part = whole[rows, columns]
    if part.numel():
        part.copy_(F.interpolate(heat[None, None], part.shape, mode="bilinear")[0, 0])
    return whole
