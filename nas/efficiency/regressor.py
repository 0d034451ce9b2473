"""Predicting a cost of an architecture (latency, multiply-adds …) from measured ones.

Kernel ridge regression on the space's one-hot encoding. Degree 2: every choice adds its share,
and every pair of choices another, as the width of a layer multiplies its kernel. Pairs are many
and samples few, so a choice first gets a weight: how far it moves the cost by itself, found by
regressions of degree 1. Squared *relative* errors are minimised; the regularisation is the one
with the smallest leave-one-out error, which ridge regression gives in closed form. A hundred
samples suffice, and a fit takes moments, so that files hold samples and no coefficients. Where they
are the whole space, nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..space import Architecture, SearchSpace

__all__ = ["CostRegressor"]

_RIDGES = tuple(10.0**power for power in np.arange(-8, 2, 0.5))
_ROUNDS = 3
_FLOOR = 0.01  # the weight of a choice without any effect of its own


class CostRegressor:
    """Predicts one figure of the architectures of a space, never negative; made by `fit`."""

    def __init__(self, space: SearchSpace, features: NDArray, costs: NDArray) -> None:
        self.space = space
        self._fitted = features, costs
        self._weights = _relevance(space, features, costs)
        self._samples = features * self._weights
        self._scale = _scale(self._samples)
        #: mean error of a prediction as a share of the figure, at most 1 each: of those it was
        #: fitted to, each predicted from the others
        self.error, self._dual = _ridge_regression(self._kernel(self._samples), costs)
        self._whole: dict[Architecture, float] = {}  # of a space of which every figure is known

    @classmethod
    def fit(
        cls, space: SearchSpace, architectures: Sequence[Architecture], costs: Sequence[float]
    ) -> CostRegressor:
        """Fit to three measured architectures or more, whose costs are not negative.

        All architectures of a small space, each once, may be fewer: nothing is left to predict.

        Raises:
            ValueError: too few, or figures that are negative or not finite.
        """
        whole = len(set(architectures)) == len(architectures) == space.count()
        if len(architectures) != len(costs) or len(costs) < 3 and not whole:
            raise ValueError(
                f"{len(architectures)} architectures with {len(costs)} figures: at least three of "
                "each are needed to predict others"
            )
        values = np.asarray(costs, float)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError("figures to be predicted must be positive or 0, and finite")
        made = cls(space, _encode(space, architectures), values)
        if whole:
            made._whole = dict(zip(architectures, values.tolist(), strict=True))
            made.error = 0.0
        return made

    def refined(self, more: Mapping[Architecture, float]) -> CostRegressor:
        """One that is fitted to further architectures and their figures as well."""
        if self._whole:
            return self
        features, costs = self._fitted
        features = np.concatenate([features, _encode(self.space, list(more))])
        return CostRegressor(self.space, features, np.append(costs, list(more.values())))

    def __call__(self, architecture: Architecture) -> float:
        """The prediction for one architecture; see `predict`."""
        return float(self.predict([architecture])[0])

    def predict(self, architectures: Sequence[Architecture]) -> NDArray:
        """Predictions (N,), in the unit of the figures it was fitted to, never negative."""
        if self._whole:
            return np.array([self._whole[self.space.validate(a)] for a in architectures])
        features = _encode(self.space, architectures) * self._weights
        return np.maximum(self._kernel(features) @ self._dual, 0.0)

    def _kernel(self, features: NDArray) -> NDArray:
        return (1.0 + features @ self._samples.T / self._scale) ** 2


def _encode(space: SearchSpace, architectures: Sequence[Architecture]) -> NDArray:
    return np.array([space.encode(architecture) for architecture in architectures], float)


def _relevance(space: SearchSpace, features: NDArray, costs: NDArray) -> NDArray:
    """A weight for each feature: how far its choice moves the cost by itself, the most being 1."""
    widths = [len(choice.values) for choice in space]
    weights = np.ones(features.shape[1])
    for _ in range(_ROUNDS):
        weighted = features * weights
        scale = _scale(weighted)
        _, dual = _ridge_regression(1.0 + weighted @ weighted.T / scale, costs)
        effects = features * (weights * (dual @ weighted) / scale)
        starts = np.cumsum([0, *widths[:-1]])
        shares = np.add.reduceat(effects, starts, axis=1).std(axis=0)
        shares /= max(shares.max(), 1e-300)
        weights = np.repeat(np.hypot(shares, _FLOOR), widths)
    return weights


def _scale(features: NDArray) -> float:
    return float((features**2).sum(axis=1).mean()) or 1.0


def _ridge_regression(kernel: NDArray, costs: NDArray) -> tuple[float, NDArray]:
    """The least mean relative error of any regularisation, one left out, and its dual weights."""
    # A measurement errs by so many per cent of itself, nothing at all as the least that is more.
    sizes = np.where(costs > 0, costs, costs[costs > 0].min() if costs.any() else 1.0)
    noise = np.diag((sizes / np.exp(np.log(sizes).mean())) ** 2) * np.trace(kernel) / len(costs)
    duals = []
    for ridge in _RIDGES:
        inverse = np.linalg.inv(kernel + ridge * noise)
        dual = inverse @ costs
        errors = np.abs(dual / np.diag(inverse) / sizes)
        duals.append((float(np.mean(np.minimum(errors, 1.0))), dual))
    return min(duals, key=lambda row: row[0])
