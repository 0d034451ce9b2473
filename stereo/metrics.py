"""Accuracy of disparity maps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from ..vision.layers import check_truth

__all__ = ["DisparityMetrics"]

_OF_PIXELS = ("epe_pixel", "smooth_l1", "bad1", "bad2", "bad3", "d1")


class DisparityMetrics(Metric):
    """End-point error and the usual shares of wrong pixels.

    Pixels count where the ground truth is known and 0 < disparity < `max_disparity`. Keys of the
    result: `epe` (mean over images of the image's mean absolute error, in pixels), `epe_pixel`
    (mean over all pixels), `smooth_l1` (over all pixels; some published "EPE" are this),
    `bad1`, `bad2`, `bad3` (shares of pixels with an error above 1, 2, 3 px) and `d1` (error above
    3 px and above 5 % of the truth). Images without a counted pixel are left out; without any
    image every value is NaN.

    Args:
        max_disparity: upper end of the counted range in pixels; None for no bound (KITTI).
    """

    full_state_update = False
    image_error: Tensor
    images: Tensor
    pixels: Tensor
    totals: Tensor

    def __init__(self, max_disparity: float | None = 192.0) -> None:
        super().__init__()
        self.max_disparity = max_disparity
        for name in ("image_error", "images", "pixels"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        totals = torch.zeros(len(_OF_PIXELS), dtype=torch.float64)
        self.add_state("totals", totals, dist_reduce_fx="sum")

    def update(self, prediction: Tensor, disparity: Tensor, valid: Tensor) -> None:
        """Count a batch: prediction, truth and where it is known, bool, each (B, 1, H, W).

        Raises:
            ValueError: the shapes differ.
        """
        check_truth(prediction, disparity, valid)
        counted = valid & (disparity > 0)
        if self.max_disparity is not None:
            counted &= disparity < self.max_disparity
        error = torch.where(counted, prediction.float() - disparity, 0).abs()
        pixels = counted.sum(dim=(1, 2, 3)).double()
        image_error = error.sum(dim=(1, 2, 3), dtype=torch.float64)
        seen = pixels > 0
        self.image_error += (image_error[seen] / pixels[seen]).sum()
        self.images += seen.sum()
        self.pixels += pixels.sum()
        smooth = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
        right = [error <= bound for bound in (1, 2, 3)]
        right.append(right[-1] | (error <= 0.05 * disparity))
        # Written as "not right", so that a prediction that is not a number is wrong.
        parts = [image_error, smooth, *(counted & ~each for each in right)]
        self.totals += torch.stack([part.sum(dtype=torch.float64) for part in parts])

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name, float32 scalars."""
        means = dict(zip(_OF_PIXELS, (self.totals / self.pixels).float().unbind(), strict=True))
        return {"epe": (self.image_error / self.images).float(), **means}
