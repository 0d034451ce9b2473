"""Probabilities that mean what they say: temperature, calibration error, reliability diagram.

Paper: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.extras import from_extra
from ..vision.viz.colour import draw_figure
from .metrics import check_labelled

__all__ = ["calibration_error", "fit_temperature", "reliability", "reliability_picture"]

_COLDEST, _HOTTEST = 0.05, 20.0


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The number that logits are divided by so that the cross-entropy is least (section 4.2).

    The most probable class stays what it is.

    Args:
        logits: (N, C), of samples that the network has not learnt from.
        labels: (N,).

    Returns:
        0.05 to 20; above 1 where the network is too sure of itself.

    Raises:
        ValueError: the shapes do not fit, or there is nothing to fit.
        ImportError: SciPy is not installed.
    """
    check_labelled("logits", logits, labels)
    logits = logits.double()
    minimize_scalar = from_extra("scipy", "scipy.optimize", "calibration").minimize_scalar

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), labels))

    bounds = (math.log(_COLDEST), math.log(_HOTTEST))  # in the logarithm there is one minimum
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return math.exp(best.x)


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error: how far confidence is from accuracy, mean over samples.

    Of probabilities (N, C) and labels (N,), in bins of equal width by confidence.
    """
    confidence, accuracy, counts = reliability(probabilities, labels, bins)
    some = counts > 0
    return float((counts * np.abs(confidence - accuracy))[some].sum() / counts.sum())


def reliability(
    probabilities: Tensor, labels: Tensor, bins: int = 15
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a reliability diagram shows, for each bin of confidence.

    Returns:
        Mean confidence, accuracy (both NaN where a bin is empty) and number of samples, (bins,)
        each.
    """
    confidence, predicted = probabilities.double().cpu().max(1)
    right = (predicted == labels.cpu()).double()
    places = torch.clamp((confidence * bins).ceil().long() - 1, 0, bins - 1)
    counts = torch.bincount(places, minlength=bins)
    sums = (torch.bincount(places, values, bins) for values in (confidence, right))
    means = [(total / counts).numpy() for total in sums]
    return means[0], means[1], counts.numpy()


def reliability_picture(probabilities: Tensor, labels: Tensor, title: str = "") -> np.ndarray:
    """Accuracy over confidence, and how many samples have which confidence; (H, W, 3) uint8 RGB.

    The calibration error stands below the title.
    """
    from matplotlib.figure import Figure

    confidence, accuracy, counts = reliability(probabilities, labels)
    bins, some = len(counts), counts > 0
    figure = Figure(figsize=(5, 6), dpi=100, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    middles = (np.arange(bins) + 0.5) / bins
    above.plot((0, 1), (0, 1), color="grey", linestyle="--", linewidth=1, label="perfect")
    above.bar(middles[some], accuracy[some], 0.95 / bins, color="tab:blue", label="accuracy")
    above.plot(
        confidence[some], confidence[some], "o", color="tab:red", markersize=4, label="confidence"
    )
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    above.legend(loc="upper left")
    error = calibration_error(probabilities, labels, bins)
    told = "\n".join(filter(None, (title, f"expected calibration error {error:.3f}")))
    above.set_title(told, parse_math=False)
    below.bar(middles, counts, 0.95 / bins, color="grey")
    below.set(xlabel="confidence", ylabel="samples")
    return draw_figure(figure)
