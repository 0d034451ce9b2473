"""How alike candidates are, by vectors that describe them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Measure", "similarity"]

Measure = Literal["euclidean", "cosine", "pearson"]


def similarity(vectors: Tensor, measure: Measure = "euclidean") -> Tensor:
    """Similarities of all pairs of vectors; large is alike.

    NAS-LID's vectors, which hold the dimension of each layer, are best told apart by `euclidean`:
    their cosines hardly differ, and Pearson's correlation takes no notice of their size.

    Args:
        vectors: (n, d), one for each candidate.
        measure: `euclidean`: 1 / (1 + 1e−6 + distance); `cosine`; `pearson`, the cosine of what is
            left without the mean. A vector of zeros is like one of zeros and no other.

    Returns:
        (n, n), float64.

    Raises:
        ValueError: another measure, no vectors, or values that are not finite.
    """
    if vectors.dim() != 2 or not vectors.numel():
        raise ValueError(f"wanted vectors (n, d), not the shape {tuple(vectors.shape)}")
    vectors = vectors.double()
    if not vectors.isfinite().all():
        raise ValueError("a vector to compare is not finite")
    if measure == "euclidean":
        exact = "donot_use_mm_for_euclid_dist"
        return 1 / (1 + 1e-6 + torch.cdist(vectors, vectors, compute_mode=exact))
    if measure == "pearson":
        vectors = vectors - vectors.mean(1, keepdim=True)
    elif measure != "cosine":
        raise ValueError(f"measure {measure!r} is unknown: choose euclidean, cosine or pearson")
    lengths = vectors.norm(dim=1, keepdim=True)
    units = torch.where(lengths > 0, vectors / lengths, 0)
    empty = (lengths == 0).double()
    return units @ units.T + empty @ empty.T
