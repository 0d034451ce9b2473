"""What tells, without true disparities, whether a network does better than it did."""

from __future__ import annotations

import math
from statistics import mean, stdev
from typing import NamedTuple

import cv2
import torch
from torch import Tensor, nn

from ..datasets.stereo.scenes import GeneratedStereo
from ._tuning_pairs import OwnPair, matcher
from .agreement import disagreement, gained
from .classical import semi_global_matching
from .infer import StereoPredictor
from .metrics import DisparityMetrics

__all__ = ["Exam"]

_SURE = 2.0  # standard errors that held-out pairs have to gain, and generated scenes may lose
_FORGOTTEN = 0.05  # share of the error on generated scenes that may be lost in any case


class _Marks(NamedTuple):
    """How a network does where it does not learn, in pixels."""

    doubts: list[Tensor]  #: `disagreement` on each held-out pair
    errors: list[float]  #: on each generated scene

    def means(self) -> dict[str, float]:
        disagreement = mean(float(doubt.mean()) for doubt in self.doubts)
        return {"disagreement": disagreement, "generated_epe": mean(self.errors)}


class Exam:
    """Pairs and scenes that are held out, and how the network at the start does on them."""

    def __init__(
        self,
        net: nn.Module,
        device: str,
        pairs: list[OwnPair],
        scenes: GeneratedStereo,
        limit: float,
    ) -> None:
        self.device, self.limit = device, limit
        # The third is the disparity of a matcher that learns nothing, 0 where it is not sure.
        reach, mode = 16 * math.ceil(limit / 16), cv2.STEREO_SGBM_MODE_HH
        self.pairs = [
            (*views, torch.from_numpy(semi_global_matching(*views, mode, reach, fill=False)))
            for views in (pair.views() for pair in pairs)
        ]
        self.scenes = [scenes[index] for index in range(len(scenes))]
        self.start = self.marks(net)

    def marks(self, net: nn.Module) -> _Marks:
        match = matcher(StereoPredictor(net, self.device))
        doubts = [disagreement(match, *pair) for pair in self.pairs]
        errors = []
        for scene in self.scenes:
            metrics = DisparityMetrics(self.limit)
            disparity = match(scene["left"], scene["right"], 1)[None, None]
            metrics.update(disparity, scene["disparity"][None], scene["valid"][None])
            errors.append(float(metrics.compute()["epe"]))
        return _Marks(doubts, errors)

    def compare(self, net: nn.Module) -> dict[str, float]:
        """What `TuningReport.after` holds."""
        marks = self.marks(net)
        gain, error = gained(self.start.doubts, marks.doubts)
        own = [old - new for old, new in zip(self.start.errors, marks.errors, strict=True)]
        return {
            **marks.means(),
            "gain": gain,
            "gain_error": error,
            "generated_gain": mean(own),
            "generated_gain_error": stdev(own) / math.sqrt(len(own)),
        }

    def rank(self, check: dict[str, float]) -> tuple[bool, float]:
        """By which the best of several checks is the largest."""
        return self.better(check), check["gain"]

    def better(self, check: dict[str, float]) -> bool:
        """Whether more is gained than chance would bring, and no more is lost than that."""
        lost = min(_SURE * check["generated_gain_error"], _FORGOTTEN * mean(self.start.errors))
        return check["gain"] > _SURE * check["gain_error"] and check["generated_gain"] >= -lost
