"""Ensembles of classifiers: how to combine what they say, and what they are.

Members give log-probabilities (M, N, C) of M members, N samples, C classes. A member may abstain
from a sample, as a detector does that finds no box: its row is NaN, and the others decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.extras import from_extra
from .calibration import calibration_error
from .metrics import classification_scores

__all__ = ["METHODS", "Combination", "align", "check_classes", "fit_combination", "report_on"]

#: How members are combined.
METHODS = ("mean", "weighted", "vote", "stacking")

_TIE = 0.5  # of a vote: below one vote, so that the mean decides ties alone
_PENALTY = 1.0  # of stacking: on half the sum of squares, against a sum over samples
_FLOOR = 1e-12


@dataclass(frozen=True)
class Combination:
    """How the members of an ensemble are combined."""

    #: ``mean`` of the probabilities; ``weighted`` mean; ``vote``: the class that most members
    #: prefer, the mean deciding between equals; ``stacking``: a multinomial logistic regression on
    #: all members' log-probabilities
    method: str = "mean"
    weights: tuple[float, ...] = ()  #: of the members for ``weighted``, not negative, their sum 1
    #: (C, M C) of ``stacking``, members one after the other
    coefficients: tuple[tuple[float, ...], ...] = ()
    bias: tuple[float, ...] = ()  #: (C,) of it

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method {self.method!r} is none of {', '.join(METHODS)}")
        if self.method == "weighted":
            if not self.weights or min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-3:
                raise ValueError(f"weights {self.weights}: none may be negative, their sum is 1")
        if self.method == "stacking" and len(self.coefficients) != len(self.bias):
            raise ValueError("stacking wants a row of coefficients and a bias for each class")

    def __call__(self, log_probabilities: Tensor) -> Tensor:
        """Probabilities (N, C) of log-probabilities (M, N, C), NaN where a member abstains.

        All are the same for a sample from which all abstain.

        Raises:
            ValueError: another number of members or classes than this was fitted to.
        """
        members, _, classes = log_probabilities.shape
        if self.method == "stacking":
            if len(self.bias) != classes or len(self.coefficients[0]) != members * classes:
                raise ValueError(
                    f"stacking was fitted to {len(self.bias)} classes and "
                    f"{len(self.coefficients[0])} columns, not {classes} and {members * classes}"
                )
            columns = _columns(log_probabilities.double())
            rows, bias = (torch.tensor(x).to(columns) for x in (self.coefficients, self.bias))
            return F.linear(columns, rows, bias).softmax(1).float()
        if self.weights and len(self.weights) != members:
            raise ValueError(f"{len(self.weights)} weights for {members} members")
        weights = torch.tensor(self.weights or [1 / members] * members, dtype=torch.float64)
        mean = _weighted(log_probabilities.double(), weights)
        if self.method != "vote":
            return mean.float()
        there = ~_abstains(log_probabilities)
        favourites = F.one_hot(log_probabilities.nan_to_num(0).argmax(2), classes)
        votes = (favourites * there[..., None]).sum(0)
        return ((votes + _TIE * mean) / (votes.sum(1, keepdim=True) + _TIE)).float()


def fit_combination(method: str, log_probabilities: Tensor, labels: Tensor) -> Combination:
    """Fit weights or a stacking to samples that no member has learnt from.

    The weights have the least cross-entropy there: where none abstains, no larger than that of the
    best member.

    Args:
        method: one of `METHODS`; a mean and a vote have nothing to fit.
        log_probabilities: (M, N, C); NaN where a member abstains.
        labels: (N,).

    Raises:
        ImportError: weights are wanted, and SciPy is not installed.
    """
    logs = log_probabilities.double()
    if method == "weighted":
        return Combination(method, tuple(_fit_weights(logs, labels)))
    if method == "stacking":
        coefficients, bias = _fit_stacking(logs, labels)
        rows = tuple(map(tuple, coefficients.tolist()))
        return Combination(method, coefficients=rows, bias=tuple(bias.tolist()))
    return Combination(method)


def align(log_probabilities: Tensor, names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Bring the classes of log-probabilities (..., C) into another order of the same names.

    Raises:
        ValueError: some are missing or surplus; the message names them.
    """
    missing = [name for name in wanted if name not in names]
    surplus = [name for name in names if name not in wanted]
    if missing or surplus:
        parts = [
            f"{word} {', '.join(few)}"
            for word, few in (("it lacks", missing), ("it has besides", surplus))
            if few
        ]
        raise ValueError(f"other classes than {', '.join(wanted)}: {'; '.join(parts)}")
    return log_probabilities[..., [list(names).index(name) for name in wanted]]


def check_classes(names: Sequence[str], classes: Sequence[str], source: str) -> None:
    """Refuse classes, in any order, that cannot be aligned with an ensemble's; names their source.

    Raises:
        ValueError: names are missing or surplus.
    """
    try:
        align(torch.zeros(1, len(names)), names, classes)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def report_on(
    log_probabilities: Tensor, labels: Tensor, combination: Combination
) -> dict[str, object]:
    """Scores of each member, of the ensemble, and of an oracle that picks the member that is right.

    Returns:
        ``members``, a list, and ``ensemble``: `classification_scores` with ``ece``, and of a member
        that abstains ``answered``, its share of samples, on which it is scored; ``oracle``: the
        share of samples that some member has right; ``samples``.
    """
    silent, members = _abstains(log_probabilities), []
    for logs, absent in zip(log_probabilities, silent, strict=True):
        scores = _scores(logs[~absent], labels[~absent]) if not absent.all() else {}
        share = {"answered": 1 - float(absent.float().mean())} if absent.any() else {}
        members.append({**scores, **share})
    right = (log_probabilities.nan_to_num(0).argmax(2) == labels) & ~silent
    ensemble = combination(log_probabilities).clamp(min=_FLOOR).log()
    told = (ensemble.argmax(1) == labels) & ~silent.all(0)  # no class is right where all abstain
    return {
        "members": members,
        "ensemble": {**_scores(ensemble, labels), "accuracy": float(told.float().mean())},
        "oracle": float(right.any(0).float().mean()),
        "samples": len(labels),
    }


def _scores(log_probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    scores = classification_scores(log_probabilities, labels)
    error = calibration_error(log_probabilities.exp(), labels)
    return {**{name: float(value) for name, value in scores.items()}, "ece": error}


def _abstains(log_probabilities: Tensor) -> Tensor:
    return log_probabilities.isnan().any(-1)


def _weighted(logs: Tensor, weights: Tensor) -> Tensor:
    """Mean of the probabilities of those that do not abstain, (N, C)."""
    there = ~_abstains(logs)
    shares = weights[:, None] * there
    lone = shares.sum(0) <= 0  # only members without weight answer, or none
    shares = torch.where(lone, there.to(shares.dtype), shares)
    total = shares.sum(0)
    mean = (shares[..., None] * logs.exp().nan_to_num(0)).sum(0) / total.clamp(min=_FLOOR)[:, None]
    return torch.where(total[:, None] > 0, mean, torch.full_like(mean, 1 / logs.shape[2]))


def _fit_weights(logs: Tensor, labels: Tensor) -> list[float]:
    members = len(logs)
    minimize = from_extra("scipy", "scipy.optimize", "a weighted ensemble").minimize

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Its value and its slope."""
        w = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
        probabilities = _weighted(logs, w).gather(1, labels[:, None])
        value = -probabilities.clamp(min=_FLOOR).log().mean()
        (slope,) = torch.autograd.grad(value, w)
        return float(value.detach()), slope.numpy()

    fitted = minimize(
        loss,
        np.full(members, 1 / members),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * members,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 500, "ftol": 1e-10},
    ).x.clip(0)
    candidates = [fitted / fitted.sum(), np.full(members, 1 / members), *np.eye(members)]
    return min(candidates, key=lambda weights: loss(weights)[0]).tolist()


def _columns(logs: Tensor) -> Tensor:
    """Log-probabilities of all members side by side, (N, M C); of one that abstains all equal."""
    logs = torch.where(_abstains(logs)[..., None], -np.log(logs.shape[2]), logs)
    logs = logs.clamp(min=np.log(_FLOOR))
    return logs.permute(1, 0, 2).flatten(1)


def _fit_stacking(logs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    columns, classes = _columns(logs), logs.shape[2]
    weight = torch.zeros(classes, columns.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=500, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(columns, weight, bias), labels, reduction="sum")
        loss = (loss + 0.5 * _PENALTY * weight.square().sum()) / len(labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach(), bias.detach()
