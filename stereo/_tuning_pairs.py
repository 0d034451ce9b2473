"""Pairs without true disparities to tune a network on: read, divided, labelled, in batches."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Generator, Tensor

from ..datasets.stereo.scenes import GeneratedStereo
from ..datasets.stereo.transforms import RandomScale
from ..vision.io.images import ImageLike, to_bytes
from .agreement import agreed
from .infer import StereoPredictor, open_pair, reduced
from .rectification import check_pair

__all__ = ["OwnPair", "Report", "batches", "divided", "labelled", "matcher", "usable_pairs"]

_MOST_PIXELS = 1_000_000  # of a pair that is learned from; larger ones are reduced
_HELD_OUT, _ENOUGH = 10, 3  # one of so many pairs, and so many where that leaves twice as many
_ROWS = 128  # that a single pair needs at least, to hold a quarter of them out
_REMEDY = (
    "`vizoo rectify` does that by the cameras' calibration, and `vizoo rectify --auto` without one"
)
_SMALLER = RandomScale(-1.0, 0.0, probability=0.7)  # the sizes at which pairs are matched

Report = Callable[[str, int, int | None], None]


class OwnPair(NamedTuple):
    """One pair at the size at which it is matched, as bytes (3, H, W)."""

    left: Tensor
    right: Tensor
    disparity: Tensor | None = None  #: (1, H, W) float16, 0 where the network is not sure
    reduced: str = ""  #: from what and why, for messages

    def views(self) -> tuple[Tensor, Tensor]:
        return self.left.float() / 255, self.right.float() / 255

    def sample(self) -> dict[str, Tensor]:
        left, right = self.views()
        disparity = cast("Tensor", self.disparity).float()
        return {"left": left, "right": right, "disparity": disparity, "valid": disparity > 0}


def usable_pairs(
    predictor: StereoPredictor,
    pairs: Sequence[tuple[ImageLike, ImageLike]],
    most: int,
    crop: tuple[int, int],
    report: Report,
    skip: Callable[[str, str], None],
) -> tuple[list[OwnPair], dict[str, str]]:
    """The pairs to work with, and by name what is wrong with others."""
    count = min(most, len(pairs))
    chosen = [index * len(pairs) // count for index in range(count)]
    usable, skipped = [], {}
    for done, index in enumerate(chosen):
        report("pairs", done, count)
        left, right = pairs[index]
        try:
            usable.append(_opened(predictor, left, right, crop))
        except (ValueError, OSError) as error:
            name = os.fspath(left) if isinstance(left, (str, os.PathLike)) else f"pair {index + 1}"
            skipped[name] = " ".join(str(error).split())
            skip(name, skipped[name])
    report("pairs", count, count)
    if not usable:
        told = [why if name in why else f"{name}: {why}" for name, why in skipped.items()]
        raise ValueError(": ".join([f"none of {len(pairs)} pairs can be used", *told[:1]]))
    return usable, skipped


def _opened(
    predictor: StereoPredictor, left: ImageLike, right: ImageLike, crop: tuple[int, int]
) -> OwnPair:
    """A pair at the size at which the network would match it."""
    given = open_pair(left, right)
    share = min(1.0, math.sqrt(_MOST_PIXELS / given[0][0].numel()))
    views = [reduced(view, share) for view in given]
    doubts = check_pair(*map(to_bytes, views), remedy=_REMEDY)
    if doubts:
        raise ValueError(doubts[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is beyond reach is matched at a smaller size
        result = predictor(*views, check=False)
    left, right = ((255 * reduced(view, result.scale)).round().byte() for view in views)
    why = ""
    if result.scale < 1:
        height, width = given[0].shape[1:]
        largest = np.quantile(result.disparity, 0.99) / share
        why = f" (of {height}x{width}, reduced because disparities reach {largest:.0f} px)"
    height, width = left.shape[1:]
    if height < crop[0] or width < crop[1]:
        raise ValueError(
            f"{height}x{width} pixels{why} are less than the {crop[0]}x{crop[1]} of a training "
            "sample"
        )
    return OwnPair(left, right, reduced=why)


def divided(usable: list[OwnPair]) -> tuple[list[OwnPair], list[OwnPair]]:
    """Pairs to learn from and to hold out."""
    if len(usable) == 1:
        left, right, _, why = usable[0]
        height, width = left.shape[1:]
        if height < _ROWS:
            raise ValueError(
                f"one pair of {height}x{width} pixels{why} is too little, {_ROWS} rows are needed: "
                "give several, or larger"
            )
        cut = height * 3 // 4
        return [OwnPair(left[:, :cut], right[:, :cut])], [OwnPair(left[:, cut:], right[:, cut:])]
    count = max(1, round(len(usable) / _HELD_OUT), min(_ENOUGH, len(usable) // 3))
    held = {(2 * index + 1) * len(usable) // (2 * count) for index in range(count)}
    learned = [pair for index, pair in enumerate(usable) if index not in held]
    return learned, [usable[index] for index in sorted(held)]


def labelled(
    predictor: StereoPredictor, pairs: list[OwnPair], report: Report
) -> tuple[list[OwnPair], float]:
    """The pairs with what the network is sure of in them, and the share of their pixels that is.

    Raises:
        ValueError: it is sure of nothing.
    """
    match = matcher(predictor)
    with_labels: list[OwnPair] = []
    shares = []
    for pair in pairs:
        report("labels", len(with_labels), len(pairs))
        disparity, sure = agreed(match, *pair.views())
        with_labels.append(pair._replace(disparity=torch.where(sure, disparity, 0)[None].half()))
        shares.append(float(sure.float().mean()))
    report("labels", len(with_labels), len(pairs))
    if not any(shares):
        raise ValueError(
            "the network is sure of nothing in these pairs: its views and sizes disagree; look at "
            "what `vizoo infer stereo` finds, or start from other weights"
        )
    return with_labels, mean(shares)


def batches(
    pairs: list[OwnPair], scenes: GeneratedStereo, augment: Any, half: int, generator: Generator
) -> Iterator[dict[str, Tensor]]:
    """Batches without end: as many samples of pairs as of generated scenes."""
    drawn = 0
    while True:
        samples = []
        for _ in range(half):
            index = int(torch.randint(len(pairs), (), generator=generator))
            pair = _SMALLER(pairs[index].sample(), generator)
            samples += [pair, scenes[drawn % len(scenes)]]
            drawn += 1
        samples = [augment(sample, generator) for sample in samples]
        names = ("left", "right", "disparity", "valid")
        yield {name: torch.stack([sample[name] for sample in samples]) for name in names}


def matcher(predictor: StereoPredictor) -> Callable[[Tensor, Tensor, float], Tensor]:
    def match(left: Tensor, right: Tensor, scale: float) -> Tensor:
        return torch.from_numpy(predictor(left, right, scale=scale, check=False).disparity)

    return match
