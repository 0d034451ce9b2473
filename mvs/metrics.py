"""Accuracy of depth maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from ..vision.layers import check_truth

__all__ = ["DepthMetrics"]

_BINS = 4096
_LOWEST, _HIGHEST = 1e-6, 1e3  # relative errors that the histogram tells apart


class DepthMetrics(Metric):
    """Absolute and relative error of depth, and shares of pixels that are near enough.

    Pixels count where the ground truth is known and positive. Keys of the result: `abs` (mean
    absolute error over all pixels, in the scene's unit), `abs_image` (mean over images of the
    image's), `rel` (mean of error / truth), `rel_median` (its median, to 0.6 %), `within_X` for
    each of `thresholds` (share of pixels with an absolute error below X) and `within_X%` for each
    of `relative_thresholds`. Without any pixel every value is NaN.

    Args:
        thresholds: in the scene's unit, such as 1, 2 and 4 for DTU's millimetres.
        relative_thresholds: in per cent of the true depth.
    """

    full_state_update = False
    error: Tensor
    image_error: Tensor
    relative: Tensor
    pixels: Tensor
    images: Tensor
    near: Tensor
    histogram: Tensor

    def __init__(
        self,
        thresholds: Sequence[float] = (),
        relative_thresholds: Sequence[float] = (1.0, 2.0, 5.0),
    ) -> None:
        super().__init__()
        self.thresholds = tuple(thresholds)
        self.relative_thresholds = tuple(relative_thresholds)
        for name in ("error", "image_error", "relative", "pixels", "images"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        shares = len(self.thresholds) + len(self.relative_thresholds)
        self.add_state("near", torch.zeros(shares, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("histogram", torch.zeros(_BINS, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, depth: Tensor, valid: Tensor) -> None:
        """Count a batch: prediction, truth and where it is known, bool, each (B, 1, H, W).

        Raises:
            ValueError: the shapes differ.
        """
        check_truth(prediction, depth, valid)
        counted = valid & (depth > 0)
        error = torch.where(counted, prediction.float() - depth, 0).abs()
        relative = error / torch.where(counted, depth, 1)
        pixels = counted.sum(dim=(1, 2, 3)).double()
        image_error = error.sum(dim=(1, 2, 3), dtype=torch.float64)
        seen = pixels > 0
        self.image_error += (image_error[seen] / pixels[seen]).sum()
        self.images += seen.sum()
        self.pixels += pixels.sum()
        self.error += image_error.sum()
        self.relative += relative.sum(dtype=torch.float64)
        # A comparison with NaN is false, so that a prediction that is not a number is far off.
        near = [(counted & (error < bound)).sum() for bound in self.thresholds]
        near += [(counted & (relative < x / 100)).sum() for x in self.relative_thresholds]
        if near:
            self.near += torch.stack(near)
        place = _place(relative[counted].nan_to_num(_HIGHEST, _HIGHEST))
        self.histogram += torch.bincount(place, minlength=_BINS).double()

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name, float32 scalars."""
        names = [f"within_{bound:g}" for bound in self.thresholds]
        names += [f"within_{bound:g}%" for bound in self.relative_thresholds]
        return {
            "abs": (self.error / self.pixels).float(),
            "abs_image": (self.image_error / self.images).float(),
            "rel": (self.relative / self.pixels).float(),
            "rel_median": self._median(),
            **dict(zip(names, (self.near / self.pixels).float(), strict=True)),
        }

    def _median(self) -> Tensor:
        total = self.histogram.cumsum(0)
        if total[-1] == 0:
            return total.new_full((), float("nan")).float()
        place = (total < total[-1] / 2).sum()
        return (_LOWEST * (_HIGHEST / _LOWEST) ** ((place + 0.5) / _BINS)).float()


def _place(relative: Tensor) -> Tensor:
    """The bin of each error; their logarithms are evenly spaced."""
    span = torch.log(torch.tensor(_HIGHEST / _LOWEST))
    places = (relative.clamp(min=_LOWEST) / _LOWEST).log() / span.to(relative.device) * _BINS
    return places.long().clamp(0, _BINS - 1)
