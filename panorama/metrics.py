"""Accuracy of panorama depth, in an image's pixels or on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from ..vision.layers import check_truth
from .losses import solid_angles
from .mesh import level_of
from .sampling import pixel_directions

__all__ = ["NAMES", "PanoramaMetrics", "depth_errors", "sphere_weights"]

_MIN_DEPTH = 0.1  # metres
NAMES = ("mae", "mre", "sq_rel", "rmse", "rmse_log10", "log10", "d1", "d2", "d3")


def depth_errors(
    prediction: Tensor,
    depth: Tensor,
    valid: Tensor,
    weights: Tensor | None = None,
    *,
    max_depth: float = 10.0,
) -> Tensor:
    """Scores of each image, as UniFuse's program defines them.

    `mae` is the mean of |d|, `mre` of |d| / g, `sq_rel` of d² / g, `log10` of |log10 p − log10 g|;
    `rmse` and `rmse_log10` are roots of means of squares; `d1`, `d2` and `d3` are the shares with
    max(p / g, g / p) below 1.25, 1.25² and 1.25³. Prediction p and truth g are clipped first (that
    program clips the truth where the prediction is too large; here it is the prediction). Nothing
    is scaled by medians.

    Args:
        prediction: (N, …), in metres.
        depth: the truth, the same shape; anything where it is not valid.
        valid: where it is known, the same shape, bool. Of these count finite depths above 0 and
            not above `max_depth`.
        weights: how much each value counts, broadcast to the shape; None counts all alike.
        max_depth: upper bound of the clipping; the lower one is 0.1.

    Returns:
        (N, 9) float64 in the order of `NAMES`; NaN for an image of which nothing counts.

    Raises:
        ValueError: the shapes differ.
    """
    check_truth(prediction, depth, valid)
    counted = valid & depth.isfinite() & (depth > 0) & (depth <= max_depth)
    p, g = (
        torch.where(counted, x.double(), 1).clamp(_MIN_DEPTH, max_depth)
        for x in (prediction, depth)
    )
    error, logs = (p - g).abs(), (p.log10() - g.log10()).abs()
    ratio = torch.maximum(p / g, g / p)
    values = torch.stack(
        [
            error,
            error / g,
            error**2 / g,
            error**2,
            logs**2,
            logs,
            *((ratio < 1.25**n).double() for n in (1, 2, 3)),
        ],
        1,
    )  # (N, 9, …)
    weight = counted.double() if weights is None else counted * weights.double()
    means = (values * weight[:, None]).flatten(2).sum(2) / weight.flatten(1).sum(1)[:, None]
    means[:, 3:5] = means[:, 3:5].sqrt()
    return means


def sphere_weights(depth: Tensor) -> Tensor:
    """How much of the sphere each value stands for, up to a factor.

    Args:
        depth: (N, 1, H, W) equirectangular, or (N, F) on faces.

    Returns:
        (H, 1) cosines of the rows' latitudes, or (F,) solid angles; float64.

    Raises:
        ValueError: another shape.
    """
    if depth.dim() == 4:
        directions = pixel_directions(depth.shape[2], 1, device=depth.device)
        return (1 - directions[..., 1] ** 2).sqrt()
    if depth.dim() == 2:
        return solid_angles(level_of(depth.shape[1]), depth.device)
    raise ValueError(f"depth must be (N, 1, H, W) or (N, F), got {tuple(depth.shape)}")


class PanoramaMetrics(Metric):
    """Means over images of `depth_errors`, by the names in `NAMES`, twice.

    `mre` counts all pixels (or faces) alike, as publications do; `mre_sphere` by how much of the
    sphere they cover. Images of which nothing counts are left out; without any image every value
    is NaN.

    Args:
        max_depth: see `depth_errors`.
    """

    full_state_update = False
    total: Tensor
    images: Tensor

    def __init__(self, max_depth: float = 10.0) -> None:
        super().__init__()
        self.max_depth = max_depth
        total = torch.zeros(2, len(NAMES), dtype=torch.float64)
        self.add_state("total", total, dist_reduce_fx="sum")
        self.add_state("images", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, depth: Tensor, valid: Tensor) -> None:
        """Count a batch, equirectangular (N, 1, H, W), or (N, F) on faces: of one shape all three.

        Raises:
            ValueError: the shapes differ.
        """
        counted = valid & depth.isfinite() & (depth > 0) & (depth <= self.max_depth)
        seen = counted.flatten(1).any(1)
        for total, weights in zip(self.total, (None, sphere_weights(depth)), strict=True):
            errors = depth_errors(prediction, depth, valid, weights, max_depth=self.max_depth)
            total += errors[seen].sum(0)
        self.images += seen.sum()

    def compute(self) -> dict[str, Tensor]:
        """The metrics by name, float32 scalars."""
        names = (*NAMES, *(f"{name}_sphere" for name in NAMES))
        means = (self.total / self.images).float().flatten()
        return dict(zip(names, means.unbind(), strict=True))
