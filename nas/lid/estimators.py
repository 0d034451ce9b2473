"""Local intrinsic dimension: how many directions the samples of a batch fill around each of them.

Estimators: maximum likelihood from the k nearest neighbours (Levina and Bickel, NIPS 2004; Amsaleg
et al., KDD 2015), as NAS-LID uses it (He et al., AAAI 2023, arXiv 2211.12759), and TwoNN from the
nearest two (Facco et al., Scientific Reports 2017).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Estimator", "distances", "lid", "two_nn"]

Estimator = Literal["paper", "unbiased", "two_nn"]
"""`lid` has the first two, which give a dimension to each sample; `two_nn` gives one to a batch."""

_AT_ONCE = 1 << 13
_EPSILON = 1e-6


def distances(features: Tensor) -> Tensor:
    """Euclidean distances (n, n) between samples (n, …), flattened, from differences in float64.

    They are float64 too, and exactly 0 between equal samples.

    Raises:
        ValueError: fewer than two samples, none of features, or a feature that is not finite or so
            large that a distance is not.
    """
    if features.dim() < 2 or len(features) < 2 or not features.numel():
        raise ValueError(
            "distances need features of two samples or more, (n, …), not the shape "
            f"{tuple(features.shape)}"
        )
    flat = features.detach().flatten(1)
    if not flat.isfinite().all():
        raise ValueError(
            f"{int((~flat.isfinite()).sum())} of {flat.numel()} features are NaN or infinite, so "
            "samples have no distance"
        )
    count = len(flat)
    squares = flat.new_zeros(count * (count - 1) // 2, dtype=torch.float64)
    for part in flat.split(_AT_ONCE, dim=1):  # in float64 a whole layer would double the memory
        squares += F.pdist(part.double()).square()
    if not squares.isfinite().all():
        raise ValueError(f"features of up to {float(flat.abs().max()):.3g} are too far apart")
    first, second = torch.triu_indices(count, count, 1, device=flat.device)
    square = squares.new_zeros(count, count)
    square[first, second] = square[second, first] = squares
    return square.sqrt()


def lid(features: Tensor, k: int = 20, estimator: Literal["paper", "unbiased"] = "paper") -> Tensor:
    """Local intrinsic dimension at each sample of a batch; the batch's is their mean.

    Args:
        features: (n, …), flattened sample by sample.
        k: nearest neighbours, looked for within the batch.
        estimator: `paper`: −k / (Σ log(rⱼ / (r_k + 1e−6)) + 1e−6), which is high by k / (k − 1) and
            more, and wants distances well above 1e−6; `unbiased`: (k − 2) / Σ log(r_k / rⱼ), which
            no scale disturbs. Only values of one estimator compare.

    Returns:
        (n,), float64. A sample with an equal one has 0, and so has one among equal samples only.

    Raises:
        ValueError: fewer than k + 2 samples, k out of range, another estimator, a feature that is
            not finite, or neighbours that are all equally far, which fit any dimension.
    """
    dimensions = sample_dimensions(features, k, estimator)
    if dimensions.isnan().any():
        raise ValueError(
            f"sample {int(dimensions.isnan().nonzero()[0])}: its {k} nearest neighbours are all "
            "equally far, which fits any dimension"
        )
    return dimensions


def sample_dimensions(features: Tensor, k: int, estimator: str) -> Tensor:
    """As `lid`, with NaN for samples whose neighbours are all equally far."""
    if estimator not in ("paper", "unbiased"):
        raise ValueError(f"no dimension of each sample by {estimator!r}: choose paper or unbiased")
    least = check_neighbours(k, estimator)
    count = len(features) if features.dim() else 0
    if count < k + 2:
        smaller = f", or k of at most {count - 2}" if count - 2 >= least else ""
        raise ValueError(
            f"{count} samples are too few for {k} neighbours: give a batch of {k + 2} or more"
            f"{smaller}"
        )
    near = distances(features).fill_diagonal_(torch.inf).topk(k, largest=False).values
    farthest = near[:, -1:]
    if estimator == "paper":
        dimensions = -k / ((near / (farthest + _EPSILON)).log().sum(1) + _EPSILON)
    else:
        logarithms = (farthest / near).log()
        # 0 / 0 where all neighbours equal the sample.
        dimensions = (k - 2) / logarithms.nan_to_num(nan=torch.inf, posinf=torch.inf).sum(1)
    # Beside this the paper's 1e−6 decides, by which the dimension is in the millions or below 0.
    alike = (near[:, 0] == near[:, -1]) & (near[:, 0] > 0)
    return dimensions.masked_fill(alike, torch.nan)


def check_neighbours(k: int, estimator: str) -> int:
    """The least k of an estimator of each sample's dimension; raise a ValueError if it is less."""
    least = 2 if estimator == "paper" else 3
    if k < least:
        raise ValueError(f"k {k}: the {estimator} estimator needs {least} neighbours or more")
    return least


def two_nn(features: Tensor, *, last: bool = False) -> Tensor:
    """Intrinsic dimension of a batch from the ratio of the nearest two distances of each sample.

    A line through the origin is fitted to −log(1 − F) against the logarithms of the ratios.
    Samples with an equal one have no ratio; as in `lid` they count as 0: the estimate from the
    others is taken times their share.

    Args:
        features: (n, …), flattened sample by sample.
        last: whether the i-th of n ratios stands for F = i / n, the last one being left out,
            instead of F = (i − 1) / n.

    Returns:
        A scalar, float64; 0 where nearly all samples equal others, so that no ratio is left.

    Raises:
        ValueError: fewer than three samples, a feature that is not finite, or samples that are
            equally far from all others.
    """
    count = len(features) if features.dim() else 0
    if count < 3:
        raise ValueError(f"two neighbours need a batch of three samples, not of {count}")
    near = distances(features).fill_diagonal_(torch.inf).topk(2, largest=False).values
    near = near[near[:, 0] > 0]
    share = len(near) / count
    logarithms = (near[:, 1] / near[:, 0]).log().sort().values
    places = torch.arange(len(near), device=near.device, dtype=torch.float64)
    if last:
        places, logarithms = places[:-1] + 1, logarithms[:-1]
    squares = logarithms.square().sum()
    if squares > 0:
        return share * (-(1 - places / len(near)).log() @ logarithms / squares)
    if share == 1:
        raise ValueError("the nearest two samples of each are equally far: no dimension fits")
    return squares
