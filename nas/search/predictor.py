"""Predicting an architecture's accuracy from its choices, learnt from measured ones.

A multi-layer perceptron on the one-hot encoding (once-for-all, arXiv 1908.09791: three layers of
400). :meth:`Predictor.predict` is an objective for the searches.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ...common.files import atomic_write, check_version, existing
from ..space import Architecture, SearchSpace

__all__ = ["FEWEST", "Agreement", "Comparison", "Predictor", "agreement", "compare"]

FEWEST = 10
"""Measurements that a predictor takes at least."""

_KEY = "vizoo"
_KIND = "accuracy predictor"
_VERSION = 1

_Pair = tuple[Architecture, float]


@dataclass(frozen=True)
class Agreement:
    """How well predictions agree with measurements."""

    count: int  #: how many were compared
    kendall: float  #: Kendall's tau-b; NaN if either side is constant
    spearman: float  #: Spearman's rho; likewise
    rmse: float  #: root mean squared error, in the measurements' unit
    median_relative_error: float  #: median of |prediction − measurement| / |measurement|

    def to_json(self) -> dict[str, Any]:
        """Numbers that are NaN become None."""
        return {k: v if math.isfinite(v) else None for k, v in asdict(self).items()}


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """Compare predictions with measurements.

    Raises:
        ValueError: the numbers of both differ, or are below 2.
    """
    if len(predicted) != len(measured) or len(measured) < 2:
        raise ValueError(
            "to compare takes two or more predictions and as many measurements, not "
            f"{len(predicted)} and {len(measured)}"
        )
    from torchmetrics.functional import kendall_rank_corrcoef, spearman_corrcoef

    x = torch.tensor(predicted, dtype=torch.float64)
    y = torch.tensor(measured, dtype=torch.float64)
    kendall = spearman = math.nan
    if x.min() < x.max() and y.min() < y.max():
        kendall = float(cast("Tensor", kendall_rank_corrcoef(x, y, variant="b")))
        spearman = float(spearman_corrcoef(x, y))
    error = (x - y).abs()
    return Agreement(
        len(measured),
        kendall,
        spearman,
        float(error.square().mean().sqrt()),
        float((error / y.abs()).median()),
    )


@dataclass(frozen=True)
class Comparison:
    """Scores against the truth."""

    count: int  #: architectures
    kendall: float  #: Kendall's tau-b; NaN where either side is constant
    spearman: float  #: Spearman's rho; likewise
    #: k → the share of the k best by score that are among the k best in truth
    precision: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are NaN become None."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def compare(
    scores: Sequence[float], truth: Sequence[float], top: Sequence[int] = (5, 10, 50)
) -> Comparison:
    """Compare a ranking with the true one; large is good in both.

    Args:
        scores: by which architectures are ranked.
        truth: of the same ones.
        top: numbers k of precision@k; those that are not below the count are left out.

    Raises:
        ValueError: the numbers of both differ, or are below 2.
    """
    agrees = agreement(scores, truth)
    by_score, by_truth = (np.argsort(-np.asarray(v, float), kind="stable") for v in (scores, truth))
    precision = {
        k: len(set(by_score[:k]) & set(by_truth[:k])) / k for k in top if k < len(by_score)
    }
    return Comparison(agrees.count, agrees.kendall, agrees.spearman, precision)


class Predictor:
    """Predicts one number, such as the end-point error, for architectures of a space.

    Made by :meth:`fit` or :meth:`load`.
    """

    def __init__(
        self,
        space: SearchSpace,
        networks: nn.ModuleList,
        mean: float,
        scale: float,
        *,
        logarithm: bool,
        held_out: Agreement | None,
    ) -> None:
        self.space = space  #: what it is for
        self.logarithm = logarithm  #: whether it learnt the logarithm of the targets
        #: its agreement with the pairs kept out of fitting; None if there were none
        self.held_out = held_out
        self._networks = networks.eval()
        self._mean, self._scale = mean, scale

    @classmethod
    def fit(
        cls,
        space: SearchSpace,
        pairs: Sequence[_Pair],
        *,
        seed: int,
        held_out: float = 0.2,
        logarithm: bool = False,
        members: int = 1,
        hidden: Sequence[int] = (400, 400, 400),
        epochs: int = 200,
    ) -> Predictor:
        """Learn from architectures and what was measured of them.

        By Adam, with a learning rate of 0.001 that falls by a cosine. Targets are standardised, so
        that the output starts at their mean (without which the fit is unstable). The same seed,
        data and number of threads give the same predictor.

        Args:
            space: of the architectures.
            pairs: (architecture, measurement), `FEWEST` or more; 1,000 to 4,000 make a good one.
            seed: of the split, the weights and the order.
            held_out: share of the pairs to test on and not to learn from; 0 for none.
            logarithm: learn the logarithm: right for errors, which are positive and skewed.
            members: number of networks whose mean is the prediction.
            hidden: widths of the hidden layers.
            epochs: passes over the pairs, in batches of 64.

        Raises:
            ValueError: too few pairs, an architecture of another space, a measurement that is
                not finite, or not positive where its logarithm is to be learnt.
        """
        if len(pairs) < FEWEST:
            raise ValueError(
                f"to fit a predictor takes {FEWEST} measurements or more, not {len(pairs)}"
            )
        if not 0 <= held_out <= 0.8:
            raise ValueError(f"held_out is a share from 0 to 0.8, not {held_out}")
        codes = torch.tensor([space.encode(architecture) for architecture, _ in pairs])
        measured = torch.tensor([value for _, value in pairs], dtype=torch.float64)
        if not measured.isfinite().all() or (logarithm and measured.min() <= 0):
            wanted = "finite and positive" if logarithm else "finite"
            raise ValueError(f"a measurement to learn from is not {wanted}")
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(pairs), generator=generator)
        tests = order[: round(len(pairs) * held_out)]
        used = order[len(tests) :]
        targets = measured.log() if logarithm else measured
        mean = float(targets[used].mean())
        scale = float(targets[used].std()) or 1.0
        targets = ((targets - mean) / scale).float()

        networks = nn.ModuleList(_perceptrons(codes.shape[1], hidden, members, seed))
        for network in networks:
            parameters = network.parameters()
            optimizer = torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-4, fused=True)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
            for _ in range(epochs):
                shuffled = used[torch.randperm(len(used), generator=generator)]
                for batch in shuffled.split(64):
                    loss = (network(codes[batch])[:, 0] - targets[batch]).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                schedule.step()
        predictor = cls(space, networks, mean, scale, logarithm=logarithm, held_out=None)
        if len(tests) >= 2:
            predictor.held_out = predictor.evaluate([pairs[i] for i in tests.tolist()])
        return predictor

    def predict(self, architectures: Sequence[Architecture]) -> list[float]:
        """One prediction for each architecture, in the measurements' unit.

        Raises:
            ValueError: an architecture is of another space.
        """
        if not architectures:
            return []
        codes = torch.tensor([self.space.encode(architecture) for architecture in architectures])
        with torch.inference_mode():
            outputs = torch.stack([network(codes)[:, 0] for network in self._networks])
        values = outputs.double().mean(0) * self._scale + self._mean
        return (values.exp() if self.logarithm else values).tolist()

    def evaluate(self, pairs: Sequence[_Pair]) -> Agreement:
        """Agreement with measurements that it has not learnt from."""
        return agreement(self.predict([a for a, _ in pairs]), [value for _, value in pairs])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as safetensors with the space and the figures as JSON, atomically."""
        layers = self._networks[0].children()
        *hidden, _ = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
        about = {
            "kind": _KIND,
            "version": _VERSION,
            "space": self.space.to_json(),
            "mean": self._mean,
            "scale": self._scale,
            "logarithm": self.logarithm,
            "members": len(self._networks),
            "hidden": hidden,
            "held_out": self.held_out and self.held_out.to_json(),
        }
        state = {name: t.detach().contiguous() for name, t in self._networks.state_dict().items()}
        with atomic_write(path) as temporary:
            save_file(state, temporary, metadata={_KEY: json.dumps(about)})
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], space: SearchSpace | None = None) -> Predictor:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it holds no predictor, or one for another space than that which is given.
        """
        state, about = _read(Path(path))
        try:
            own = SearchSpace.from_json(about["space"])
            inputs = len(own.encode(own.smallest()))
            networks = nn.ModuleList(_perceptrons(inputs, about["hidden"], about["members"], 0))
            networks.load_state_dict(state)
            scores: dict[str, Any] | None = about["held_out"]
            if scores is not None:
                scores = {k: math.nan if v is None else v for k, v in scores.items()}
            predictor = cls(
                own,
                networks,
                float(about["mean"]),
                float(about["scale"]),
                logarithm=bool(about["logarithm"]),
                held_out=None if scores is None else Agreement(**scores),
            )
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            lacking = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            reason = lacking.splitlines()[0]
            raise ValueError(f"{path}: a damaged accuracy predictor ({reason})") from error
        if space is not None and space != own:
            raise ValueError(f"{path}: this accuracy predictor is for another search space")
        return predictor


def _perceptrons(inputs: int, hidden: Sequence[int], members: int, seed: int) -> list[nn.Module]:
    networks: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(members):
            widths = [inputs, *hidden]
            layers: list[nn.Module] = []
            for width, following in zip(widths, widths[1:], strict=False):
                layers += [nn.Linear(width, following), nn.ReLU()]
            last = nn.Linear(widths[-1], 1)
            nn.init.zeros_(last.bias)
            networks.append(nn.Sequential(*layers, last))
    return networks


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    existing(path, "an accuracy predictor")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_KEY, "null"))
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: not a safetensors file ({error})") from error
    if not isinstance(about, dict) or about.get("kind") != _KIND:
        raise ValueError(f"{path}: this safetensors file holds no accuracy predictor")
    check_version(about, _VERSION, f"{path}: an accuracy predictor")
    return state, about
